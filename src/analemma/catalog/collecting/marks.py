"""What a pass of the collector does to the catalog: it reads all roots in one snapshot, scans blocks, and acts on them
in three statements. The protocol, and why it loses nothing, is in docs/design/garbage-collection.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from analemma.canon.identity import BlockId
from analemma.catalog.engine.db import Row, Statements, Transaction
from analemma.catalog.kernel.payloads import BEFORE_HOLD, end_leases, is_over, leased_executions
from analemma.catalog.leases import Lease
from analemma.catalog.port import TenantId
from analemma.errors import Unavailable
from analemma.failpoints import declare, hit

AFTER_LEASE = declare("gc.after_lease", "a pass has its number, and nothing is marked")
AFTER_SNAPSHOT = declare("gc.after_snapshot", "the roots are read, and nothing is marked")
BEFORE_DOOM = declare("gc.before_doom", "blocks are doomed inside a transaction of a pass")
AFTER_DOOM = declare("gc.after_doom", "a batch of blocks is doomed")
BEFORE_DELETE = declare("gc.before_delete", "blocks are deleted inside a transaction of a pass")
BEFORE_FORGET = declare("gc.before_forget", "a pass has found idempotency keys that count no more, and none is gone")
AFTER_DELETE = declare("gc.after_delete", "a batch of blocks is deleted")

ROOT_PAGE = 1000
SCAN_PAGE = 5000
FORGET_BATCH = 1000


class RootTable(NamedTuple):
    """A table whose rows keep blocks. Its statement takes tenant, after and limit, and answers pages of (key, root),
    by key; a root may be NULL."""

    table: str
    statement: str
    start: bytes | int = b""
    """What comes before every key."""


class Snapshot(NamedTuple):
    """Everything that keeps blocks of one tenant, at one moment."""

    roots: dict[str, list[BlockId]]
    """By table."""
    oldest_session: int | None
    """The number of the pass that was the newest when the oldest open session began."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one pass did, over all tenants."""

    number: int
    holder: str
    started_at_us: int
    finished_at_us: int | None
    state: str
    """`running`, `finished` or `aborted`."""
    reason: str | None
    expired: int
    total: int
    referenced: int
    doomed: int
    cleared: int
    deleted: int
    bytes: int
    claimed: int
    objects: int


