"""How workers take events and settle them, on every catalog: which come first, and what keeps which waiting."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from analemma import App
from analemma.errors import Invalid, Unavailable
from analemma.testing import failpoints
from tests.outbox_events import AGGREGATE, KIND, event, produce
from tests.ports.entry_points.outbox import EventFailure, LaneOutcome, OutboxClaims
from tests.raw_rows import change, connect, select
from tests.stores import Store

CONTRACTS = Path(__file__).parents[2] / "examples/bookshop/contracts.yaml"
BOTH = pytest.mark.both_stores("how lanes are locked and claimed is SQL that differs")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="analemma.outbox")


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open(outbox_lease_s=3600) as app:
        yield app


class Handled:
    """Remembers the lane of every event, and fails for those that it is told to fail for."""

    def __init__(self, *failing: str, error: Exception | None = None) -> None:
        self.lanes: list[str] = []
        self.failing = set(failing)
        self.error = error or Unavailable("not now")

    def __call__(self, event: Any, settle: Any) -> None:
        self.lanes.append(event.aggregate_id)
        if event.aggregate_id in self.failing:
            raise self.error


@BOTH
def test_a_lane_that_was_lost_does_not_keep_the_others_from_being_settled(store: Store, app: App) -> None:
    ids = produce(app, [event("a"), event("b")])
    handled = Handled()

    def handle(given: Any, settle: Any) -> None:
        handled(given, settle)
        # Somebody else has it since.
        change(store, "UPDATE lane SET fence = fence + 1 WHERE aggregateid = 'a' AND fence = 1")

    app.worker(1, handlers={KIND: handle}).drain()
    assert sorted(handled.lanes)[-1] == "b"
    assert [app.outbox.get(id).status for id in ids] == ["PENDING", "PROCESSED"]


@BOTH
def test_whoever_has_a_lane_again_is_not_taken_for_whoever_lost_it(store: Store, app: App) -> None:
    ids = produce(app, [event("a"), event("a")])
    claims = OutboxClaims(app.catalog.engine, lease_s=30)
    (lost,) = claims.claim(lanes=1, rows=10)
    change(store, "UPDATE lane SET lease_until = 0")
    (held,) = claims.claim(lanes=1, rows=10)
    # One worker may have both, and say so at once, if it was frozen for a while.
    failed = LaneOutcome(held, 1, EventFailure("FAILED", 1, 0, "not now"))
    said = claims.finish([LaneOutcome(lost, 2), failed])
    assert (said.delivered, said.failed, [each.lane for each in said.lost]) == (1, [failed], [lost])
    assert [app.outbox.get(id).status for id in ids] == ["PROCESSED", "FAILED"]


def test_a_failure_waits_for_its_time_even_when_more_arrives(store: Store, app: App) -> None:
    (first,) = produce(app, [event("a")])
    failing = Handled("a")
    worker = app.worker(1, handlers={KIND: failing})
    with failpoints.call("outbox.after_acknowledge", worker.stop):
        worker.run()
    assert failing.lanes == ["a"] and app.outbox.get(first).status == "FAILED"
    later = 3_600_000_000
    change(store, "UPDATE lane SET retry_at = retry_at + ?, due_at = due_at + ?", [later, later])
    produce(app, [event("a"), event("b")])
    handled = Handled()
    worker = app.worker(1, handlers={KIND: handled})
    with failpoints.call("outbox.after_acknowledge", worker.stop):
        worker.run()
    assert handled.lanes == ["b"]
    assert [each.id for each in app.outbox.failed().entries] == [first]


def test_a_dead_event_keeps_its_own_lane_waiting_and_no_other(store: Store, app: App) -> None:
    dead, waiting = produce(app, [event("a"), event("a")])
    handled = Handled("a", error=Invalid("poison"))
    app.worker(1, handlers={KIND: handled}).drain()
    assert handled.lanes == ["a"] and app.outbox.get(dead).status == "DEAD"
    produce(app, [event("a"), event("b")])
    handled = Handled()
    app.worker(1, handlers={KIND: handled}).drain()
    assert handled.lanes == ["b"]
    assert app.outbox.get(waiting).status == "PENDING"
    assert [each.id for each in app.outbox.dead_letters().entries] == [dead]


def test_more_urgent_lanes_come_first(app: App) -> None:
    for lane, priority in (("later", 5), ("usual", 0), ("urgent", -5)):
        produce(app, [event(lane, priority=priority)])
    handled = Handled()
    app.worker(1, handlers={KIND: handled}).drain()
    assert handled.lanes == ["urgent", "usual", "later"]


def test_a_lane_is_as_urgent_as_what_it_holds_now(app: App) -> None:
    produce(app, [event("a", priority=-5)])
    app.worker(1, handlers={KIND: Handled()}).drain()
    produce(app, [event("a", priority=5)])
    produce(app, [event("b", priority=0)])
    handled = Handled()
    app.worker(1, handlers={KIND: handled}).drain()
    assert handled.lanes == ["b", "a"]


def test_a_long_lane_does_not_keep_a_short_one_waiting(app: App) -> None:
    produce(app, [event("long") for _ in range(3000)])
    produce(app, [event("short")])
    handled = Handled()
    app.worker(1, handlers={KIND: handled}).drain()
    assert len(handled.lanes) == 3001 and handled.lanes.index("short") < 1500


def test_a_worker_of_one_tenant_takes_nothing_of_another(app: App) -> None:
    produce(app, [event("mine")], tenant="shop")
    produce(app, [event("theirs")], tenant="other")
    handled = Handled()
    app.worker(1, tenant="shop", handlers={KIND: handled}).drain()
    assert handled.lanes == ["mine"]
    app.worker(1, handlers={KIND: handled}).drain()
    assert handled.lanes == ["mine", "theirs"]


def test_an_event_whose_producer_commits_late_is_delivered(migrated_url: str, tmp_path: Path) -> None:
    """Later producers are done, and their events delivered, before the first one commits. On SQLite one writes at a
    time."""
    store = Store(migrated_url, str(tmp_path / "objects"))
    with store.open() as app, store.open() as slow:
        slow.contracts.load(CONTRACTS)
        book = {"isbn": "1", "title": "Solaris", "price": 1200}
        with failpoints.paused("deploy.stored", lambda: slow.default.deploy("BOOK", "1", book)) as held:
            produce(app, [event(f"lane {place}") for place in range(20)])
            handled = Handled()
            app.worker(1, handlers={KIND: handled}).drain()
            assert len(handled.lanes) == 20
            held.go_on()
        app.worker(1).drain()
        assert app.outbox.status().pending == 0
    assert select(store, "SELECT count(*) FROM compile") == [(1,)]


def test_a_producer_whose_clock_is_ahead_is_heard_at_once(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns
    with monkeypatch.context() as hour:
        hour.setattr(time, "time_ns", lambda: now() + 3_600_000_000_000)
        (id,) = produce(app, [event("a")])
    handled = Handled()
    app.worker(1, handlers={KIND: handled}).drain()
    assert handled.lanes == ["a"] and app.outbox.get(id).status == "PROCESSED"


@BOTH
def test_each_event_is_handled_by_one_of_many_workers(store: Store) -> None:
    handled = Handled()
    with store.open() as app, store.open() as other:
        produce(app, [event(f"lane {place}") for place in range(120)])
        workers = [opener.worker(2, handlers={KIND: handled}) for opener in (app, other, app, other)]
        threads = [threading.Thread(target=worker.drain) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert app.outbox.status().pending == 0
    assert sorted(handled.lanes) == sorted(f"lane {place}" for place in range(120))


def test_a_lane_that_is_being_written_to_holds_up_no_other(migrated_url: str) -> None:
    """One writes at a time on SQLite: there is nothing to hold up."""
    store = Store(migrated_url)
    with store.open() as app, closing(connect(migrated_url)) as producer:
        produce(app, [event("a"), event("b")])
        producer.execute("UPDATE lane SET next_seq = next_seq WHERE aggregateid = 'a'")
        handled = Handled()
        worker = app.worker(1, handlers={KIND: handled})
        with failpoints.call("outbox.after_acknowledge", worker.stop):
            worker.run()
        assert handled.lanes == ["b"]
        producer.rollback()
        app.worker(1, handlers={KIND: handled}).drain()
        assert handled.lanes == ["b", "a"]


def test_debeziums_columns_have_their_meanings(store: Store, app: App) -> None:
    """What its outbox event router reads: id, aggregatetype, aggregateid, type, payload."""
    produce(app, [event("shop:BOOK#shop#978", id="one", type="RawDataIngested", tenantId="shop")])
    ((*names, payload),) = select(store, "SELECT id, aggregatetype, aggregateid, type, payload FROM outbox")
    assert names == ["one", AGGREGATE, "shop:BOOK#shop#978", "RawDataIngested"]
    assert json.loads(payload) == {"tenantId": "shop"}
