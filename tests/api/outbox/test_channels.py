"""How channels are delivered, of which sinks are the receivers: who waits for whom, who is to blame, and what a failure
in the middle leaves behind."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from analemma import SHIPPED, App, Parcel, Shipped, retry
from analemma.errors import Unavailable
from analemma.testing import failpoints
from tests.actors import Actor
from tests.api.pipeline.scripted_shop import put_books, scripted, times_sent
from tests.api.pipeline.ship_shop import drain, open_ship_shop, shop_contracts
from tests.api.pipeline.shop import put_book
from tests.raw_rows import change
from tests.scripted_sink import SCRIPTS, Script, install
from tests.stores import Store

QUICK: dict[str, Any] = {"ship_rest_s": 0.01, "ship_rest_max_s": 0.02, "outbox_backoff_base_s": 0}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    return install(tmp_path, monkeypatch, "one")[0]


def drain_until(app: App, is_done: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not is_done():
        assert time.monotonic() < end, app.sinks.list()
        drain(app)
        time.sleep(0.01)


def refuse() -> None:
    raise Unavailable("the database went away for a moment")


PLACES = ["ship.after_read", "ship.after_answer", "ship.before_settle"]


@pytest.mark.parametrize("place", PLACES)
def test_lanes_are_not_kept_when_something_fails_between_claim_and_finish(
    store: Store, tmp_path: Path, script: Script, place: str
) -> None:
    with open_ship_shop(store, tmp_path, scripted(), outbox_lease_s=3600, **QUICK) as (app, _):
        put_books(app, 2)
        with failpoints.call(place, refuse):
            drain(app)
        # Nobody waits for a lease that lasts an hour.
        drain_until(app, lambda: app.outbox.status().lanes == 0)
        assert app.outbox.status().dead == 0 and sorted(times_sent(script)) == ["0000", "0001"]


Answer = Callable[[Sequence[Parcel]], list[Shipped]]


def recording(order: list[str], name: str) -> Answer:
    def answer(parcels: Sequence[Parcel]) -> list[Shipped]:
        order.append(name)
        return [SHIPPED] * len(parcels)

    return answer


def test_more_busy_channels_than_threads_take_turns(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = install(tmp_path, monkeypatch, "x", "y")
    order: list[str] = []
    rules = [scripted(name, f"sink.{name}", commit={"batchSize": 1}) for name in "xy"]
    with open_ship_shop(store, tmp_path, *rules, ship_threads=1) as (app, _):

        def when_both_are_busy(answer: Answer) -> Answer:
            def answering(parcels: Sequence[Parcel]) -> list[Shipped]:
                # A channel that was idle a moment ago gets its turn when somebody looks.
                end = time.monotonic() + 30
                while not order and app.outbox.status().lanes != 20:
                    assert time.monotonic() < end
                    time.sleep(0.005)
                return answer(parcels)

            return answering

        x.answering = when_both_are_busy(recording(order, "x"))
        y.answering = when_both_are_busy(recording(order, "y"))
        put_books(app, 10)
        drain(app)
    assert len(order) == 20 and any(turns in "".join(order) for turns in ("xyxyxyxy", "yxyxyxyx"))


def test_a_channel_that_waits_for_its_turn_leaves_its_thread_to_others(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = install(tmp_path, monkeypatch, "x", "y")
    order: list[str] = []
    x.answering, y.answering = recording(order, "x"), recording(order, "y")
    slow = scripted("x", "sink.x", commit={"batchSize": 10, "perSecond": 4})
    quick = scripted("y", "sink.y", commit={"batchSize": 1})
    with open_ship_shop(store, tmp_path, slow, quick, ship_threads=1) as (app, _):
        put_books(app, 8)
        drain_until(app, lambda: app.outbox.status().lanes == 0)
    assert (order.count("x"), order.count("y"), order[-1]) == (2, 8, "x")


def test_one_that_makes_its_receiver_look_down_is_found_and_given_up(
    store: Store, tmp_path: Path, script: Script
) -> None:
    def answer(parcels: Sequence[Parcel]) -> list[Shipped]:
        if any(parcel.document.doc_id == "shop__bad" for parcel in parcels):
            raise KeyError("of what it was sent")
        return [SHIPPED] * len(parcels)

    script.answering = answer
    with open_ship_shop(store, tmp_path, scripted(), ship_max_attempts=3, **QUICK) as (app, shop):
        put_book(shop, "bad")
        put_books(app, 20)
        # It remembers what failed together.
        worker = app.worker(2)
        fresh, end = 0, time.monotonic() + 60
        while not app.outbox.status().dead:
            assert time.monotonic() < end
            put_book(shop, f"fresh{fresh}")
            fresh += 1
            worker.drain()
            # For longer than it rests.
            time.sleep(0.03)
        [dead] = app.outbox.dead_letters().entries
        assert (dead.aggregate_id, dead.attempts) == ("shop:BOOK#shop#bad#sink.scripted", 3)
        drain_until(app, lambda: app.outbox.status().lanes == 1)
        assert app.outbox.status().dead == 1


def test_a_newer_event_has_all_its_attempts_when_the_one_before_it_has_none(
    store: Store, tmp_path: Path, script: Script
) -> None:
    script.answering = lambda parcels: [retry("busy")] * len(parcels)
    with open_ship_shop(store, tmp_path, scripted(), ship_max_attempts=3, **QUICK) as (app, shop):
        for turn in (1, 2):
            put_book(shop, "978", price=turn)
            drain_until(app, lambda: app.outbox.status().dead == 1)
            assert times_sent(script) == {"978": 3 * turn}


def ship_or_die(url: str, objects: str | None, base: str) -> None:
    """A worker whose process ends when its sink is given one of the books."""
    script = SCRIPTS["one"] = Script()

    def answer(parcels: Sequence[Parcel]) -> list[Shipped]:
        if any(parcel.document.doc_id == "shop__0005" for parcel in parcels):
            os._exit(9)
        return [SHIPPED] * len(parcels)

    script.answering = answer
    sys.path.insert(0, f"{base}/plugins")
    with Store(url, objects).open(ship_base=base, ship_max_attempts=3, **QUICK) as app:
        drain(app)


@pytest.mark.deep("each death is a process")
def test_one_that_kills_workers_takes_no_others_with_it(store: Store, tmp_path: Path, script: Script) -> None:
    with store.open(ship_base=str(tmp_path)) as app:
        app.contracts.load(shop_contracts(scripted()))
        put_books(app, 12)
    deaths = 0
    while True:
        with Actor(ship_or_die, store.url, store.objects, str(tmp_path)) as worker:
            if worker.wait() == 0:
                break
        deaths += 1
        assert deaths < 30
        # Whoever comes next finds all leases of the dead run out.
        change(store, "UPDATE lane SET lease_until = 1 WHERE lease_until IS NOT NULL")
    with store.open() as app:
        [dead] = app.outbox.dead_letters().entries
        assert (dead.aggregate_id, dead.attempts) == ("shop:BOOK#shop#0005#sink.scripted", 3)
        assert app.outbox.status().lanes == 1 and deaths >= 3
