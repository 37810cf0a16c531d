"""Workers are told of events, with polls so rare that they cannot be the reason; and find what nobody told them of."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from analemma import App, Event, Settle
from tests.outbox_events import KIND, event, produce
from tests.stores import Store

RARELY: dict[str, Any] = {"outbox_poll_busy_s": 600, "outbox_poll_idle_s": 600}
WAIT_S = 30


class Running:
    """A worker in the background, which says what it handled."""

    def __init__(self, app: App) -> None:
        self.handled = threading.Semaphore(0)
        self.worker = app.worker(2, handlers={KIND: self._handle})
        self._thread = threading.Thread(target=self.worker.run)

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.stop()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _handle(self, event: Event, settle: Settle) -> None:
        self.handled.release()


@pytest.mark.both_stores("how a process is told is the database's")
@pytest.mark.parametrize("producer", ["the same process", "another opener"])
def test_a_waiting_worker_is_woken_by_producers(store: Store, producer: str) -> None:
    with store.open(**RARELY) as app, store.open() as other, Running(app) as running:
        source = app if producer == "the same process" else other
        for _ in range(5):
            produce(source, [event("a")])
            assert running.handled.acquire(timeout=WAIT_S)


def test_what_was_committed_and_not_told_is_found_by_looking(store: Store) -> None:
    with store.open(outbox_poll_busy_s=0.01, outbox_poll_idle_s=0.1) as app, Running(app) as running:
        for _ in range(2):
            produce(app, [event("a")], tell=False)
            assert running.handled.acquire(timeout=WAIT_S)
