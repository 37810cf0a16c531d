"""What the collector of archives asks of a catalog: a tenant's lease with its fence, one snapshot of what is protected,
marks on what is nobody's, and claims. Units are named as they lie in the object store, `workspace/op_id/`, and streams
of them come in that order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from analemma.catalog.archives.workspaces import AppearedMeanwhile, SqlWorkspaces
from analemma.catalog.collecting.marks import LONGEST_LEASE_S, SECOND_US, LeaseLost
from analemma.catalog.engine import schema
from analemma.catalog.engine.db import Row, Statements, Transaction
from analemma.catalog.port import TenantId
from analemma.errors import Conflict, Unavailable
from analemma.failpoints import declare, hit

AFTER_LEASE = declare("archive_gc.after_lease", "a pass over archives has its number, and nothing is listed")
AFTER_MARK = declare("archive_gc.after_mark", "a batch of archives is marked as nobody's")
BEFORE_CLAIM = declare("archive_gc.before_claim", "a batch of archives is claimed inside a transaction")
AFTER_CLAIM = declare("archive_gc.after_claim", "a batch of archives is claimed, and its objects are there")

PAGE = 2000
CLAIM_TRIES = 3
MOST_UNLISTED = 10_000
"""So many of them in a pass: it is one transaction."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Protected:
    """A unit that a workspace needs."""

    unit: str
    kept: bool
    """It is what the workspace has, not only what it is about to have."""
    updated_at_us: int
    """When its workspace was last changed."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A unit that a pass found to be nobody's, and when the first one did."""

    unit: str
    first_orphan_detected_us: int
    number: int
    """Of that pass."""


@dataclass(frozen=True, slots=True)
class ArchiveLease:
    """Who collects a tenant's archives."""

    number: int
    """Of the newest pass; 0: there was none."""
    holder: str | None
    until_us: int
    started_at_us: int
    needed: int | None
    """How many units were needed when a pass last went through."""


class ArchiveSnapshot:
    """A tenant's workspaces and marks at one moment. What it hands out is read while that is used."""

    def __init__(self, tx: Statements, tenant: TenantId, now_us: int, lease: ArchiveLease) -> None:
        self.now_us = now_us
        self.lease = lease
        self._tx = tx
        self._tenant = tenant

    def protected(self) -> Iterator[Protected]:
        """Every unit that a workspace which is not deleted has or is about to have, in order."""
        return _protected(_pages(self._tx, "protected_units", self._tenant, "/"))

    def protected_workspaces(self) -> int:
        """How many workspaces these are of."""
        return int(self._tx.value("protected_count", tenant=self._tenant))

    def marks(self) -> Iterator[Mark]:
        """Every mark, in order."""
        for row in _pages(self._tx, "archive_marks", self._tenant, ""):
            yield Mark(*row)

    def known(self, units: Sequence[str]) -> set[str]:
        """Those of these units that this catalog has ever heard of."""
        pairs = [unit.split("/")[:2] for unit in units]
        rows = self._tx.all("known_units", tenant=self._tenant, units=pairs)
        return {f"{workspace}/{op_id}/" for workspace, op_id in rows}

    def kept(self, units: Sequence[str]) -> set[str]:
        """Those of these units that are there according to their rows, and that nobody needs."""
        pairs = [unit.split("/")[:2] for unit in units]
        rows = self._tx.all("kept_for_nobody", tenant=self._tenant, units=pairs)
        return {f"{workspace}/{op_id}/" for workspace, op_id in rows}


