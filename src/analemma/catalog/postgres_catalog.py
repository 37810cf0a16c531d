"""The catalog on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from analemma.canon.identity import BlockId
from analemma.catalog.arrays import Blobs
from analemma.catalog.engine import Row
from analemma.catalog.migrations import migrate
from analemma.catalog.port import TenantId
from analemma.catalog.postgres import PostgresEngine
from analemma.catalog.sql_catalog import SqlCatalog
from analemma.catalog.wakeups import PostgresWakeups
from analemma.clock import Clock


class PostgresCatalog(SqlCatalog):
    """Commits in one autocommit statement, unless rows of others go with it. With `migrate_schema=False` an outdated
    schema is refused instead of upgraded."""

    engine: PostgresEngine

    def __init__(self, engine: PostgresEngine, *, clock: Clock | None = None, migrate_schema: bool = True) -> None:
        super().__init__(clock=clock)
        self.engine = engine
        self.wakeups = PostgresWakeups(engine.dedicated, listening=not engine.pgbouncer)
        self.migrated = migrate(engine, now_us=self.clock.now_us(), apply=migrate_schema)

    def _read_block_rows(self, tenant: TenantId, ids: Sequence[BlockId]) -> list[Row]:
        return self.engine.all("read_blocks", tenant=tenant, ids=Blobs(ids))
