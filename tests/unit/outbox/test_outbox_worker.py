"""What a worker does with events: order, retries, dead letters, leases, stopping."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from asyncio import CancelledError
from collections.abc import Iterator

import pytest

from analemma.app import App
from analemma.catalog.engine import Transaction
from analemma.catalog.outbox_claiming import ClaimedLane, EventFailure, LaneOutcome, OutboxClaims
from analemma.catalog.outbox_producing import enqueue
from analemma.catalog.outbox_tending import OutboxRows
from analemma.errors import Conflict, Denied, Invalid, Unavailable
from analemma.outbox.handlers import Event, Handler, Settle
from analemma.outbox.worker import OutboxPollingWorker
from analemma.tracing import current_trace
from tests.interrupting import interrupt
from tests.outbox_events import KIND, event, produce
from tests.stores import Store

WAIT_S = 30


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open(outbox_backoff_base_s=0, outbox_max_attempts=3) as app:
        yield app


def worker(app: App, handler: Handler, concurrency: int = 4) -> OutboxPollingWorker:
    return app.worker(concurrency, handlers={KIND: handler})


def nothing(event: Event, settle: Settle) -> None:
    pass


def far_future(app: App, hours: int = 1) -> OutboxClaims:
    """Somebody for whom every lease has run out."""
    rows = OutboxRows(app.catalog.engine)
    return OutboxClaims(app.catalog.engine, lease_s=30, clock=lambda: rows.now_us() + hours * 3_600_000_000)


def test_events_of_an_aggregate_come_one_at_a_time_and_in_order(app: App) -> None:
    for number in range(20):
        produce(app, [event(lane, number=number) for lane in "abcdefgh"])
    seen: dict[str, list[int]] = {}
    running: set[str] = set()

    def handle(event: Event, settle: Settle) -> None:
        lane = event.aggregate_id
        assert lane not in running
        running.add(lane)
        time.sleep(0.0005)
        seen.setdefault(lane, []).append(event.payload["number"])
        running.remove(lane)

    counts = worker(app, handle).drain()
    assert (counts.delivered, counts.failed, counts.dead, counts.lost) == (160, 0, 0, 0)
    assert seen == {lane: list(range(20)) for lane in "abcdefgh"}


def test_aggregates_are_handled_side_by_side(app: App) -> None:
    produce(app, [event("a"), event("b"), event("c")])
    together = threading.Barrier(3)

    def handle(event: Event, settle: Settle) -> None:
        together.wait(WAIT_S)

    assert worker(app, handle, concurrency=3).drain().delivered == 3


def test_a_handler_is_told_everything_about_its_event(app: App) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    produce(app, [event("a", id="one", key="k", trace=trace, n=1)], tenant="shop")
    seen: list[tuple[Event, str | None]] = []
    worker(app, lambda event, settle: seen.append((event, current_trace()))).drain()
    ((told, inside),) = seen
    assert (told.id, told.tenant, told.aggregate_id, told.seq, told.type) == ("one", "shop", "a", 1, KIND)
    assert (told.idempotency_key, told.attempts, told.payload["n"]) == ("k", 0, 1)
    assert told.trace == inside == trace
    assert current_trace() is None


def test_what_handlers_add_is_drained_too(app: App) -> None:
    produce(app, [event("a", left=5)])
    number = app.catalog.tenant("default")

    def handle(handled: Event, settle: Settle) -> None:
        left = handled.payload["left"]

        def move(tx: Transaction) -> None:
            if left:
                enqueue(tx, number, [event(f"lane {left}", left=left - 1)], now_us=app.catalog.clock.now_us())
            settle(tx)

        app.catalog.engine.write(move)

    assert worker(app, handle).drain().delivered == 6


def test_a_failure_that_may_pass_is_tried_again_and_its_aggregate_waits(app: App) -> None:
    ids = produce(app, [event("a", n=1), event("a", n=2)])
    tries: list[tuple[int, int]] = []

    def handle(event: Event, settle: Settle) -> None:
        tries.append((event.payload["n"], event.attempts))
        if event.payload["n"] == 1 and event.attempts < 2:
            raise Unavailable("not now")

    counts = worker(app, handle).drain()
    assert tries == [(1, 0), (1, 1), (1, 2), (2, 0)]
    assert (counts.delivered, counts.failed) == (2, 2)
    assert [app.outbox.get(id).status for id in ids] == ["PROCESSED", "PROCESSED"]


def test_after_the_last_attempt_an_event_is_dead(app: App) -> None:
    produce(app, [event("a", id="dead"), event("a", id="behind"), event("b", id="other")])

    def handle(event: Event, settle: Settle) -> None:
        if event.aggregate_id == "a":
            raise OSError("broken\0pipe")

    counts = worker(app, handle).drain()
    assert (counts.delivered, counts.failed, counts.dead) == (1, 2, 1)
    entry = app.outbox.get("dead")
    assert (entry.status, entry.attempts, entry.next_attempt_at_us) == ("DEAD", 3, None)
    assert entry.failure_reason == "OSError: broken\\0pipe"
    assert app.outbox.get("behind").status == "PENDING"
    assert app.outbox.get("other").status == "PROCESSED"


@pytest.mark.parametrize("error", [Invalid("no such field"), Denied("not yours"), AssertionError("invariant")])
def test_what_trying_again_does_not_mend_is_dead_at_once(app: App, error: Exception) -> None:
    produce(app, [event("a", id="dead")])

    def handle(event: Event, settle: Settle) -> None:
        raise error

    counts = worker(app, handle).drain()
    assert (counts.failed, counts.dead) == (0, 1)
    entry = app.outbox.get("dead")
    assert (entry.status, entry.attempts) == ("DEAD", 1)
    assert str(error) in (entry.failure_reason or "")


def test_an_unknown_type_and_a_payload_that_is_no_object_are_dead(app: App) -> None:
    produce(app, [event("a", id="unknown", type="Unheard")])
    broken = event("b", id="broken")
    object.__setattr__(broken, "payload", b"[1]")
    garbled = event("c", id="garbled")
    object.__setattr__(garbled, "payload", b"{")
    produce(app, [broken, garbled])
    assert worker(app, nothing).drain().dead == 3
    reasons = [app.outbox.get(id).failure_reason or "" for id in ("unknown", "broken", "garbled")]
    assert "Unheard" in reasons[0] and "not a JSON object" in reasons[1] and "not JSON" in reasons[2]


def test_an_unknown_payload_version_is_read_with_a_warning(app: App, caplog: pytest.LogCaptureFixture) -> None:
    produce(app, [event("a", payloadVersion="7.0"), event("b", payloadVersion="1.0"), event("c")])
    with caplog.at_level(logging.WARNING, "analemma.outbox"):
        assert worker(app, nothing).drain().delivered == 3
    assert [record.getMessage() for record in caplog.records if "7.0" in record.getMessage()] != []
    assert len(caplog.records) == 1


def test_a_settled_event_and_its_effect_are_one_transaction(app: App) -> None:
    produce(app, [event("a", id="cause")])
    number = app.catalog.tenant("default")
    tries = []

    def handle(handled: Event, settle: Settle) -> None:
        if handled.aggregate_id == "effect":
            return
        tries.append(handled.attempts)

        def move(tx: Transaction) -> None:
            enqueue(tx, number, [event("effect", id=f"effect {len(tries)}")], now_us=app.catalog.clock.now_us())
            settle(tx)
            if len(tries) == 1:
                raise OSError("after everything was written")

        app.catalog.engine.write(move)

    counts = worker(app, handle).drain()
    assert (counts.delivered, counts.failed) == (2, 1)
    assert tries == [0, 1]
    assert app.outbox.status().processed == 2
    assert app.outbox.get("effect 2").status == "PROCESSED"
    with pytest.raises(KeyError):
        app.outbox.get("effect 1")


def test_an_error_after_the_effect_was_committed_does_not_repeat_it(app: App) -> None:
    produce(app, [event("a"), event("a")])
    handled = []

    def handle(event: Event, settle: Settle) -> None:
        app.catalog.engine.write(settle)
        handled.append(event.seq)
        raise OSError("too late to matter")

    worker(app, handle).drain()
    assert handled == [1, 2]
    assert app.outbox.status().processed == 2


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


def test_a_worker_can_be_used_again(app: App) -> None:
    again = worker(app, nothing)
    again.stop()
    produce(app, [event("a")])
    assert again.run().delivered == 0
    assert again.drain().delivered == 1
    produce(app, [event("a")])
    assert again.drain().delivered == 1


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


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    "error", [SystemExit(3), CancelledError(), Speechless()], ids=lambda error: type(error).__name__
)
def test_whatever_a_handler_raises_is_a_failure(app: App, error: BaseException) -> None:
    produce(app, [event("a", id="broken"), event("b", id="well")])

    def handle(event: Event, settle: Settle) -> None:
        if event.id == "broken":
            raise error

    counts = worker(app, handle).drain()
    assert (counts.delivered, counts.failed, counts.dead) == (1, 2, 1)
    assert (app.outbox.get("broken").failure_reason or "").startswith(type(error).__name__)


@pytest.mark.parametrize("place", ["last", "not the last"])
def test_a_handler_that_returns_although_its_transaction_was_undone_has_failed(app: App, place: str) -> None:
    produce(app, [event("a", id="one"), *([event("a", id="two")] if place == "not the last" else [])])
    number = app.catalog.tenant("default")
    seen: list[str] = []

    def handle(handled: Event, settle: Settle) -> None:
        if handled.aggregate_id == "effect":
            return
        seen.append(handled.id)

        def move(tx: Transaction) -> None:
            enqueue(tx, number, [event("effect", id=f"effect of {handled.id}")], now_us=app.catalog.clock.now_us())
            settle(tx)
            if len(seen) == 1:
                raise OSError("undone")

        with contextlib.suppress(OSError):
            app.catalog.engine.write(move)

    counts = worker(app, handle, concurrency=1).drain()
    events = ["one"] if place == "last" else ["one", "two"]
    assert seen == ["one", *events]
    assert (counts.delivered, counts.failed) == (2 * len(events), 1)
    for id in events:
        assert app.outbox.get(id).status == app.outbox.get(f"effect of {id}").status == "PROCESSED"
    assert "not committed" in (app.outbox.get("one").failure_reason or "")


def test_the_next_event_waits_until_the_handler_has_returned(app: App) -> None:
    produce(app, [event("a", id="one")])
    running: list[str] = []

    def handle(handled: Event, settle: Settle) -> None:
        assert running == []
        running.append(handled.id)
        app.catalog.engine.write(settle)
        if handled.id == "one":
            produce(app, [event("a", id="two")])
            time.sleep(0.2)
        running.remove(handled.id)

    assert worker(app, handle, concurrency=2).drain().delivered == 2


def test_an_error_after_the_effect_was_committed_is_counted_as_delivered(app: App) -> None:
    produce(app, [event("a"), event("a"), event("b")])

    def handle(event: Event, settle: Settle) -> None:
        app.catalog.engine.write(settle)
        raise OSError("too late to matter")

    counts = worker(app, handle).drain()
    assert (counts.delivered, counts.failed, counts.dead) == (3, 0, 0)


def abandon(app: App, lanes: int = 100) -> None:
    """What a worker leaves behind that was killed with lanes in its hands."""
    OutboxClaims(app.catalog.engine, lease_s=0).claim(lanes=lanes, rows=1000)
    time.sleep(0.01)  # SQLite counts milliseconds.


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


def test_an_event_is_not_given_up_before_it_was_tried_alone(app: App) -> None:
    produce(app, [event("a", id="unlucky")])
    claims = OutboxClaims(app.catalog.engine, lease_s=30)
    (lane,) = claims.claim(lanes=1, rows=1)
    claims.finish([LaneOutcome(lane, 0, EventFailure("FAILED", 2, 0, "twice"))])
    abandon(app)  # This would be the third failure of three, if it had been begun.
    assert worker(app, nothing).drain().delivered == 1
    produce(app, [event("a", id="poison")])
    (lane,) = claims.claim(lanes=1, rows=1)
    claims.finish([LaneOutcome(lane, lane.done_seq, EventFailure("FAILED", 2, 0, "twice"))])
    abandon(app)
    (lane,) = far_future(app).claim(lanes=1, rows=1)
    claims.blame(lane, attempts=2)
    claims.begin(lane, lane.events[0].seq)
    dead = OutboxPollingWorker(
        far_future(app, hours=2), {KIND: nothing}, listen=app.catalog.wakeups.listen, options=app.worker(1)._options
    )
    assert dead.drain().dead == 1
    assert app.outbox.get("poison").attempts == 3


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


def test_one_worker_runs_once_at_a_time(app: App) -> None:
    produce(app, [event("a")])
    errors: list[Conflict] = []

    def handle(event: Event, settle: Settle) -> None:
        try:
            once.drain()
        except Conflict as exc:
            errors.append(exc)

    once = worker(app, handle)
    assert once.drain().delivered == 1
    assert len(errors) == 1


@pytest.mark.parametrize("concurrency", [0, -1])
def test_a_worker_has_a_thread(app: App, concurrency: int) -> None:
    with pytest.raises(Invalid):
        app.worker(concurrency)


def test_a_lane_that_is_always_written_to_is_delivered(store: Store) -> None:
    """By live workers, who keep their leases and handle nothing twice."""
    with store.open(outbox_lease_s=2) as app:
        number = app.catalog.tenant("default")
        stop = threading.Event()
        seen: list[int] = []

        def hold(tx: Transaction) -> None:
            enqueue(tx, number, [event("hot")], now_us=app.catalog.clock.now_us())
            time.sleep(0.03)

        def write() -> None:
            while not stop.is_set():
                app.catalog.engine.write(hold)

        workers = [worker(app, lambda event, settle: seen.append(event.seq), concurrency=2) for _ in range(2)]
        threads = [threading.Thread(target=each.run) for each in workers]
        threads += [threading.Thread(target=write) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(5)
        during = len(seen)
        stop.set()
        for thread in threads[2:]:
            thread.join(WAIT_S)
        for each in workers:
            each.stop()
        for thread in threads:
            thread.join(WAIT_S)
        assert [each.counts.lost for each in workers] == [0, 0]
        assert sorted(set(seen)) == seen
        assert during > 50


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
