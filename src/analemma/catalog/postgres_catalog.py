"""The catalog on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from analemma.canon.identity import BlockId
from analemma.catalog.arrays import Blobs
from analemma.catalog.commit_statement import commit_in_one_statement
from analemma.catalog.engine import Row, Transaction
from analemma.catalog.migrations import migrate
from analemma.catalog.port import CommitRequest, Committed, TenantId
from analemma.catalog.postgres import ConnectionDropped, PostgresEngine, retry_contention
from analemma.catalog.postgres_errors import outcome_unknown
from analemma.catalog.sql_catalog import SqlCatalog
from analemma.clock import Clock
from analemma.errors import HeadMoved, Unavailable


class PostgresCatalog(SqlCatalog):
    """Commits in one autocommit statement. With `migrate=False` an outdated schema is refused instead of upgraded."""

    engine: PostgresEngine

    def __init__(self, engine: PostgresEngine, *, clock: Clock | None = None, migrate_schema: bool = True) -> None:
        super().__init__(clock=clock)
        self.engine = engine
        self.migrated = migrate(engine, now_us=self.clock.now_us(), apply=migrate_schema)

    def commit_in(self, tx: Transaction, request: CommitRequest) -> Committed:
        return commit_in_one_statement(tx, request, now_us=self.clock.now_us())

    def _commit(self, request: CommitRequest) -> Committed:
        try:
            return self._send(request)
        except ConnectionDropped:
            return self._settle(request)

    def _send(self, request: CommitRequest) -> Committed:
        def once() -> Committed:
            with self.engine.connection() as (_, tx):
                return self.commit_in(tx, request)

        return retry_contention(once)

    def _settle(self, request: CommitRequest) -> Committed:
        """The answer was lost: find out whether the commit happened, and if not, make it happen.

        Not finding the manifest proves nothing, because the server may still be at work on the lost statement. Sending
        it again does: the compare-and-set lets only one of the two through, and manifest ids are unique to a commit.
        """
        found = Committed(
            request.manifest.id,
            frozenset(),
            receipt=None if request.idempotency is None else request.idempotency.receipt,
        )
        try:
            if self._is_stored(request):
                return found
            return self._send(request)
        except HeadMoved:
            if self._is_stored(request):
                return found
            raise
        except Unavailable as exc:
            raise outcome_unknown(self.engine.server) from exc

    def _is_stored(self, request: CommitRequest) -> bool:
        return self.manifest(request.tenant, request.manifest.id) is not None

    def _read_block_rows(self, tenant: TenantId, ids: Sequence[BlockId]) -> list[Row]:
        return self.engine.all("read_blocks", tenant=tenant, ids=Blobs(ids))
