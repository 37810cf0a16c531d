"""Workers are told of events: counted by how often they look, with polls so rare that they cannot be the reason."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from analemma import App, Event
from analemma.catalog.wakeups import FileWakeups, Wakeups
from analemma.outbox.handlers import Settle
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


@pytest.mark.parametrize("producer", ["the same process", "another catalog"])
def test_a_waiting_worker_is_woken_by_producers(store: Store, producer: str) -> None:
    with store.open(**RARELY) as app, store.open() as other, Running(app) as running:
        source = app if producer == "the same process" else other
        for _ in range(5):
            produce(source, [event("a")])
            assert running.handled.acquire(timeout=WAIT_S)
        # It looks when it begins, and perhaps once more when it begins to listen; then twice per event, to claim it and
        # to find that it was all.
        assert running.worker.counts.polls <= 4 * 5 + 4


def test_without_events_nobody_looks(store: Store) -> None:
    with store.open(**RARELY) as app, Running(app) as running:
        produce(app, [event("a")])
        assert running.handled.acquire(timeout=WAIT_S)
        threading.Event().wait(0.3)
        settled = running.worker.counts.polls
        threading.Event().wait(0.5)
        assert running.worker.counts.polls == settled


def test_polls_become_rarer_when_there_is_nothing(store: Store) -> None:
    """With nobody to tell it: what was committed and not signalled is found by looking."""
    with store.open(outbox_poll_busy_s=0.01, outbox_poll_idle_s=0.16) as app, Running(app) as running:
        threading.Event().wait(1.0)
        # 10 + 20 + 40 + 80 ms, and every 160 ms from then on; every 10 ms would be a hundred.
        assert 3 <= running.worker.counts.polls <= 20
        number = app.catalog.tenant("default")
        from analemma.catalog.outbox_producing import enqueue

        app.catalog.engine.write(lambda tx: enqueue(tx, number, [event("a")], now_us=1))
        assert running.handled.acquire(timeout=WAIT_S)


def test_many_signals_are_few_notifications(store: Store) -> None:
    if not store.url.startswith("postgresql"):
        pytest.skip("PostgreSQL notifies")
    with store.open() as app, store.open() as other:
        listener = other.catalog.wakeups.listen()
        assert listener.wait(WAIT_S)  # it has begun to listen
        for _ in range(5000):
            app.catalog.wakeups.signal()
        assert listener.wait(WAIT_S)
        while listener.wait(0.2):
            pass
        assert listener.woken < 200
        listener.close()


def test_a_wake_up_that_comes_before_the_wait_is_not_lost() -> None:
    wakeups = Wakeups()
    listener = wakeups.listen()
    wakeups.signal()
    assert listener.wait(0)
    assert not listener.wait(0)
    listener.close()
    wakeups.signal()
    assert not listener.wait(0)


def test_a_wake_up_that_comes_when_the_time_is_up_is_for_the_next_wait() -> None:
    listener = Wakeups().listen()

    class Late(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            heard = super().wait(timeout)
            self.set()
            return heard

    listener._event = Late()
    assert not listener.wait(0)
    assert listener.wait(0)


def test_a_log_that_is_not_there_wakes_nobody(tmp_path: Any) -> None:
    listener = FileWakeups(str(tmp_path / "none.db")).listen()
    assert not listener.wait(0.05)
