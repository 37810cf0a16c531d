"""Lanes are held by lease: who stops or dies leaves the rest to others."""

from __future__ import annotations

import contextlib
import logging
import threading
import time

import pytest

from analemma import App, Event, Settle
from analemma.errors import Unavailable
from analemma.testing import failpoints
from tests.api.outbox.outbox_workers import WAIT_S, abandon, nothing, worker
from tests.outbox_events import event, produce
from tests.raw_rows import change
from tests.stores import Store


def test_stopping_finishes_what_is_begun_and_gives_back_the_rest(app: App) -> None:
    produce(app, [event(f"lane {place % 50}") for place in range(200)])
    begun, end = threading.Event(), threading.Event()

    def handle(event: Event, settle: Settle) -> None:
        begun.set()
        assert end.wait(WAIT_S)

    first = worker(app, handle, concurrency=2)
    thread = threading.Thread(target=first.run)
    thread.start()
    assert begun.wait(WAIT_S)
    first.stop()
    end.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert 1 <= first.counts.delivered <= 2
    status = app.outbox.status()
    assert (status.processing, status.stale) == (0, 0)
    # At once, by a claim that no lease keeps from anything.
    counts = worker(app, nothing).drain()
    assert first.counts.delivered + counts.delivered == 200
    assert counts.lost == 0


def test_a_lane_whose_rows_are_gone_is_not_tried_for_ever(
    store: Store, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    produce(app, [event("a"), event("a"), event("b")])
    change(store, "DELETE FROM outbox WHERE aggregateid = 'a'")
    with caplog.at_level(logging.WARNING, "analemma.outbox"):
        worker(app, nothing).drain()
    assert ["has lost the events 1 to 2" in record.getMessage() for record in caplog.records] == [True]
    assert app.outbox.status().lanes == 0
    produce(app, [event("a", id="next")])
    assert worker(app, nothing).drain().delivered == 1
    assert app.outbox.get("next").seq == 3


def test_an_interrupt_ends_the_worker(app: App) -> None:
    produce(app, [event("a"), event("b")])

    def handle(event: Event, settle: Settle) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worker(app, handle, concurrency=1).drain()


def test_lanes_of_a_dead_worker_do_not_hold_up_the_others(store: Store, app: App) -> None:
    left = produce(app, [event("left"), event("left too")])
    abandon(store)
    at_it, others = threading.Lock(), threading.Barrier(2)
    done = threading.Event()

    def handle(handled: Event, settle: Settle) -> None:
        if handled.id not in left:
            others.wait(WAIT_S)
            done.set()
            return
        assert at_it.acquire(blocking=False), "both at a time"
        if not done.is_set():
            produce(app, [event("x"), event("y")])
        assert done.wait(WAIT_S)
        at_it.release()

    counts = worker(app, handle, concurrency=3).drain()
    assert (counts.delivered, counts.failed, counts.dead) == (4, 0, 0)


def test_a_lane_is_given_back_when_the_database_does_not_answer(app: App) -> None:
    produce(app, [event("a", id="one")])

    def fail() -> None:
        raise Unavailable("out of reach")

    cut_off = worker(app, nothing)
    with failpoints.call("outbox.before_acknowledge", fail), contextlib.suppress(Unavailable):
        cut_off.drain()
    assert app.outbox.status().processing == 0
    cut_off.drain()
    assert app.outbox.get("one").status == "PROCESSED"


@pytest.mark.deep("it waits for longer than a lease lasts")
def test_long_handlers_keep_their_lease_and_leave_the_rest_to_others(store: Store) -> None:
    with store.open(outbox_lease_s=2) as app, store.open() as other:
        produce(app, [event("a"), event("a"), event("b", priority=1)])
        begun, end = threading.Event(), threading.Event()

        def handle(event: Event, settle: Settle) -> None:
            begun.set()
            assert end.wait(WAIT_S)

        slow = worker(app, handle, concurrency=1)
        thread = threading.Thread(target=slow.drain)
        taken: list[str] = []
        try:
            thread.start()
            assert begun.wait(WAIT_S)
            deadline = time.monotonic() + 7  # more than three leases
            while time.monotonic() < deadline:
                worker(other, lambda event, settle: taken.append(event.aggregate_id)).drain()
                time.sleep(0.05)
        finally:
            end.set()
            thread.join()
        # Claimed with the other and not begun for so long, it was given back.
        assert taken == ["b"]
        assert (slow.counts.delivered, slow.counts.lost) == (2, 0)


def test_a_worker_that_stops_leaves_nothing_that_looks_begun(store: Store, app: App) -> None:
    produce(app, [event("a", id="one"), event("b", id="two")])
    abandon(store)
    begun, end = threading.Event(), threading.Event()

    def handle(event: Event, settle: Settle) -> None:
        begun.set()
        assert end.wait(WAIT_S)

    stopped = worker(app, handle, concurrency=2)
    thread = threading.Thread(target=stopped.run)
    thread.start()
    assert begun.wait(WAIT_S)
    time.sleep(0.2)  # The other thread would wait for its turn by now.
    stopped.stop()
    end.set()
    thread.join(WAIT_S)
    assert sorted(app.outbox.get(id).status for id in ("one", "two")) == ["PENDING", "PROCESSED"]
