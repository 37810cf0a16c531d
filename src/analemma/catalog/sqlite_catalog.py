"""The catalog on SQLite."""

from __future__ import annotations

from collections.abc import Sequence

from analemma.canon.identity import BlockId
from analemma.catalog.commit_steps import commit_in_steps
from analemma.catalog.engine import Row, Transaction
from analemma.catalog.migrations import migrate
from analemma.catalog.port import CommitRequest, Committed, TenantId
from analemma.catalog.sql_catalog import SqlCatalog
from analemma.catalog.sqlite import SqliteEngine
from analemma.clock import Clock


class SqliteCatalog(SqlCatalog):
    """Commits in a transaction shared with whoever commits at the same moment. Keeps the schema current by itself."""

    engine: SqliteEngine

    def __init__(self, engine: SqliteEngine, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self.engine = engine
        self.migrated = migrate(engine, now_us=self.clock.now_us())

    def commit_in(self, tx: Transaction, request: CommitRequest) -> Committed:
        return commit_in_steps(tx, request, now_us=self.clock.now_us())

    def _commit(self, request: CommitRequest) -> Committed:
        return self.engine.write(lambda tx: self.commit_in(tx, request))

    def _read_block_rows(self, tenant: TenantId, ids: Sequence[BlockId]) -> list[Row]:
        return self.engine.all("read_blocks", tenant=tenant, ids=b"".join(ids), count=len(ids))