class ArchiveMarks:
    """The collector's side of all tenants' archives. Only `ArchivePass` writes."""

    def __init__(self, workspaces: SqlWorkspaces) -> None:
        self.workspaces = workspaces
        self.engine = workspaces.engine
        self.clock = workspaces.clock

    def lease(self, tenant: TenantId) -> ArchiveLease:
        """Who collects now."""
        return _lease(self.engine, tenant)

    def now_us(self) -> int:
        """The database's time."""
        return self.clock(self.engine)

    def begin(self, tenant: TenantId, holder: str, lease_s: float, *, store_id: str) -> ArchivePass:
        """Take a tenant's lease; Conflict while another holds it, Unavailable if this is not the store or the schema
        that the collector was made for."""
        known = schema.newest()

        def take(tx: Transaction) -> int | ArchiveLease:
            version = tx.value("schema_version")
            if version != known:
                raise Unavailable(
                    f"the database has schema {version}, this collector was made for {known}",
                    hint="use one release of analemma everywhere",
                )
            store = tx.value("store_id")
            if store != store_id:  # guard: unit.store
                raise Unavailable(
                    f"this is store {store}, and the collector was started on store {store_id}",
                    hint="check what the database URL leads to, then start it again",
                )
            now = self.clock(tx)
            row = tx.one(
                "archive_gc_take",
                tenant=tenant,
                holder=holder,
                now=now,
                until=now + int(lease_s * SECOND_US),
                longest=now + LONGEST_LEASE_S * SECOND_US,
            )
            return _lease(tx, tenant) if row is None else int(row[0])

        taken = self.engine.write(take)
        if isinstance(taken, ArchiveLease):
            left_s = max(0, (taken.until_us - self.now_us()) // SECOND_US)
            raise Conflict(
                f"{taken.holder} is collecting archives",
                hint=f"wait until it is done; if it died, its lease ends in {left_s} s",
                holder=taken.holder,
            )
        hit(AFTER_LEASE)
        return ArchivePass(self, tenant, taken, lease_s)

    @contextmanager
    def snapshot(self, tenant: TenantId) -> Iterator[ArchiveSnapshot]:
        """One moment of the catalog, for as long as the block lasts."""
        with self.engine.snapshot() as tx:
            yield ArchiveSnapshot(tx, tenant, self.clock(tx), _lease(tx, tenant))

    def changed(self, tenant: TenantId, since_us: int) -> Iterator[Protected]:
        """What workspaces that were changed since then need now."""
        return _protected(_pages(self.engine, "changed_units", tenant, "/", since=since_us))


class ArchivePass:
    """One pass over a tenant's archives. Every transaction begins by making sure that the lease is still this pass's,
    and keeps it so until it ends."""

    def __init__(self, catalog: ArchiveMarks, tenant: TenantId, number: int, lease_s: float) -> None:
        self.number = number
        self._catalog = catalog
        self._engine = catalog.engine
        self._tenant = tenant
        self._lease_us = int(lease_s * SECOND_US)

    def renew(self) -> None:
        """Keep the lease for another while; LeaseLost if it is another's."""

        def move(tx: Transaction) -> int:
            until = self._catalog.clock(tx) + self._lease_us
            return tx.execute("archive_gc_renew", tenant=self._tenant, until=until, **{"pass": self.number})

        if self._engine.write(move) != 1:
            raise _lost(self.number)

    def mark(self, units: Sequence[str]) -> int:
        """Write down that these are nobody's, where nothing says so yet; how many."""
        count = self._act(
            lambda tx: tx.execute(
                "add_archive_marks",
                tenant=self._tenant,
                now=self._catalog.clock(tx),
                units=units,
                **{"pass": self.number},
            )
        )
        hit(AFTER_MARK)
        return count

    def mark_unlisted(self) -> int:
        """Mark units that are there according to their rows, that nobody needs, and that have no mark; how many. After
        all that was listed was marked, these are not in the object store."""
        count = self._act(
            lambda tx: tx.execute(
                "add_unlisted_marks",
                tenant=self._tenant,
                now=self._catalog.clock(tx),
                limit=MOST_UNLISTED,
                **{"pass": self.number},
            )
        )
        hit(AFTER_MARK)
        return count

    def clear(self, units: Sequence[str]) -> int:
        """Take the marks from these; how many had one."""
        return self._act(
            lambda tx: tx.execute("drop_archive_marks", tenant=self._tenant, units=units),
        )

    def claim(self, units: Sequence[str], delay_us: int, *, unknown_too: bool = False) -> list[str]:
        """Make those of the units the collector's, durably, that are nobody's under their workspaces' row locks, and
        whose mark is old enough: the exact check before anything is deleted. Unless `unknown_too`, only of those that
        the catalog knows."""

        def move(tx: Transaction) -> list[str]:
            since = self._catalog.clock(tx) - delay_us
            due = tx.all("due_archive_marks", tenant=self._tenant, units=units, since=since, **{"pass": self.number})
            claimed = []
            for (unit,) in due:
                workspace, op_id, _ = unit.split("/")
                workspaces = self._catalog.workspaces
                known = unknown_too or workspaces.held_unit(tx, self._tenant, workspace, op_id) is not None
                if known and workspaces.claim_in(tx, self._tenant, workspace, op_id, deleted_before_us=since):
                    claimed.append(unit)
            hit(BEFORE_CLAIM)
            return claimed

        for attempt in range(CLAIM_TRIES):
            try:
                claimed = self._act(move, durable=True)
                break
            except AppearedMeanwhile:
                if attempt == CLAIM_TRIES - 1:
                    raise
        hit(AFTER_CLAIM)
        return claimed

    def finish(self, needed: int | None) -> None:
        """Give the lease back if it is still ours; with how many units were needed, if the pass went through."""
        self._engine.write(
            lambda tx: tx.execute("archive_gc_finish", tenant=self._tenant, needed=needed, **{"pass": self.number})
        )

    def _act(self, move: Callable[[Transaction], Result], *, durable: bool = False) -> Result:
        def guarded(tx: Transaction) -> Result:
            row = tx.one("archive_gc_hold", tenant=self._tenant)
            if row is None or row[0] != self.number:  # guard: unit.held
                raise _lost(self.number)
            return move(tx)

        return self._engine.write(guarded, durable=durable)


def _pages(source: Statements, statement: str, tenant: TenantId, ending: str, **more: Any) -> Iterator[Row]:
    """The rows of a statement that goes on after what it answered last."""
    after = ""
    while rows := source.all(statement, tenant=tenant, after=after, limit=PAGE, **more):
        yield from rows
        if len(rows) < PAGE:
            return
        after = rows[-1][0] + ending


def _protected(rows: Iterator[Row]) -> Iterator[Protected]:
    for workspace, op_id, archive_op, updated_at in rows:
        units = [Protected(f"{workspace}/{op}/", op == archive_op, updated_at) for op in {op_id, archive_op} - {None}]
        yield from sorted(units, key=lambda each: each.unit)


def _lease(source: Statements, tenant: TenantId) -> ArchiveLease:
    row = source.one("archive_gc", tenant=tenant)
    return ArchiveLease(0, None, 0, 0, None) if row is None else ArchiveLease(*row)


def _lost(number: int) -> LeaseLost:
    return LeaseLost(
        f"pass {number} over archives has lost its lease to another", hint="nothing is wrong: the other one goes on"
    )