class Pass(Lease):
    """One pass, which alone writes to blocks that are stored: in transactions under its lease."""

    kind = "gc"
    doing = "collecting"
    after_take = AFTER_LEASE

    @classmethod
    def _begin(cls, tx: Transaction, number: int, holder: str, now_us: int) -> None:
        tx.execute("gc_close_dead_runs", number=number, now=now_us)
        tx.execute("gc_begin_run", number=number, holder=holder, now=now_us)

    def snapshot(self, tenant: TenantId, tables: Sequence[RootTable]) -> Snapshot:
        """All roots of one tenant, in one snapshot taken after the lease. What it saw is durable when this returns."""
        try:
            with self._engine.snapshot(long=True) as tx:
                # On SQLite whoever dies with the machine cannot act on what was lost: nothing to make durable.
                tx.all("commit_durably")
                found = read_snapshot(tx, tenant, tables)
                if not self._engine.has_one_writer:
                    # Fails if the lease was taken since the snapshot began: its row is another by then.
                    self._renew(tx)
                elif not self._is_held(tx):
                    raise self._lost()
        except Unavailable as exc:
            if exc.facts.get("retry"):
                raise self._lost() from exc
            raise
        hit(AFTER_SNAPSHOT)
        return found

    def clear(self, tenant: TenantId, ids: Sequence[BlockId]) -> int:
        """Take the doom from blocks that are needed; how many had one."""
        return self.act(lambda tx: tx.execute("gc_clear_dooms", tenant=tenant, ids=ids))

    def doom(self, tenant: TenantId, ids: Sequence[BlockId]) -> int:
        """Put this pass's number on blocks that are not doomed yet; how many."""

        def move(tx: Transaction) -> int:
            count = tx.execute("gc_doom", tenant=tenant, number=self.number, ids=ids)
            hit(BEFORE_DOOM)
            return count

        count = self.act(move)
        hit(AFTER_DOOM)
        return count

    def delete(self, tenant: TenantId, ids: Sequence[BlockId], limit: int) -> tuple[int, int]:
        """Delete those whose doom is below `limit` when their row is locked; how many, and their stored bytes."""
        limit = min(limit, self.number)

        def move(tx: Transaction) -> tuple[int, int]:
            rows = tx.all("gc_delete", tenant=tenant, limit=limit, ids=ids)
            tx.execute("gc_drop_dooms", tenant=tenant, limit=limit, ids=ids)
            hit(BEFORE_DELETE)
            return len(rows), sum([row[0] for row in rows])

        gone = self.act(move)
        hit(AFTER_DELETE)
        return gone

    def forget_leases(self, tenant: TenantId, released_before_us: int) -> int:
        """Drop the rows of leases that were released before that, and of executions that ended before; how many
        leases. They keep nothing."""
        count = 0
        while page := self._engine.all(
            "old_released_leases", tenant=tenant, before=released_before_us, limit=FORGET_BATCH
        ):
            rows = [(tenant, row[0]) for row in page]
            count += self.act(lambda tx, rows=rows: tx.execute_many("forget_lease", rows))  # type: ignore[misc]
        if self._engine.one("old_end", tenant=tenant, before=released_before_us) is not None:
            self.act(lambda tx: tx.execute("forget_ends", tenant=tenant, before=released_before_us))
        return count

    def end_leases(self, tenant: TenantId, before_us: int) -> Iterator[int]:
        """End the leases of executions that are over and that nobody released, as runs that have ended or because none
        was used since that time; how many, execution by execution. What may still be needed stays."""
        for each in leased_executions(self._engine, tenant):
            if (each.is_ended_run or each.used_at_us <= before_us) and is_over(
                self._engine, tenant, each, before_us=before_us
            ):
                hit(BEFORE_HOLD)
                yield self.act(
                    lambda tx, each=each: end_leases(  # type: ignore[misc]
                        tx, tenant, each, before_us=before_us, now_us=self._clock(tx)
                    )
                )

    def forget_keys(self, tenant: TenantId, before_us: int) -> Iterator[int]:
        """Drop idempotency keys that were remembered up to that time and whose versions are gone; how many, page by
        page. On the way of a commit they count no more already."""
        first = {"after_time": -1, "after_owner": "", "after_workflow": "", "after_key": ""}
        for page in self._engine.pages("old_keys", first, limit=FORGET_BATCH, tenant=tenant, before=before_us):
            rows = [(tenant, *row[1:4], before_us) for row in page if row[4]]
            if rows:
                hit(BEFORE_FORGET)
                yield self.act(lambda tx, rows=rows: tx.execute_many("forget_keys", rows))  # type: ignore[misc]

    def finish(
        self, state: str, reason: str | None, done: dict[str, int], counts: dict[TenantId, tuple[int, int]]
    ) -> None:
        """Write down what was done and, for the next pass to compare with, how many blocks there are in each tenant and
        how many of them are needed; and give the lease back if it is still ours."""

        def move(tx: Transaction) -> None:
            if self._is_held(tx):
                for tenant, (total, referenced) in sorted(counts.items()):
                    tx.execute("gc_set_count", tenant=tenant, total=total, referenced=referenced, number=self.number)
            now = self._clock(tx)
            tx.execute("gc_finish_run", state=state, reason=reason, now=now, number=self.number, **done)
            tx.execute("gc_finish", number=self.number)

        self._engine.write(move)


def scan(source: Statements, statement: str, tenant: TenantId) -> Iterator[list[Row]]:
    """All rows of a scan in the order of blocks' ids, in pages: what is written meanwhile may show or not."""
    return source.pages(statement, {"after": b""}, limit=SCAN_PAGE, tenant=tenant)


def read_snapshot(tx: Statements, tenant: TenantId, tables: Sequence[RootTable]) -> Snapshot:
    """Every root of a tenant that this transaction sees."""
    roots: dict[str, list[BlockId]] = {}
    for table in tables:
        found = roots.setdefault(table.table, [])
        for page in tx.pages(table.statement, {"after": table.start}, limit=ROOT_PAGE, tenant=tenant):
            found += [BlockId(row[1]) for row in page if row[1] is not None]
    return Snapshot(roots, tx.value("oldest_session", tenant=tenant))
