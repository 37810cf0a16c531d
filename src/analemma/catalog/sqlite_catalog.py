"""The catalog on SQLite."""

from __future__ import annotations

from collections.abc import Sequence

from analemma.canon.identity import BlockId
from analemma.catalog.engine import Row
from analemma.catalog.migrations import migrate
from analemma.catalog.port import TenantId
from analemma.catalog.sql_catalog import SqlCatalog
from analemma.catalog.sqlite import SqliteEngine
from analemma.catalog.wakeups import FileWakeups
from analemma.clock import Clock


class SqliteCatalog(SqlCatalog):
    """Commits in a transaction shared with whoever commits at the same moment. With `migrate_schema=False` an outdated
    schema is refused instead of upgraded."""

    engine: SqliteEngine

    def __init__(self, engine: SqliteEngine, *, clock: Clock | None = None, migrate_schema: bool = True) -> None:
        super().__init__(clock=clock)
        self.engine = engine
        self.wakeups = FileWakeups(engine.path)
        self.migrated = migrate(engine, now_us=self.clock.now_us(), apply=migrate_schema)

    def _read_block_rows(self, tenant: TenantId, ids: Sequence[BlockId]) -> list[Row]:
        return self.engine.all("read_blocks", tenant=tenant, ids=b"".join(ids), count=len(ids))
