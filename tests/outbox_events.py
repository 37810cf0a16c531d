"""Events for tests of the outbox."""

from __future__ import annotations

import itertools
import json
from typing import Any

from analemma.testing.events import OutboxEvent
from analemma.testing.events import produce as produce

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
