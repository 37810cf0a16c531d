"""Lanes: the events of each aggregate, in order; and how rows get into them, in the producer's own transaction, behind
what they hold.

A producer locks its lanes, in key order, until it commits; so within a lane the order of places is the order of
commits, and no row appears behind one that was delivered before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Literal, NamedTuple

from analemma.catalog.engine.db import Transaction
from analemma.catalog.names import AGGREGATE_BYTES, check_part, check_texts
from analemma.catalog.port import OutboxEvent, TenantId

EventStatus = Literal["PENDING", "PROCESSING", "PROCESSED", "FAILED", "DEAD"]


class LaneKey(NamedTuple):
    """The events of one aggregate."""

    tenant: TenantId
    aggregate_type: str
    aggregate_id: str


@dataclass(frozen=True, slots=True)
class LanePlan:
    """The places that one transaction needs in one lane."""

    aggregate_type: str
    aggregate_id: str
    priority: int
    channel: str
    count: int


class PlacedEvent(NamedTuple):
    """An event, and how far its place is from the end of its lane."""

    event: OutboxEvent
    from_end: int


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


def enqueue(
    tx: Transaction, tenant: TenantId, events: Sequence[OutboxEvent], *, now_us: int, settling: LaneKey | None = None
) -> None:
    """Add events in any write transaction, to be delivered once it is committed; then call `catalog.wakeups.signal()`.

    A smaller `priority` is delivered earlier. Within an aggregate the order is that of commits, and of `events`. A lane
    of which the transaction settles an event is locked together with those of the events."""
    if events or settling is not None:
        lanes, placed = in_lanes(events, settling)
        tx.call("add_events", SimpleNamespace(tenant=tenant, now=now_us, lanes=lanes, events=placed))


def in_lanes(
    events: Sequence[OutboxEvent], settling: LaneKey | None = None
) -> tuple[Sequence[LanePlan], Sequence[PlacedEvent]]:
    """The lanes in the order in which they are locked, and the events with their places, in their order within each
    lane. A lane that is only locked has none. Invalid for what no database should be asked to store."""
    if not events and settling is None:
        return (), ()
    found: dict[tuple[str, str], list[OutboxEvent]] = {} if settling is None else {settling[1:]: []}
    for event in events:
        check_part(event.aggregate_type, "aggregate type")
        check_part(event.aggregate_id, "aggregate id", AGGREGATE_BYTES)
        check_texts((event.id, event.type, event.idempotency_key, event.trace))
        found.setdefault((event.aggregate_type, event.aggregate_id), []).append(event)
    ordered = sorted(found.items())
    lanes = [
        LanePlan(*key, min((event.priority for event in own), default=0), own[0].channel if own else "", len(own))
        for key, own in ordered
    ]
    # Each event counts its place from the end, as a lane is known by the first place behind those it reserved.
    return lanes, [PlacedEvent(event, len(own) - place) for _, own in ordered for place, event in enumerate(own)]
