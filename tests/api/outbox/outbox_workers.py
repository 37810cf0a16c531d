"""Workers of the outbox with one handler, and what they or others leave behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from analemma import App, Event, Settle
from tests.outbox_events import KIND
from tests.raw_rows import change
from tests.stores import Store

WAIT_S = 30


def worker(app: App, handler: Callable[[Event, Settle], None], concurrency: int = 4) -> Any:
    return app.worker(concurrency, handlers={KIND: handler})


def nothing(event: Event, settle: Settle) -> None:
    pass


def abandon(store: Store) -> None:
    """What a worker leaves behind that was killed with lanes in its hands, when its lease has run out."""
    change(store, "UPDATE lane SET fence = fence + 1, lease_until = 1 WHERE due_at IS NOT NULL")
