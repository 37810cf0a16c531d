"""The catalog on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from analemma.canon.identity import BlockId
from analemma.catalog.arrays import Blobs
from analemma.catalog.commit_statement import commit_in_one_statement, takes_rows_along
from analemma.catalog.commits import BEFORE_COMMIT, change_rows
from analemma.catalog.engine import Row, Transaction
from analemma.catalog.ledger_port import BranchSettlement, LedgerEntry
from analemma.catalog.ledger_statement import enter_in_one_statement, settle_in_one_statement
from analemma.catalog.migrations import migrate
from analemma.catalog.port import CommitRequest, Committed, TenantId
from analemma.catalog.postgres import ConnectionDropped, PostgresEngine, retry_contention
from analemma.catalog.postgres_errors import outcome_unknown
from analemma.catalog.settling import settle
from analemma.catalog.sql_catalog import SqlCatalog
from analemma.catalog.wakeups import PostgresWakeups
from analemma.clock import Clock
from analemma.errors import OutcomeUnknown
from analemma.failpoints import hit


class PostgresCatalog(SqlCatalog):
    """Commits in one autocommit statement, unless rows of others go with it. With `migrate_schema=False` an outdated
    schema is refused instead of upgraded."""

    engine: PostgresEngine

    def __init__(self, engine: PostgresEngine, *, clock: Clock | None = None, migrate_schema: bool = True) -> None:
        super().__init__(clock=clock)
        self.engine = engine
        self.wakeups = PostgresWakeups(engine.dedicated, listening=not engine.pgbouncer)
        self.migrated = migrate(engine, now_us=self.clock.now_us(), apply=migrate_schema)

    def commit_in(self, tx: Transaction, request: CommitRequest) -> Committed:
        committed = commit_in_one_statement(tx, request, now_us=self.clock.now_us(), key_keep_us=self.key_keep_us)
        if request.rows and not committed.replayed and not takes_rows_along(request):
            change_rows(tx, request.rows)
            hit(BEFORE_COMMIT)
        return committed

    def _commit(self, request: CommitRequest) -> Committed:
        try:
            return self._send(request)
        except (ConnectionDropped, OutcomeUnknown):
            return self._settle(request)

    def _send(self, request: CommitRequest) -> Committed:
        if request.rows and not takes_rows_along(request):
            # More than one statement, so a transaction around them.
            return self.engine.write(lambda tx: self.commit_in(tx, request))

        def once() -> Committed:
            with self.engine.connection() as (_, tx):
                return self.commit_in(tx, request)

        return retry_contention(once)

    def _settle(self, request: CommitRequest) -> Committed:
        return settle(
            request,
            is_stored=lambda: self._is_stored(request),
            send=lambda: self._send(request),
            unknown=lambda: outcome_unknown(self.engine.server),
        )

    def _is_stored(self, request: CommitRequest) -> bool:
        tenant, manifest = request.tenant, request.manifest.id
        # It may have been committed, followed by others, and expired, all before we asked.
        return self.manifest(tenant, manifest) is not None or self.expired(tenant, manifest) is not None

    def _write_entries(self, tx: Transaction, tenant: TenantId, entries: Sequence[LedgerEntry]) -> dict[bytes, int]:
        return enter_in_one_statement(tx, tenant, entries)

    def _write_settlements(self, tx: Transaction, tenant: TenantId, settlements: Sequence[BranchSettlement]) -> None:
        settle_in_one_statement(tx, tenant, settlements, now_us=self.clock.now_us(), key_keep_us=self.key_keep_us)

    def _read_block_rows(self, tenant: TenantId, ids: Sequence[BlockId]) -> list[Row]:
        return self.engine.all("read_blocks", tenant=tenant, ids=Blobs(ids))
