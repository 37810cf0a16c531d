"""What the collector asks of a catalog: the lease with its fence, roots in one snapshot, the scan of blocks, and the
three statements that act on them. The protocol, and why it loses nothing, is in docs/design/garbage-collection.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from analemma.canon.identity import BlockId
from analemma.catalog.engine import schema
from analemma.catalog.engine.db import Engine, Row, Statements, Transaction
from analemma.catalog.kernel.payloads import BEFORE_HOLD, end_leases, is_over, leased_executions
from analemma.catalog.port import TenantId
from analemma.errors import Conflict, Unavailable
from analemma.failpoints import declare, hit

AFTER_LEASE = declare("gc.after_lease", "a pass has its number, and nothing is marked")
AFTER_SNAPSHOT = declare("gc.after_snapshot", "the roots are read, and nothing is marked")
BEFORE_DOOM = declare("gc.before_doom", "blocks are doomed inside a transaction of a pass")
AFTER_DOOM = declare("gc.after_doom", "a batch of blocks is doomed")
BEFORE_DELETE = declare("gc.before_delete", "blocks are deleted inside a transaction of a pass")
BEFORE_FORGET = declare("gc.before_forget", "a pass has found idempotency keys that count no more, and none is gone")
AFTER_DELETE = declare("gc.after_delete", "a batch of blocks is deleted")

Result = TypeVar("Result")

SECOND_US = 1_000_000
ROOT_PAGE = 1000
SCAN_PAGE = 5000
FORGET_BATCH = 1000
LONGEST_LEASE_S = 86_400


class LeaseLost(Conflict):
    """Another pass has begun: this one must not write any more."""


class DatabaseClock(Protocol):
    """Tells the time that leases, grace and ages go by."""

    def __call__(self, source: Statements, /) -> int:
        """Microseconds since 1970-01-01Z."""


def database_clock(source: Statements, /) -> int:
    """The database's own time: the same for all collectors, however wrong their machines' clocks are."""
    return int(source.value("database_now"))


@dataclass(frozen=True, slots=True)
class RootTable:
    """A table whose rows keep blocks. Its statement takes tenant, after and limit, and answers pages of (key, root),
    by key; a root may be NULL."""

    table: str
    statement: str
    start: bytes | int = b""
    """What comes before every key."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that keeps blocks of one tenant, at one moment."""

    roots: dict[str, list[BlockId]]
    """By table."""
    oldest_session: int | None
    """The number of the pass that was the newest when the oldest open session began."""


@dataclass(frozen=True, slots=True)
class LeaseState:
    """Who collects."""

    number: int
    """Of the newest pass."""
    holder: str | None
    until_us: int
    now_us: int


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


