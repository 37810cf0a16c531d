"""Workers of the outbox with one handler, and what they or others leave behind."""

from __future__ import annotations

import time

from analemma import App, Event
from analemma.catalog.outbox_claiming import OutboxClaims
from analemma.catalog.outbox_tending import OutboxRows
from analemma.outbox.handlers import Handler, Settle
from analemma.outbox.worker import OutboxPollingWorker
from tests.outbox_events import KIND

WAIT_S = 30


def worker(app: App, handler: Handler, concurrency: int = 4) -> OutboxPollingWorker:
    return app.worker(concurrency, handlers={KIND: handler})


def nothing(event: Event, settle: Settle) -> None:
    pass


def far_future(app: App, hours: int = 1) -> OutboxClaims:
    """Somebody for whom every lease has run out."""
    rows = OutboxRows(app.catalog.engine)
    return OutboxClaims(app.catalog.engine, lease_s=30, clock=lambda: rows.now_us() + hours * 3_600_000_000)


def abandon(app: App, lanes: int = 100) -> None:
    """What a worker leaves behind that was killed with lanes in its hands."""
    OutboxClaims(app.catalog.engine, lease_s=0).claim(lanes=lanes, rows=1000)
    time.sleep(0.01)  # SQLite counts milliseconds.
