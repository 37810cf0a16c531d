"""What a worker does with events: order, what handlers are told and may add, and when they may run."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest

from analemma import App, Event, Settle
from analemma.errors import Conflict, Invalid
from analemma.testing.events import settling
from tests.api.outbox.outbox_workers import WAIT_S, nothing, worker
from tests.outbox_events import KIND, event, produce
from tests.raw_rows import connect
from tests.stores import Store


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
    seen: list[Event] = []
    worker(app, lambda event, settle: seen.append(event)).drain()
    (told,) = seen
    assert (told.id, told.tenant, told.aggregate_id, told.seq, told.type) == ("one", "shop", "a", 1, KIND)
    assert (told.idempotency_key, told.attempts, told.payload["n"]) == ("k", 0, 1)
    assert told.trace == trace


def test_what_handlers_add_is_drained_too(app: App) -> None:
    produce(app, [event("a", left=5)])

    def handle(handled: Event, settle: Settle) -> None:
        if left := handled.payload["left"]:
            produce(app, [event(f"lane {left}", left=left - 1)])

    assert worker(app, handle).drain().delivered == 6


def test_an_unknown_payload_version_is_read_with_a_warning(app: App, caplog: pytest.LogCaptureFixture) -> None:
    produce(app, [event("a", payloadVersion="7.0"), event("b", payloadVersion="1.0"), event("c")])
    with caplog.at_level(logging.WARNING, "analemma.outbox"):
        assert worker(app, nothing).drain().delivered == 3
    assert [record.getMessage() for record in caplog.records if "7.0" in record.getMessage()] != []
    assert len(caplog.records) == 1


def test_a_worker_can_be_used_again(app: App) -> None:
    again = worker(app, nothing)
    again.stop()
    produce(app, [event("a")])
    assert again.run().delivered == 0
    assert again.drain().delivered == 1
    produce(app, [event("a")])
    assert again.drain().delivered == 1


def test_the_next_event_waits_until_the_handler_has_returned(app: App) -> None:
    produce(app, [event("a", id="one")])
    running: list[str] = []

    def handle(handled: Event, settle: Settle) -> None:
        assert running == []
        running.append(handled.id)
        settling(app, settle)
        if handled.id == "one":
            produce(app, [event("a", id="two")])
            time.sleep(0.2)
        running.remove(handled.id)

    assert worker(app, handle, concurrency=2).drain().delivered == 2


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


def test_a_worker_has_a_thread(app: App) -> None:
    for concurrency in (0, -1):
        with pytest.raises(Invalid):
            app.worker(concurrency)


def test_a_lane_that_is_always_written_to_is_delivered(migrated_url: str, tmp_path: Path) -> None:
    """Producers lock the lane again and again; workers pass over it, and one of their threads waits for its turn."""
    store = Store(migrated_url, str(tmp_path / "objects"))
    with store.open() as app:
        produce(app, [event("hot") for _ in range(20)])
        stop, all_of_them = threading.Event(), threading.Event()
        seen: list[int] = []

        def write() -> None:
            with connect(store.url, autocommit=True) as connection:
                while not stop.is_set():
                    with connection.transaction():
                        connection.execute("SELECT 1 FROM lane WHERE aggregateid = 'hot' FOR UPDATE")
                        time.sleep(0.03)

        def handle(handled: Event, settle: Settle) -> None:
            seen.append(handled.seq)
            if len(seen) == 20:
                all_of_them.set()

        running = worker(app, handle, concurrency=2)
        threads = [threading.Thread(target=running.run), *(threading.Thread(target=write) for _ in range(3))]
        for thread in threads:
            thread.start()
        try:
            assert all_of_them.wait(2 * WAIT_S)
        finally:
            stop.set()
            running.stop()
            for thread in threads:
                thread.join(WAIT_S)
        assert (seen, running.counts.lost) == (list(range(1, 21)), 0)