class Collecting:
    """The collector's side of a SQL catalog. Only `Pass` writes to blocks."""

    def __init__(self, engine: Engine, *, clock: DatabaseClock = database_clock) -> None:
        self.engine = engine
        self.clock = clock

    def begin(self, holder: str, lease_s: float, *, store_id: str) -> Pass:
        """Take the lease; Conflict while another holds it, Unavailable if this is not the store or the schema that the
        collector was made for."""
        known = schema.newest()

        def take(tx: Transaction) -> int | LeaseState:
            version = tx.value("schema_version")
            if version != known:
                # A later schema may have roots in tables that this program does not read.
                raise Unavailable(
                    f"the database has schema {version}, this collector was made for {known}",
                    hint="use one release of analemma everywhere",
                )
            store = tx.value("store_id")
            if store != store_id:
                raise Unavailable(
                    f"this is store {store}, and the collector was started on store {store_id}",
                    hint="check what the database URL leads to, then start it again",
                )
            now = self.clock(tx)
            row = tx.one(
                "gc_take_lease",
                holder=holder,
                now=now,
                until=now + int(lease_s * SECOND_US),
                longest=now + LONGEST_LEASE_S * SECOND_US,
            )
            if row is None:
                return self._lease(tx)
            tx.execute("gc_close_dead_runs", **{"pass": row[0]}, now=now)
            tx.execute("gc_begin_run", **{"pass": row[0]}, holder=holder, now=now)
            return int(row[0])

        taken = self.engine.write(take)
        if isinstance(taken, LeaseState):
            left_s = max(0, (taken.until_us - taken.now_us) // SECOND_US)
            raise Conflict(
                f"{taken.holder} is collecting",
                hint=f"wait until it is done; if it died, its lease ends in {left_s} s",
                holder=taken.holder,
            )
        hit(AFTER_LEASE)
        return Pass(self, taken, holder, lease_s)

    def lease(self) -> LeaseState:
        """Who collects now."""
        with self.engine.transaction() as tx:
            return self._lease(tx)

    def runs(self, limit: int = 10) -> list[Run]:
        """What the newest passes did, newest first."""
        return self.engine.rows(Run, "gc_runs", limit=limit)

    def tenants(self) -> list[tuple[TenantId, str]]:
        """Every tenant's number and name."""
        return [(TenantId(row[0]), row[1]) for row in self.engine.all("gc_tenants")]

    def oldest_visit(self, tenant: TenantId | None) -> int:
        """When the newest run began that went through a tenant; given None, through the one that was left longest. 0:
        none ever did."""
        return int(self.engine.value("gc_oldest_visit", tenant=-1 if tenant is None else tenant))

    def last_count(self, tenant: TenantId) -> tuple[int, int] | None:
        """How many blocks the newest pass that went through found in a tenant, and how many of them were needed."""
        row = self.engine.one("gc_count", tenant=tenant)
        return None if row is None else (row[0], row[1])

    def unexplained_emptiness(self, tenant: TenantId) -> bool:
        """Of a tenant that has blocks and no roots: whether something must have taken its roots away."""
        return self.engine.one("unexplained_emptiness", tenant=tenant) is not None

    def grace_limit(self, grace_s: float) -> int:
        """Dooms below this number are at least that old."""
        with self.engine.transaction() as tx:
            return int(tx.value("gc_grace_limit", since=self.clock(tx) - int(grace_s * SECOND_US)))

    def look(self, tenant: TenantId, tables: Sequence[RootTable]) -> Snapshot:
        """The roots of one moment, for whoever does not mean to act on them."""
        with self.engine.transaction() as tx:
            return read_snapshot(tx, tenant, tables)

    def scan(self, tenant: TenantId) -> Iterator[BlockId]:
        """The id of every block, in order. Reads in pages, so what is written meanwhile may show or not."""
        for page in self.scan_pages(tenant):
            yield from page

    def scan_pages(self, tenant: TenantId) -> Iterator[list[BlockId]]:
        """The same by the page."""
        for rows in self._scan("scan_blocks", tenant):
            yield [row[0] for row in rows]

    def scan_doomed(self, tenant: TenantId) -> Iterator[tuple[BlockId, int]]:
        """Every doomed block and its number, in the same order and way."""
        for page in self.scan_doomed_pages(tenant):
            yield from page

    def scan_doomed_pages(self, tenant: TenantId) -> Iterator[list[tuple[BlockId, int]]]:
        """The same by the page."""
        return cast(Iterator[list[tuple[BlockId, int]]], self._scan("scan_doomed", tenant))

    def _scan(self, statement: str, tenant: TenantId) -> Iterator[list[Row]]:
        after = b""
        while rows := self.engine.all(statement, tenant=tenant, after=after, limit=SCAN_PAGE):
            yield rows
            if len(rows) < SCAN_PAGE:
                return
            after = rows[-1][0]

    def deletion_facts(self, tenant: TenantId, ids: Sequence[BlockId]) -> list[tuple[bytes | None, int, int]]:
        """By the upload that they lie in (None: inline): how many of these blocks there are, and their stored bytes."""
        rows = self.engine.all("deletion_facts", tenant=tenant, ids=ids)
        return [(row[0], row[1], row[2]) for row in rows]

    def blocks_in_upload(self, tenant: TenantId, upload: bytes) -> int:
        """How many blocks lie in one object."""
        return int(self.engine.value("blocks_in_upload", tenant=tenant, upload=upload))

    def number(self, source: Statements) -> int:
        """Of the newest pass."""
        return int(source.value("gc_lease"))

    def _lease(self, tx: Statements) -> LeaseState:
        (row,) = tx.all("gc_lease")
        return LeaseState(row[0], row[1], row[2], self.clock(tx))


class Pass:
    """One pass. Every transaction begins by making sure that the lease is still this pass's, and keeps it so."""

    def __init__(self, catalog: Collecting, number: int, holder: str, lease_s: float) -> None:
        self.number = number
        self._catalog = catalog
        self._engine = catalog.engine
        self._holder = holder
        self._lease_us = int(lease_s * SECOND_US)
        self._counts: dict[TenantId, tuple[int, int]] = {}

    def snapshot(self, tenant: TenantId, tables: Sequence[RootTable]) -> Snapshot:
        """All roots of one tenant, in one snapshot taken after the lease. What it saw is durable when this returns."""
        if self._engine.dialect == "sqlite":
            # Whoever dies with the machine cannot act on what was lost: nothing to make durable.
            with self._engine.snapshot() as tx:
                found = read_snapshot(tx, tenant, tables)
                if self._catalog.number(tx) != self.number:
                    raise _lost(self.number)
        else:
            try:
                with self._engine.snapshot() as tx:
                    tx.all("commit_durably")
                    found = read_snapshot(tx, tenant, tables)
                    # Fails if the lease was taken since the snapshot began: its row is another by then.
                    self._renew(tx)
            except Unavailable as exc:
                if exc.facts.get("retry"):
                    raise _lost(self.number) from exc
                raise
        hit(AFTER_SNAPSHOT)
        return found

    def renew(self) -> None:
        """Keep the lease for another while; LeaseLost if it is another's."""
        self._engine.write(self._renew)

    def clear(self, tenant: TenantId, ids: Sequence[BlockId]) -> int:
        """Take the doom from blocks that are needed; how many had one."""
        return self._act(lambda tx: tx.execute("gc_clear_dooms", tenant=tenant, ids=ids))

    def doom(self, tenant: TenantId, ids: Sequence[BlockId]) -> int:
        """Put this pass's number on blocks that are not doomed yet; how many."""

        def move(tx: Transaction) -> int:
            count = tx.execute("gc_doom", tenant=tenant, **{"pass": self.number}, ids=ids)
            hit(BEFORE_DOOM)
            return count

        count = self._act(move)
        hit(AFTER_DOOM)
        return count

    def delete(self, tenant: TenantId, ids: Sequence[BlockId], limit: int) -> tuple[int, int]:
        """Delete those whose doom is below `limit` when their row is locked; how many, and their stored bytes."""
        limit = min(limit, self.number)

        def move(tx: Transaction) -> tuple[int, int]:
            rows = tx.all("gc_delete", tenant=tenant, limit=limit, ids=ids)
            if self._engine.dialect == "sqlite":
                tx.execute("gc_drop_dooms", tenant=tenant, limit=limit, ids=ids)
            hit(BEFORE_DELETE)
            return len(rows), sum([row[0] for row in rows])

        gone = self._act(move)
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
            count += self._act(lambda tx, rows=rows: tx.execute_many("forget_lease", rows))  # type: ignore[misc]
        if self._engine.one("old_end", tenant=tenant, before=released_before_us) is not None:
            self._act(lambda tx: tx.execute("forget_ends", tenant=tenant, before=released_before_us))
        return count

    def end_leases(self, tenant: TenantId, before_us: int) -> Iterator[int]:
        """End the leases of executions that are over and that nobody released, as runs that have ended or because none
        was used since that time; how many, execution by execution. What may still be needed stays."""
        for each in leased_executions(self._engine, tenant):
            if (each.is_ended_run or each.used_at_us <= before_us) and is_over(
                self._engine, tenant, each, before_us=before_us
            ):
                hit(BEFORE_HOLD)
                yield self._act(
                    lambda tx, each=each: end_leases(  # type: ignore[misc]
                        tx, tenant, each, before_us=before_us, now_us=self._catalog.clock(tx)
                    )
                )

    def forget_keys(self, tenant: TenantId, before_us: int) -> Iterator[int]:
        """Drop idempotency keys that were remembered up to that time and whose versions are gone; how many, page by
        page. On the way of a commit they count no more already."""
        after: tuple[Any, ...] = (-1, "", "", "")
        while page := self._engine.all(
            "old_keys",
            tenant=tenant,
            before=before_us,
            after_time=after[0],
            after_owner=after[1],
            after_workflow=after[2],
            after_key=after[3],
            limit=FORGET_BATCH,
        ):
            rows = [(tenant, *row[1:4], before_us) for row in page if row[4]]
            if rows:
                hit(BEFORE_FORGET)
                yield self._act(lambda tx, rows=rows: tx.execute_many("forget_keys", rows))  # type: ignore[misc]
            after = page[-1][:4]

    def count(self, tenant: TenantId, total: int, referenced: int) -> None:
        """Leave what was found for the next pass to compare with, when this one finishes."""
        self._counts[tenant] = (total, referenced)

    def finish(self, state: str, reason: str | None, done: dict[str, int]) -> None:
        """Write down what was done, and give the lease back if it is still ours."""

        def move(tx: Transaction) -> None:
            if tx.one("gc_hold_lease") == (self.number,):
                for tenant, (total, referenced) in sorted(self._counts.items()):
                    tx.execute(
                        "gc_set_count", tenant=tenant, total=total, referenced=referenced, **{"pass": self.number}
                    )
            tx.execute(
                "gc_finish_run",
                state=state,
                reason=reason,
                now=self._catalog.clock(tx),
                **{"pass": self.number},
                **done,
            )
            tx.execute("gc_give_back_lease", holder=self._holder, **{"pass": self.number})

        self._engine.write(move)

    def _act(self, move: Callable[[Transaction], Result]) -> Result:
        def guarded(tx: Transaction) -> Result:
            row = tx.one("gc_hold_lease")
            if row is None or row[0] != self.number:  # guard: gc.held
                raise _lost(self.number)
            return move(tx)

        return self._engine.write(guarded)

    def _renew(self, tx: Transaction) -> None:
        until = self._catalog.clock(tx) + self._lease_us
        if tx.execute("gc_renew_lease", holder=self._holder, until=until, **{"pass": self.number}) != 1:
            raise _lost(self.number)


def read_snapshot(tx: Statements, tenant: TenantId, tables: Sequence[RootTable]) -> Snapshot:
    """Every root of a tenant that this transaction sees."""
    roots: dict[str, list[BlockId]] = {}
    for table in tables:
        found = roots.setdefault(table.table, [])
        after = table.start
        while page := tx.all(table.statement, tenant=tenant, after=after, limit=ROOT_PAGE):
            found += [BlockId(row[1]) for row in page if row[1] is not None]
            if len(page) < ROOT_PAGE:  # guard: gc.root.page
                break
            after = page[-1][0]
    return Snapshot(roots, tx.value("oldest_session", tenant=tenant))


def _lost(number: int) -> LeaseLost:
    return LeaseLost(f"pass {number} has lost its lease to another", hint="nothing is wrong: the other one goes on")
