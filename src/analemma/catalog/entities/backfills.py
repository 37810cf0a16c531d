"""Rows of backfills: what each goes through, how far its shards came, who runs it. Shards move in the transaction that
does the work, so that what is done is counted, once, and what is counted is done."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from analemma.catalog.engine.db import Engine, Statements, Transaction
from analemma.catalog.entities.views import AFTER_ALL_KEYS
from analemma.catalog.leases import database_clock
from analemma.catalog.port import TenantId
from analemma.errors import Conflict
from analemma.failpoints import declare, hit

BEFORE_PLAN = declare("backfill.before_plan", "a backfill and its shards are written inside the transaction")
AFTER_PLAN = declare("backfill.after_plan", "a backfill is planned, and nobody runs it")
AFTER_LEASE = declare("backfill.after_lease", "somebody runs a backfill, and nothing is done")
BEFORE_TRANSACTION = declare("backfill.before_transaction", "a page of a backfill is evaluated, and nothing is written")
BEFORE_ADVANCE = declare("backfill.before_advance", "work and progress of a backfill are written, nothing is committed")
AFTER_ADVANCE = declare("backfill.after_advance", "work and progress of a backfill are committed, but nobody knows")
BEFORE_LEAVE = declare("backfill.before_leave", "a backfill is at its end, or paused, and nothing says so")

SECOND_US = 1_000_000
RUNNING = "RUNNING"
SAMPLED_ERRORS = 20
"""So many of each shard's failures are written down; all are counted."""


class ShardMoved(Conflict):
    """Somebody else runs the backfill, or nobody may any more: nothing of what was to go with it is written."""


class Counts(NamedTuple):
    """What was done."""

    done: int = 0
    """Entities, or events, that were gone through; each once."""
    changed: int = 0
    """Versions that were compiled to something else than they were, or events that are delivered again."""
    slices: int = 0
    """Slices that were written, tombstones among them."""
    tombstones: int = 0
    requested: int = 0
    """Sinks that were asked to ship an entity."""
    failed: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(*map(sum, zip(self, other, strict=True)))


class NewShard(NamedTuple):
    """A range of entities to go through."""

    level: int
    type: str
    first: int
    last: int
    total: int
    cursor: str


class ShardRow(NamedTuple):
    """Where a shard stands."""

    shard: int
    level: int
    type: str
    first: int
    last: int
    total: int
    cursor: str
    step: int
    failed: int


class BackfillRow(NamedTuple):
    """A backfill, and what its shards did in all."""

    number: int
    tenant_name: str
    tenant: TenantId
    id: str
    kind: str
    scope: str
    options: str
    plan: str
    state: str
    reason: str | None
    fence: int
    holder: str | None
    lease_until_us: int | None
    created_at_us: int
    started_at_us: int | None
    finished_at_us: int | None
    shards: int
    finished_shards: int
    total: int
    counts: Counts


class ErrorRow(NamedTuple):
    """Something that failed."""

    entity: str
    kind: str
    reason: str


class ScopeCounts(NamedTuple):
    """What a type has within a scope."""

    entities: int
    never_compiled: int
    behind: int
    """Compiled, and not from their newest version."""
    other_rules: int
    """Compiled by other rules than those of today."""
    raw_bytes: int
    compiled: int


class BackfillEntity(NamedTuple):
    """An entity that a backfill comes to."""

    number: int
    key: str
    newest_raw: int
    newest_compiled: int | None
    serving_version: int | None
    ship_seq: int
    compile_seq: int


@dataclass(frozen=True, slots=True)
class EntityChoice:
    """Which entities of a type."""

    type: str
    prefix: str = ""
    ids: tuple[str, ...] | None = None
    fingerprint: str = ""
    """Of the rules that apply."""
    stale: bool = False
    """Only those that were not compiled by these rules from their newest version."""
    compiled: bool = False
    """Only those that were compiled."""

    def columns(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "low": self.prefix,
            "high": self.prefix + AFTER_ALL_KEYS,
            "ids": self.ids,
            "fingerprint": self.fingerprint,
        }

    def conditions(self) -> dict[str, Any]:
        return {**self.columns(), "stale": self.stale, "compiled": self.compiled}


