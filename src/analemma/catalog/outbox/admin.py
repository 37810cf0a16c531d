"""Rows of the outbox as people see them: what is under way, what failed, letting that go on, and how each channel is
doing.

Only the first undelivered row of a lane can have failed, so failures are found through lanes, never by searching the
rows that were delivered. A channel whose receiver does not answer rests as a whole, for all workers: what is queued for
it costs nothing then."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import orjson

from analemma.catalog.engine.db import Statements, Transaction
from analemma.catalog.outbox.lanes import EventStatus, LaneKey
from analemma.catalog.port import TenantId

BEFORE_EVERYTHING = LaneKey(TenantId(-1), "", "")


class OutboxEntry(NamedTuple):
    """One event and what became of it."""

    id: str
    tenant: str
    aggregate_type: str
    aggregate_id: str
    seq: int
    type: str
    payload: bytes
    idempotency_key: str | None
    priority: int
    status: EventStatus
    attempts: int
    next_attempt_at_us: int | None
    failure_reason: str | None
    created_at_us: int
    processed_at_us: int | None
    trace: str | None
    tenant_number: TenantId

    @property
    def lane(self) -> LaneKey:
        """The events among which it has its place."""
        return LaneKey(self.tenant_number, self.aggregate_type, self.aggregate_id)

    @property
    def is_dead(self) -> bool:
        """Whether it was given up on, and nobody has done anything about that."""
        return self.status == "DEAD" and self.processed_at_us is None

    @property
    def discarded(self) -> bool:
        """Given up, by a person or for a newer version; its aggregate went on without it."""
        return self.status == "DEAD" and self.processed_at_us is not None

    def as_dict(self) -> dict[str, Any]:
        """The same for programs; the payload as it reads, or as hexadecimal digits if it is not JSON."""
        found = self._asdict()
        del found["tenant_number"]
        try:
            payload: Any = orjson.loads(self.payload)
        except orjson.JSONDecodeError:
            payload = self.payload.hex()
        return {**found, "payload": payload, "discarded": self.discarded}


class EventFilter(NamedTuple):
    """Which events are meant; what is None does not matter."""

    tenant: TenantId | None = None
    type: str | None = None
    aggregate_type: str | None = None
    aggregate_id: str | None = None


def stopped_events(
    source: Statements,
    statement: Literal["dead_letters", "failed_events"],
    chosen: EventFilter,
    *,
    after: LaneKey,
    limit: int,
) -> list[OutboxEntry]:
    """A page of the dead letters that park their lane, or of the events that wait for another try, by their lanes'
    keys."""
    place = {"after_tenant": after.tenant, "after_type": after.aggregate_type, "after_id": after.aggregate_id}
    return source.rows(OutboxEntry, statement, **chosen._asdict(), **place, limit=limit)


def find_event(source: Statements, tenant: TenantId, id: str) -> OutboxEntry | None:
    """The event of this id; None if housekeeping deleted it."""
    return source.row(OutboxEntry, "outbox_event", tenant=tenant, id=id)


def revive_event(tx: Transaction, lane: LaneKey, seq: int, *, now_us: int) -> bool:
    """Let a lane go on with the event that stopped it, with all its attempts before it; False if it does not stop it
    any more."""
    place = {**lane._asdict(), "seq": seq}
    released = tx.execute("release_lane", **place, done=seq - 1, now=now_us) == 1
    return released and tx.execute("revive_event", **place) == 1


class ChannelState(NamedTuple):
    """How a channel is doing. Times are the database's, in microseconds."""

    name: str
    rest_until_us: int
    failures: int
    since_us: int | None
    reason: str | None


class ChannelCounts(NamedTuple):
    """What a channel holds."""

    name: str
    undelivered: int
    lanes: int
    leased: int
    failed: int
    parked: int
    oldest_due_us: int | None


class ChannelFailure(NamedTuple):
    """What of a channel is tried again next, after it failed."""

    name: str
    due_us: int
    attempts: int
    reason: str | None


def channel_states(source: Statements) -> dict[str, ChannelState]:
    """How every channel is doing that ever rested, by name."""
    return {row[0]: ChannelState(*row) for row in source.all("channels")}


def channel_counts(source: Statements, tenant: TenantId | None) -> dict[str, ChannelCounts]:
    """What every channel holds that holds anything, by name."""
    return {row[0]: ChannelCounts(*row) for row in source.all("channel_lanes", tenant=tenant)}


def channel_failures(source: Statements, tenant: TenantId | None) -> dict[str, ChannelFailure]:
    """What is tried again next of every channel of which something failed, by name."""
    return {row[0]: ChannelFailure(*row) for row in source.all("channel_failures", tenant=tenant)}
