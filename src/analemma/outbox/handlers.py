"""What a handler of events is given, and what it may rely on.

Events of one aggregate come one at a time, in the order in which they were committed. An event comes again until it is
settled: for effects outside of the database that is at least once, with a stable id; for effects inside it is exactly
once, if the handler calls `settle(tx)` in the transaction that has the effect."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from analemma.catalog.engine.db import Transaction
from analemma.catalog.outbox.claims import EventRow
from analemma.catalog.outbox.lanes import LaneKey
from analemma.errors import Invalid

PAYLOAD_VERSION = "1.0"

log = logging.getLogger("analemma.outbox")


@dataclass(frozen=True, slots=True)
class Event:
    """One row of the outbox, as its handler sees it."""

    id: str
    """The same however often it is delivered."""
    tenant: str
    aggregate_type: str
    aggregate_id: str
    seq: int
    """Its place among the events of its aggregate."""
    type: str
    payload: dict[str, Any]
    """References, not data; fields that a handler does not know are to be ignored."""
    attempts: int = 0
    """How often it failed before."""
    trace: str | None = None
    idempotency_key: str | None = None
    created_at_us: int = 0
    priority: int = field(default=0, repr=False)


Settle = Callable[[Transaction], None]
"""Acknowledges the event inside the transaction that has its effect, guarded by the lane's fence. Raises LeaseLost, and
the whole transaction must be undone, when somebody else has taken the lane over. The next event of the aggregate comes
when the handler has returned, not before. A handler that returns although that transaction was undone has failed: the
event is tried again."""

Handler = Callable[[Event, Settle], None]
"""Handles one event. Returning without having called `settle` acknowledges it a little later, in a batch; whatever it
raises, but KeyboardInterrupt, is a failure."""


def read_event(tenant: str, lane: LaneKey, row: EventRow) -> Event:
    """An event as its handler is to see it; Invalid if its payload is not a JSON object."""
    return Event(
        id=row.id,
        tenant=tenant,
        aggregate_type=lane.aggregate_type,
        aggregate_id=lane.aggregate_id,
        seq=row.seq,
        type=row.type,
        payload=_read_payload(row),
        attempts=row.attempts,
        trace=row.trace,
        idempotency_key=row.idempotency_key,
        created_at_us=row.created_at_us,
        priority=row.priority,
    )


def _read_payload(row: EventRow) -> dict[str, Any]:
    """An event's payload, parsed. A version that is not known is read as the one that is, with a warning."""
    try:
        payload = orjson.loads(row.payload)
    except orjson.JSONDecodeError as exc:
        raise Invalid(f"the payload of event {row.id} is not JSON: {exc}") from exc
    if not isinstance(payload, dict):
        raise Invalid(f"the payload of event {row.id} is not a JSON object")
    version = payload.get("payloadVersion", PAYLOAD_VERSION)
    if version != PAYLOAD_VERSION:
        log.warning("event %s has payload version %r, and is read as %s", row.id, version, PAYLOAD_VERSION)
    return payload