@dataclass(frozen=True, slots=True)
class Advance:
    """A shard's move."""

    backfill: int
    fence: int
    shard: int
    step: int
    """The one that it leaves."""
    cursor: str
    counts: Counts
    finished: bool = False
    errors: tuple[ErrorRow, ...] = ()


class Backfills:
    """The backfills of all tenants."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def add(
        self,
        tenant: TenantId,
        *,
        id: str,
        kind: str,
        scope: str,
        options: str,
        plan: str,
        shards: Sequence[NewShard],
    ) -> None:
        """Write down what is planned."""

        def move(tx: Transaction) -> None:
            (row,) = tx.all(
                "add_backfill",
                tenant=tenant,
                id=id,
                kind=kind,
                scope=scope,
                options=options,
                plan=plan,
                now=database_clock(tx),
            )
            tx.execute_many("add_backfill_shard", [(row[0], place, *shard) for place, shard in enumerate(shards)])
            hit(BEFORE_PLAN)

        self.engine.write(move)
        hit(AFTER_PLAN)

    def find(self, id: str, tenant: TenantId | None = None) -> BackfillRow | None:
        """One, in a tenant or in any."""
        row = self.engine.one("backfill", id=id, tenant=tenant)
        return None if row is None else BackfillRow._make((*row[:19], Counts(*row[19:25])))

    def newest(self, tenant: TenantId | None, *, before: int, limit: int) -> list[tuple[str, int]]:
        """Ids and numbers, newest first."""
        return [(row[0], row[1]) for row in self.engine.all("backfills", tenant=tenant, before=before, limit=limit)]

    def errors(self, number: int, limit: int) -> list[ErrorRow]:
        """What failed, as far as it was written down."""
        return self.engine.rows(ErrorRow, "backfill_errors", backfill=number, limit=limit)

    def take(self, number: int, holder: str, lease_s: float, *, paused: bool) -> int | None:
        """Take it, one that is paused only if that is meant; the fence, or None if it cannot be taken."""

        def move(tx: Transaction) -> int | None:
            now = database_clock(tx)
            until = now + int(lease_s * SECOND_US)
            return tx.row(int, "take_backfill", number=number, holder=holder, now=now, until=until, paused=int(paused))

        fence = self.engine.write(move)
        if fence is not None:
            hit(AFTER_LEASE)
        return fence

    def renew(self, number: int, fence: int, lease_s: float) -> str | None:
        """Keep it; its state, or None if another has it now."""

        def move(tx: Transaction) -> str | None:
            until = database_clock(tx) + int(lease_s * SECOND_US)
            if tx.execute("renew_backfill", number=number, fence=fence, until=until) != 1:
                return None
            state: str = tx.value("backfill_standing", number=number)
            return state

        return self.engine.write(move)

    def standing(self, number: int, fence: int) -> str | None:
        """Its state, or None if another has it now."""
        row = self.engine.one("backfill_standing", number=number)
        return None if row is None or row[1] != fence else str(row[0])

    def leave(self, number: int, fence: int, state: str, reason: str | None) -> None:
        """Give it back, in this state unless somebody paused or cancelled it."""
        hit(BEFORE_LEAVE)
        over = int(state in ("DONE", "FAILED"))

        def move(tx: Transaction) -> None:
            now = database_clock(tx)
            tx.execute("leave_backfill", number=number, fence=fence, state=state, reason=reason, over=over, now=now)

        self.engine.write(move)

    def pause(self, number: int, reason: str) -> bool:
        """Whoever runs it is to stop."""
        return self.engine.execute("pause_backfill", number=number, reason=reason) == 1

    def cancel(self, number: int, reason: str) -> bool:
        """Whoever runs it is to stop, and nobody is to go on."""

        def move(tx: Transaction) -> bool:
            return tx.execute("cancel_backfill", number=number, reason=reason, now=database_clock(tx)) == 1

        return self.engine.write(move)

    def now_us(self) -> int:
        """By the database's clock, which leases go by."""
        return database_clock(self.engine)

    def shards(self, number: int) -> list[ShardRow]:
        """Those that are not finished, in their order."""
        return self.engine.rows(ShardRow, "backfill_shards", backfill=number)

    def shard(self, number: int, shard: int, fence: int) -> tuple[ShardRow, bool, str] | None:
        """Where a shard stands, whether it is finished, and the backfill's state; None if another has it now."""
        row = self.engine.one("backfill_shard", backfill=number, shard=shard)
        if row is None or row[11] != fence:
            return None
        return ShardRow(*row[:9]), bool(row[9]), row[10]

    def write(self, advance: Advance, work: Any = None) -> None:
        """Move a shard in a transaction of its own, with some work, `work(tx)`."""

        def move(tx: Transaction) -> None:
            if work is not None:
                work(tx)
            advance_shard(tx, advance)

        hit(BEFORE_TRANSACTION)
        self.engine.write(move)
        hit(AFTER_ADVANCE)


