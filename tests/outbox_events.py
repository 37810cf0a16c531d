"""Events for tests of the outbox."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from analemma import App
from analemma.catalog.outbox_producing import enqueue
from analemma.catalog.port import OutboxEvent

KIND = "Counted"
AGGREGATE = "STATE"

_numbers = itertools.count(1)


def event(
    lane: str = "a", *, id: str | None = None, type: str = KIND, priority: int = 0, **payload: Any
) -> OutboxEvent:
    return OutboxEvent(
        id=id or f"event-{next(_numbers)}",
        aggregate_type=AGGREGATE,
        aggregate_id=lane,
        type=type,
        payload=json.dumps(payload).encode(),
        idempotency_key=payload.get("key"),
        priority=priority,
        trace=payload.get("trace"),
    )


def produce(app: App, events: Sequence[OutboxEvent], tenant: str = "default") -> list[str]:
    """Commit events, and tell workers; their ids."""
    number = app.catalog.tenant(tenant)
    now = app.catalog.clock.now_us()
    app.catalog.engine.write(lambda tx: enqueue(tx, number, events, now_us=now))
    app.catalog.wakeups.signal()
    return [each.id for each in events]
