"""The catalog on SQLite."""

from __future__ import annotations

from collections.abc import Sequence

from analemma.canon.identity import BlockId
from analemma.catalog.commit_steps import commit_in_steps
from analemma.catalog.engine import Row, Transaction
from analemma.catalog.ledger_port import BranchSettlement, LedgerEntry
from analemma.catalog.ledger_steps import enter_in_steps, settle_in_steps
from analemma.catalog.migrations import migrate
from analemma.catalog.port import CommitRequest, Committed, TenantId
from analemma.catalog.settling import settle
from analemma.catalog.sql_catalog import SqlCatalog
from analemma.catalog.sqlite import SqliteEngine
from analemma.catalog.sqlite_errors import outcome_unknown
from analemma.catalog.wakeups import FileWakeups
from analemma.clock import Clock
from analemma.errors import OutcomeUnknown


class SqliteCatalog(SqlCatalog):
    """Commits in a transaction shared with whoever commits at the same moment. With `migrate_schema=False` an outdated
    schema is refused instead of upgraded."""

    engine: SqliteEngine

    def __init__(self, engine: SqliteEngine, *, clock: Clock | None = None, migrate_schema: bool = True) -> None:
        super().__init__(clock=clock)
        self.engine = engine
        self.wakeups = FileWakeups(engine.path)
        self.migrated = migrate(engine, now_us=self.clock.now_us(), apply=migrate_schema)

    def commit_in(self, tx: Transaction, request: CommitRequest) -> Committed:
        return commit_in_steps(tx, request, now_us=self.clock.now_us(), key_keep_us=self.key_keep_us)

    def _commit(self, request: CommitRequest) -> Committed:
        try:
            return self._send(request)
        except OutcomeUnknown:
            return settle(
                request,
                is_stored=lambda: self.manifest(request.tenant, request.manifest.id) is not None,
                send=lambda: self._send(request),
                unknown=lambda: outcome_unknown(self.engine.path),
            )

    def _send(self, request: CommitRequest) -> Committed:
        return self.engine.write(lambda tx: self.commit_in(tx, request))

    def _write_entries(self, tx: Transaction, tenant: TenantId, entries: Sequence[LedgerEntry]) -> dict[bytes, int]:
        return enter_in_steps(tx, tenant, entries)

    def _write_settlements(self, tx: Transaction, tenant: TenantId, settlements: Sequence[BranchSettlement]) -> None:
        settle_in_steps(tx, tenant, settlements, now_us=self.clock.now_us(), key_keep_us=self.key_keep_us)

    def _read_block_rows(self, tenant: TenantId, ids: Sequence[BlockId]) -> list[Row]:
        return self.engine.all("read_blocks", tenant=tenant, ids=b"".join(ids), count=len(ids))