def advance_shard(tx: Transaction, advance: Advance) -> None:
    """Move a shard, in the transaction that does the work; ShardMoved, so that nothing of it stays, if it has moved or
    may not any more."""
    counts = advance.counts
    moved = tx.execute(
        "advance_backfill",
        backfill=advance.backfill,
        fence=advance.fence,
        shard=advance.shard,
        step=advance.step,
        cursor=advance.cursor,
        finished=advance.finished,
        **counts._asdict(),
    )
    if moved != 1:
        raise ShardMoved("the backfill was paused, cancelled, or taken over by another process")
    where = advance.backfill, advance.shard, advance.step
    tx.execute_many("add_backfill_error", [(*where, place, *each) for place, each in enumerate(advance.errors)])
    hit(BEFORE_ADVANCE)


def scope_counts(source: Statements, tenant: TenantId, choice: EntityChoice) -> ScopeCounts:
    """What a type has within a scope. No body is read."""
    (row,) = source.all("backfill_counts", tenant=tenant, **choice.columns())
    return ScopeCounts(*map(int, row))


def scope_ranges(source: Statements, tenant: TenantId, choice: EntityChoice, ranges: int) -> list[tuple[int, int, int]]:
    """The entities chosen, in ranges of about the same count: first and last number, and how many there are."""
    rows = source.all("backfill_ranges", tenant=tenant, ranges=ranges, **choice.conditions())
    return [(int(first), int(last), int(count)) for first, last, count in rows]


def scope_page(
    source: Statements, tenant: TenantId, choice: EntityChoice, *, first: int, last: int, limit: int
) -> list[BackfillEntity]:
    """A page of the entities chosen, by number."""
    return source.rows(
        BackfillEntity, "backfill_page", tenant=tenant, first=first, last=last, limit=limit, **choice.conditions()
    )


def raw_versions(source: Statements, entity: int) -> list[int]:
    """All versions of an entity, oldest first."""
    return [row[0] for row in source.all("raw_versions", entity=entity)]


class StoredEntry(NamedTuple):
    """An index entry as it lies there."""

    type: str
    value: str
    target_type: str | None
    target_key: str | None
    tenant: int
    entity_type: str
    waiting: int
    """0: of the newest compiled version and of the served one; 1: only of the former; 2: only of the latter."""


def stored_entries(source: Engine, entities: Collection[int]) -> dict[int, list[StoredEntry]]:
    """Everything that each of these entities, by number, is found by."""
    found: dict[int, list[StoredEntry]] = {number: [] for number in entities}
    for number, *entry in source.all("stored_entries", entities=list(found)):
        found[number].append(StoredEntry(*entry))
    return found
