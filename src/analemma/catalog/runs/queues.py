"""Queues: how many of their runs may be worked on at a time, how many may begin within a period, and which is next;
and schedules, of which a tick is passed in the transaction of the run that it begins, so that it is passed once.

A place in a queue is the lease of a run, and nothing else: whoever dies gives it back when the lease is over. Runs of
one priority stand in a lane, in the order in which they became due; those that have begun, and those that these wait
for, before those that have not. A run whose lane is not there is found by nobody: a lane goes when no run has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from analemma.catalog.engine.db import Engine, Row, Transaction
from analemma.catalog.port import TenantId
from analemma.catalog.runs.runs import AFTER_CLAIM, RunRow, as_us, claim_due
from analemma.failpoints import declare, hit

BEFORE_CLAIM = declare("queue.before_claim", "a queue has a place, and the run that gets it is not taken yet")


class Lane(NamedTuple):
    """The runs of one priority in a queue, and the limits of that."""

    tenant: TenantId
    queue: str
    priority: int
    begun_us: int | None
    """When the first became due of those that go on, or that one which has begun waits for; None: none is."""
    queued_us: int | None
    """The same of the others, which have not begun."""
    concurrency: int | None
    rate: int | None

    @property
    def is_limited(self) -> bool:
        """Whether somebody has to count."""
        return self.concurrency is not None or self.rate is not None

    @property
    def since_us(self) -> int | None:
        """When what is next became due."""
        return self.queued_us if self.begun_us is None else self.begun_us


class Queue(NamedTuple):
    """A queue, as it was when it was looked at."""

    name: str
    concurrency: int | None
    """How many of its runs may be worked on at a time, by all workers together; None: any number."""
    rate: int | None
    """How many may begin within `per_s`; None: any number."""
    per_s: float | None
    waiting: int
    """Runs that nobody has begun."""
    working: int
    """Runs that somebody works on."""

    def to_value(self) -> dict[str, Any]:
        """As JSON."""
        return self._asdict()


def tidy_lanes(engine: Engine, tenant: TenantId) -> int:
    """Drop the lanes that no run has any more, of whatever status; how many."""

    def drop(tx: Transaction) -> int:
        # First: whoever is about to commit a run into one of them has done so then, and nobody else begins to.
        tx.execute("hold_lanes")
        return tx.execute("drop_lanes", tenant=tenant)

    return engine.write(drop)


def claim_next(
    engine: Engine, *, holder: str, lease_s: float, tenant: TenantId | None = None
) -> list[tuple[TenantId, RunRow]]:
    """Take the run of a tenant, or of all, that somebody has to look at next: of each queue that of the highest
    priority, and of the queues, and the runs of none, that which has been due the longest."""
    taking = {"holder": holder, "lease": as_us(lease_s)}
    queues = next_lanes(engine.rows(Lane, "due_lanes", tenant=tenant))
    plain_us = engine.value("first_due", tenant=tenant) if queues else None
    for lanes in queues:
        if plain_us is not None and plain_us <= (lanes[0].since_us or 0):
            if claimed := claim_due(engine, tenant=tenant, **taking):
                return claimed
            plain_us = None
        if (row := _claim_of(engine, lanes, taking)) is not None:
            return [(lanes[0].tenant, row)]
    return claim_due(engine, tenant=tenant, **taking)


def next_lanes(lanes: Iterable[Lane]) -> list[list[Lane]]:
    """Of each queue the lanes in which something is due, the highest priority first; the queue whose next run has been
    due the longest before the others."""
    queues: dict[tuple[TenantId, str], list[Lane]] = {}
    for lane in sorted(lanes, key=lambda each: -each.priority):
        if lane.since_us is not None:
            queues.setdefault((lane.tenant, lane.queue), []).append(lane)
    return sorted(queues.values(), key=lambda found: found[0].since_us or 0)


class _Refused(Enum):
    """Why nothing of a lane was taken."""

    NONE_DUE = "none due"
    """Somebody else was faster."""
    NO_PLACE = "no place"
    """As many are worked on as may be."""
    NO_BEGINNING = "no beginning"
    """As many have begun as may; those that have may go on."""


def _claim_of(engine: Engine, lanes: Iterable[Lane], taking: Mapping[str, Any]) -> RunRow | None:
    """The next run of a queue, if it has a place for it. What one lane was told holds for the others: it is not asked
    for each of them again."""
    may_begin = True
    for lane in lanes:
        if not may_begin and lane.begun_us is None:
            continue
        taken = _claim(engine, lane, taking)
        if isinstance(taken, RunRow):
            return taken
        if taken is _Refused.NO_PLACE:
            return None
        may_begin = may_begin and taken is not _Refused.NO_BEGINNING
    return None


def _claim(engine: Engine, lane: Lane, taking: Mapping[str, Any]) -> RunRow | _Refused:
    """The next run of a lane, if its queue has a place: counted and taken in one transaction, one claim at a time."""
    place = {"tenant": lane.tenant, "queue": lane.queue}
    asked = {**place, "priority": lane.priority, **taking}

    def take(tx: Transaction) -> Row | _Refused:
        limits = tx.one("hold_queue", **place) if lane.is_limited else None
        concurrency, rate, period, started, now = limits or (None, None, None, 0, 0)
        if concurrency is not None:
            held = tx.one("queue_held", **place)
            if held is not None and held[0] >= concurrency:  # guard: queue.limit
                return _Refused.NO_PLACE
        hit(BEFORE_CLAIM)
        begun = tx.all("claim_begun", **asked)
        if begun:
            return begun[0]
        if rate is not None:
            before = tx.one("queue_starts", seq=started + 1 - rate, **place)
            if before is not None and before[0] > now - period:  # guard: queue.rate
                return _Refused.NO_BEGINNING
        queued = tx.all("claim_queued", **asked)
        if queued and rate is not None:
            tx.execute("count_start", **place)
            tx.execute("put_start", seq=started + 1, at=now, **place)
            tx.execute("drop_starts", seq=started + 1 - rate, **place)
        return queued[0] if queued else _Refused.NONE_DUE

    taken = engine.write(take)
    if isinstance(taken, _Refused):
        return taken
    hit(AFTER_CLAIM)
    return RunRow(*taken)


class ScheduleRow(NamedTuple):
    """A schedule. `document`, `definition` and `error` are JSON; times are microseconds."""

    tenant: TenantId
    name: str
    document: str
    definition: str
    revision: int
    paused: int
    next_at_us: int | None
    look_at_us: int | None
    last_at_us: int | None
    error: str | None
    created_at_us: int
    updated_at_us: int


def due_schedules(engine: Engine, *, now_us: int, tenant: TenantId | None) -> list[ScheduleRow]:
    """Of a tenant, or of all: what has a tick by now, a hundred at a time."""
    return engine.rows(ScheduleRow, "due_schedules", now=now_us, tenant=tenant, limit=100)
