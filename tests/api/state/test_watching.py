"""Watching: every version, once, in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from analemma import App
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
    save(app, 130)
    seen = [version.version for version in app.kernel.watch(**PLACE, since=0, timeout_s=0)]
    assert seen == list(range(1, 131))
    assert [version.version for version in app.kernel.watch(**PLACE, since=128, timeout_s=0)] == [129, 130]
    assert list(app.kernel.watch(**PLACE, since=130, timeout_s=0.01, poll_s=0.005)) == []


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


def test_it_wakes_up_after_a_commit(app: App) -> None:
    save(app, 1)
    watch = app.kernel.watch(**PLACE, timeout_s=60, poll_s=0.01)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(next, watch)
        save(app, 1)
        assert found.result(60).version == 2


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


def test_looking_seldom_is_no_sleep_that_no_machine_can_do(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    class Slept(Exception):
        pass

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        raise Slept

    monkeypatch.setattr(time, "sleep", sleep)
    for poll_s in (float("inf"), 1e300):
        with pytest.raises(Slept):
            next(app.kernel.watch(**PLACE, poll_s=poll_s))
    assert slept == [3600.0, 3600.0]
