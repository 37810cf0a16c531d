"""Lanes are held by lease: who lost one cannot complete, who stops or dies leaves the rest to others."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from analemma import App, Event
from analemma.catalog.engine import Transaction
from analemma.catalog.outbox_claiming import OutboxClaims
from analemma.catalog.outbox_lanes import ClaimedLane
from analemma.catalog.outbox_producing import enqueue
from analemma.errors import Unavailable
from analemma.outbox.handlers import Settle
from analemma.outbox.worker import OutboxPollingWorker
from tests.api.outbox.outbox_workers import WAIT_S, abandon, far_future, nothing, worker
from tests.interrupting import interrupt
from tests.outbox_events import KIND, event, produce
from tests.stores import Store


@pytest.mark.parametrize("how", ["settle", "return"])
def test_a_worker_that_lost_its_lease_cannot_complete(app: App, how: str) -> None:
    produce(app, [event("a", id="one")])
    number = app.catalog.tenant("default")

    def handle(handled: Event, settle: Settle) -> None:
        (taken,) = far_future(app).claim(lanes=10, rows=10)
        assert taken.reclaimed
        if how == "return":
            return

        def move(tx: Transaction) -> None:
            enqueue(tx, number, [event("effect", id="effect")], now_us=app.catalog.clock.now_us())
            settle(tx)

        app.catalog.engine.write(move)

    counts = worker(app, handle).drain()
    assert (counts.delivered, counts.failed, counts.lost) == (0, 0, 1)
    assert app.outbox.get("one").status == "PENDING"
    with pytest.raises(KeyError):
        app.outbox.get("effect")


def test_long_handlers_keep_their_lease_and_leave_the_rest_to_others(store: Store) -> None:
    with store.open(outbox_lease_s=0.6) as app:
        produce(app, [event("a"), event("a")])
        begun, end = threading.Event(), threading.Event()

        def handle(event: Event, settle: Settle) -> None:
            begun.set()
            assert end.wait(WAIT_S)

        slow = worker(app, handle, concurrency=1)
        thread = threading.Thread(target=slow.drain)
        taken = []
        try:
            produce(app, [event("b", priority=1)])
            thread.start()
            assert begun.wait(WAIT_S)
            others = OutboxClaims(app.catalog.engine, lease_s=30)
            deadline = time.monotonic() + 2  # more than three leases
            while time.monotonic() < deadline:
                taken += [lane.key.aggregate_id for lane in others.claim(lanes=10, rows=10)]
                time.sleep(0.05)
        finally:
            end.set()
            thread.join()
        # Claimed with the other and not begun for so long, it was given back.
        assert taken == ["b"]
        assert (slow.counts.delivered, slow.counts.lost) == (2, 0)


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


def test_a_lane_whose_rows_are_gone_is_not_tried_for_ever(app: App, caplog: pytest.LogCaptureFixture) -> None:
    produce(app, [event("a"), event("a"), event("b")])
    script = "DELETE FROM outbox WHERE aggregateid = 'a'"
    app.catalog.engine.write(lambda tx: tx.script(script))
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


def test_lanes_of_a_dead_worker_do_not_hold_up_the_others(app: App) -> None:
    left = produce(app, [event("left"), event("left too")])
    abandon(app)
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


class OutOfReach(OutboxClaims):
    """A database that does not answer the first question about a lane."""

    failures = 1

    def begin(self, lane: ClaimedLane, seq: int) -> None:
        if self.failures:
            self.failures -= 1
            raise Unavailable("out of reach")
        super().begin(lane, seq)


def test_a_lane_is_given_back_when_the_database_does_not_answer(app: App) -> None:
    produce(app, [event("a", id="one")])
    abandon(app)
    claims = OutOfReach(app.catalog.engine, lease_s=3600)
    cut_off = OutboxPollingWorker(claims, {KIND: nothing}, listen=app.catalog.wakeups.listen)
    with pytest.raises(Unavailable):
        cut_off.drain()
    assert app.outbox.status().processing == 0
    assert cut_off.drain().delivered == 1


def test_a_worker_that_stops_leaves_nothing_that_looks_begun(app: App) -> None:
    produce(app, [event("a", id="one"), event("b", id="two")])
    abandon(app)
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


def test_a_worker_may_be_stopped_by_a_signal_that_comes_while_it_wakes_its_threads(app: App) -> None:
    """A handler of signals runs between any two lines of whoever is interrupted, with any lock in its hands."""
    for place in range(1, 8):
        interrupted = worker(app, nothing)
        listener = interrupted._listener = app.catalog.wakeups.listen()
        thread = threading.Thread(target=interrupt, args=(listener.wake, interrupted.stop, place), daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        listener.close()
