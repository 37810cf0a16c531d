"""Watching: every version, once, in order."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from analemma import App
from analemma.clock import SystemClock
from analemma.errors import Invalid
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open() as app:
        yield app


def save(app: App, count: int) -> None:
    for number in range(count):
        app.kernel.save_state_delta({"n": number}, **PLACE)


def test_what_is_there_comes_first_then_it_ends_after_silence(app: App) -> None:
    save(app, 230)
    seen = [version.version for version in app.kernel.watch(**PLACE, since=0, timeout_s=0)]
    assert seen == list(range(1, 231))
    assert [version.version for version in app.kernel.watch(**PLACE, since=228, timeout_s=0)] == [229, 230]
    assert list(app.kernel.watch(**PLACE, since=230, timeout_s=0.01, poll_s=0.005)) == []


def test_without_since_it_begins_now_not_when_it_is_first_asked(app: App) -> None:
    save(app, 2)
    watch = app.kernel.watch(**PLACE, timeout_s=0)
    save(app, 1)
    assert [version.version for version in watch] == [3]


def test_versions_of_another_process_arrive_once_and_in_order(app: App, store: Store) -> None:
    watch = app.kernel.watch(**PLACE, timeout_s=5, poll_s=0.005)

    def write() -> None:
        with store.open() as other:
            save(other, 60)

    writer = threading.Thread(target=write)
    writer.start()
    seen = [next(watch).version for _ in range(60)]
    writer.join()
    assert seen == list(range(1, 61))


def test_it_wakes_up_soon_after_a_commit(app: App) -> None:
    save(app, 1)
    watch = app.kernel.watch(**PLACE, timeout_s=60, poll_s=0.01)
    timer = threading.Timer(0.1, save, (app, 1))
    timer.start()
    began = time.monotonic()
    assert next(watch).version == 2
    assert time.monotonic() - began < 20
    timer.join()


def test_waiting_costs_one_small_query_per_look(app: App) -> None:
    save(app, 1)
    before = app.catalog.engine.statements.copy()
    assert list(app.kernel.watch(**PLACE, timeout_s=0.1, poll_s=0.02)) == []
    spent = app.catalog.engine.statements - before
    assert set(spent) == {"head", "versions_after"} and spent["versions_after"] <= 8


def test_expired_versions_are_left_out(app: App) -> None:
    save(app, 5)
    app.kernel.set_retention(owner_id="ann", keep_last=2)
    app.kernel.expire(**PLACE)
    assert [version.version for version in app.kernel.watch(**PLACE, since=0, timeout_s=0)] == [4, 5]


def test_odd_times_are_refused(app: App) -> None:
    with pytest.raises(Invalid):
        app.kernel.watch(**PLACE, poll_s=0)
    with pytest.raises(Invalid):
        app.kernel.watch(**PLACE, timeout_s=-1)


def test_looking_seldom_is_no_sleep_that_no_machine_can_do(app: App) -> None:
    class Slept(Exception):
        pass

    class Clock(SystemClock):
        def sleep(self, seconds: float) -> None:
            time.sleep(min(seconds, 0.0) if seconds <= 3600 else seconds)
            raise Slept

    kernel = copy.copy(app.kernel)
    kernel._clock = Clock()
    for poll_s in (float("inf"), 1e300):
        with pytest.raises(Slept):
            next(kernel.watch(**PLACE, poll_s=poll_s))
