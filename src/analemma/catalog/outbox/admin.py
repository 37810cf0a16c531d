"""What people ask of the outbox: how it is doing, what failed, and what is to become of that.

Only the first undelivered row of a lane can have failed, so failures are found through lanes, never by searching the
rows that were delivered."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from analemma.catalog.engine.db import Engine, Transaction
from analemma.catalog.leases import database_clock
from analemma.catalog.outbox.events import enqueue
from analemma.catalog.outbox.lanes import EventStatus, LaneKey
from analemma.catalog.port import OutboxEvent, TenantId
from analemma.failpoints import declare, hit

AFTER_HOUSEKEEPING = declare("outbox.after_housekeeping", "some of the rows that were settled long ago are deleted")

BEFORE_EVERYTHING = LaneKey(TenantId(-1), "", "")


class LaneCounts(NamedTuple):
    """What is under way, in lanes and rows."""

    undelivered: int
    lanes: int
    leased: int
    stale: int
    failed: int
    parked: int


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


class OutboxRows:
    """Looks at the outbox and tends it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def now_us(self) -> int:
        """The time that leases and ages go by."""
        return database_clock(self._engine)

    def lane_counts(self, tenant: TenantId | None) -> LaneCounts:
        """What is under way; costs what is under way, not what was."""
        return self._engine.rows(LaneCounts, "outbox_lanes", tenant=tenant)[0]

    def oldest_us(self, tenant: TenantId | None) -> int | None:
        """When the oldest event was made that a worker has still to deliver."""
        oldest_us: int | None = self._engine.value("outbox_oldest", tenant=tenant)
        return oldest_us

    def settled_counts(self, tenant: TenantId | None) -> tuple[int, int]:
        """How many rows are kept that were delivered, and that were given up; reads all of them."""
        ((delivered, dead),) = self._engine.all("outbox_settled", tenant=tenant)
        return delivered, dead

    def events(self, id: str, tenant: TenantId | None) -> list[OutboxEntry]:
        """The event of this id, of one tenant; or those of all tenants, in each of which there is one at most."""
        return self._engine.rows(OutboxEntry, "outbox_event", id=id, tenant=tenant)

    def dead(self, chosen: EventFilter, *, after: LaneKey = BEFORE_EVERYTHING, limit: int = 100) -> list[OutboxEntry]:
        """Dead letters that park their lane, in the order of their lanes' keys."""
        return self._page("dead_letters", chosen, after, limit)

    def failed(self, chosen: EventFilter, *, after: LaneKey = BEFORE_EVERYTHING, limit: int = 100) -> list[OutboxEntry]:
        """Events that wait for another try."""
        return self._page("failed_events", chosen, after, limit)

    def revive(self, event: OutboxEntry) -> bool:
        """Have a lane try again the event at which it stopped; False if it did not stop there, or goes on already."""

        return self._engine.write(lambda tx: revive_event(tx, event.lane, event.seq, now_us=database_clock(tx)))

    def deliver_again(self, event: OutboxEntry, *, id: str, now_us: int) -> None:
        """Add a copy of a settled event at the end of its lane. Under a key of its own: consumers know the old one."""
        key = None if event.idempotency_key is None else f"{event.idempotency_key}#{id}"
        copy = OutboxEvent(
            id=id,
            aggregate_type=event.lane.aggregate_type,
            aggregate_id=event.lane.aggregate_id,
            type=event.type,
            payload=event.payload,
            idempotency_key=key,
            priority=event.priority,
            trace=event.trace,
        )
        self._engine.write(lambda tx: enqueue(tx, event.lane.tenant, [copy], now_us=now_us))

    def discard(self, event: OutboxEntry, reason: str) -> bool:
        """Give an event up, so that its lane goes on behind it; False if it did not stop the lane."""

        def move(tx: Transaction) -> bool:
            now = database_clock(tx)
            place = {**event.lane._asdict(), "seq": event.seq}
            if tx.execute("skip_in_lane", **place, now=now) != 1:
                return False
            return tx.execute("discard_event", **place, now=now, reason=reason) == 1

        return self._engine.write(move)

    def housekeep(self, *, processed_before_us: int, dead_before_us: int, batch: int) -> int:
        """Delete one batch of rows that were settled before these times; how many."""
        count = self._engine.execute(
            "housekeep_outbox", processed_before=processed_before_us, dead_before=dead_before_us, limit=batch
        )
        hit(AFTER_HOUSEKEEPING)
        return count

    def _page(self, statement: str, chosen: EventFilter, after: LaneKey, limit: int) -> list[OutboxEntry]:
        place = {"after_tenant": after.tenant, "after_type": after.aggregate_type, "after_id": after.aggregate_id}
        return self._engine.rows(OutboxEntry, statement, **chosen._asdict(), **place, limit=limit)


def revive_event(tx: Transaction, lane: LaneKey, seq: int, *, now_us: int) -> bool:
    """Let a lane go on with the event that stopped it, with all its attempts before it; False if it does not stop it
    any more."""
    place = {**lane._asdict(), "seq": seq}
    return tx.execute("revive_lane", **place, now=now_us) == 1 and tx.execute("revive_event", **place) == 1


def overtake(tx: Transaction, lane: LaneKey, seq: int, *, attempts: int, failure: str | None, reason: str) -> None:
    """Have an event that this transaction settled be one that was given up, because something newer is behind it.
    `failure` is how it failed; None: as it did before."""
    tx.execute("overtake_event", **lane._asdict(), seq=seq, attempts=attempts, failure=failure, reason=reason)
