"""Lanes of events as workers see them: what is claimed, what became of it, and what was written of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from analemma.catalog.engine.db import Row, Transaction
from analemma.catalog.port import TenantId
from analemma.errors import Conflict

EventStatus = Literal["PENDING", "PROCESSING", "PROCESSED", "FAILED", "DEAD"]


class LeaseLost(Conflict):
    """Somebody else has taken the lane over: what was done about its event must be undone, and left to them."""


class LaneKey(NamedTuple):
    """The events of one aggregate."""

    tenant: TenantId
    aggregate_type: str
    aggregate_id: str


class EventRow(NamedTuple):
    """An event as its row has it."""

    id: str
    seq: int
    type: str
    payload: bytes
    idempotency_key: str | None
    priority: int
    status: EventStatus
    attempts: int
    created_at_us: int
    trace: str | None


@dataclass(slots=True)
class ClaimedLane:
    """A lane under lease, and the first of its rows."""

    key: LaneKey
    fence: int
    done_seq: int
    """Known to be settled; a row whose transaction may yet be undone is not."""
    last_seq: int
    """The newest row that it has."""
    suspect: bool
    """A worker died in it: its next row is to be tried alone, after saying so."""
    reclaimed: bool
    """Whoever had it before did not give it back."""
    events: list[EventRow] = field(default_factory=list)


class EventFailure(NamedTuple):
    """What became of an event that could not be handled."""

    status: Literal["FAILED", "DEAD"]
    attempts: int
    delay_us: int | None
    """How long to wait for the next try; None if there is none."""
    reason: str


class BlamedLane(NamedTuple):
    """A lane in which a worker died, and how often its next row has been tried by that."""

    lane: ClaimedLane
    attempts: int


class LaneOutcome(NamedTuple):
    """What a worker has to say about a lane that it gives back."""

    lane: ClaimedLane
    done_seq: int
    """The last row that was handled; that of the claim, if none was."""
    failure: EventFailure | None = None
    """Of the row behind it. Not written if that is settled after all: so it can be said before that is known."""


class Finished(NamedTuple):
    """What became of what a worker said about lanes."""

    more: bool
    """Something that was given back is due again already."""
    delivered: int
    """Rows that are settled since the claims, whoever settled them."""
    failed: list[LaneOutcome]
    """Whose failures were written."""
    later: list[LaneOutcome]
    """To be said again, because somebody is writing to the lane."""
    lost: list[LaneOutcome]
    """Their leases are lost, and nothing was written of them."""

    def plus(self, more: Finished) -> Finished:
        """Both together."""
        return Finished(
            self.more or more.more,
            self.delivered + more.delivered,
            self.failed + more.failed,
            self.later + more.later,
            self.lost + more.lost,
        )


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Settles an event in the transaction that has its effect; called, it does so.

    Who writes blocks in that transaction locks the lane before them, among the lanes that it adds to, by key: as every
    producer does."""

    lane: LaneKey
    settle: Callable[[Transaction], None]

    def __call__(self, tx: Transaction) -> None:
        self.settle(tx)


Within = Callable[[Transaction], None]
"""What is to run in a transaction of somebody else's."""


def settled_lane(within: Within | None) -> LaneKey | None:
    """The lane of which that settles an event, if it does."""
    return within.lane if isinstance(within, Acknowledgement) else None


def preceded(within: Within | None, act: Within) -> Within:
    """The same, after something else; that alone, if there is nothing."""
    if within is None:
        return act

    def both(tx: Transaction) -> None:
        act(tx)
        within(tx)

    return Acknowledgement(within.lane, both) if isinstance(within, Acknowledgement) else both


def lease_lost(key: LaneKey) -> LeaseLost:
    """What a worker hears that was taken for dead."""
    return LeaseLost(
        f"the lease on {key.aggregate_type} {key.aggregate_id} was lost to another worker",
        hint="nothing was changed; whoever has it now delivers the event",
        aggregate_type=key.aggregate_type,
        aggregate_id=key.aggregate_id,
    )


def grouped(rows: Sequence[Row]) -> list[ClaimedLane]:
    """Rows of a claim, by lane. Those of a lane are neighbours, in order."""
    claimed: list[ClaimedLane] = []
    before = None
    for row in rows:
        key = row[:3]
        if key != before:
            before = key
            claimed.append(ClaimedLane(LaneKey(*key), row[3], row[4], row[5], row[6], row[7]))
        if row[8] is not None:
            claimed[-1].events.append(EventRow._make(row[8:]))
    return claimed
