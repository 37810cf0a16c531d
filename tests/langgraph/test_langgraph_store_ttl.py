"""AnalemmaStore: items that expire, by the database's clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.store.base import GetOp, ListNamespacesOp, PutOp, SearchOp

from analemma import App
from analemma.errors import Invalid
from analemma.langgraph import AnalemmaStore
from tests.raw_rows import select
from tests.stores import Store

ANN = ("users", "ann")
MINUTE_US = 60_000_000


class Hands:
    """A database's clock whose hands a test moves."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000_000

    def __call__(self, source: object, /) -> int:
        return self.now

    def move(self, minutes: float) -> None:
        self.now += int(minutes * MINUTE_US)


@pytest.fixture
def app_of_store(store: Store) -> Iterator[App]:
    """For tests that count rows: nobody else has any."""
    with store.open(sqlite_synchronous="NORMAL") as app:
        yield app


@pytest.fixture
def hands() -> Hands:
    return Hands()


def keys(found: Any) -> list[str]:
    return [item.key for item in found]


def rows(store: Store) -> int:
    return int(select(store, "SELECT count(*) FROM item")[0][0])


def test_an_expired_item_is_gone_before_it_is_swept(store: Store, app_of_store: App, hands: Hands) -> None:
    memory = AnalemmaStore(app_of_store, database_clock=hands)
    memory.put(ANN, "short", {"n": 1}, ttl=1)
    memory.put(ANN, "long", {"n": 2}, ttl=10)
    memory.put(ANN, "for ever", {"n": 3})
    memory.put(("alone",), "short", {"n": 4}, ttl=1)
    hands.move(0.99)
    assert memory.get(ANN, "short", refresh_ttl=False) is not None
    hands.move(0.01)
    assert memory.get(ANN, "short") is None
    assert keys(memory.search(())) == ["long", "for ever"]
    assert memory.list_namespaces() == [ANN]
    assert (rows(store), memory.sweep_ttl(), rows(store)) == (4, 2, 2)
    assert memory.sweep_ttl() == 0


def test_reading_gives_more_time_unless_told_otherwise(app: App, hands: Hands) -> None:
    for refresh in (True, False):
        memory = AnalemmaStore(app, ttl={"refresh_on_read": refresh, "default_ttl": 1}, database_clock=hands)
        for name in ("got", "found", "batched", "left"):
            memory.put((name,), "k", {})
        hands.move(0.6)
        memory.get(("got",), "k")
        memory.search(("found",))
        memory.batch([GetOp(("batched",), "k", refresh), PutOp(("other",), "k", {})])
        hands.move(0.6)
        alive = [namespace for (namespace,) in memory.list_namespaces()]
        assert alive == (["batched", "found", "got", "other"] if refresh else ["other"])
        # The operation's own word counts more.
        memory.put(("told",), "k", {})
        hands.move(0.6)
        memory.get(("told",), "k", refresh_ttl=not refresh)
        hands.move(0.6)
        assert (memory.get(("told",), "k") is None) == refresh
        hands.move(60)
        memory.sweep_ttl()


def test_a_put_begins_the_time_anew_or_ends_it(app: App, hands: Hands) -> None:
    memory = AnalemmaStore(app, ttl={"default_ttl": 1.0}, database_clock=hands)
    memory.put(ANN, "default", {})
    memory.put(ANN, "again", {})
    memory.put(ANN, "kept", {})
    memory.put(ANN, "never", {}, ttl=None)
    hands.move(0.6)
    memory.put(ANN, "again", {})
    memory.put(ANN, "kept", {}, ttl=None)
    hands.move(0.6)
    assert keys(memory.search(ANN, refresh_ttl=False)) == ["again", "kept", "never"]


def test_an_expired_item_that_is_put_again_is_a_new_one(app: App, hands: Hands) -> None:
    memory = AnalemmaStore(app, database_clock=hands)
    memory.put(ANN, "first", {}, ttl=1)
    memory.put(ANN, "second", {})
    first = memory.get(ANN, "first")
    hands.move(2)
    memory.put(ANN, "first", {})
    again = memory.get(ANN, "first")
    assert first is not None
    assert again is not None
    assert again.created_at > first.created_at
    assert keys(memory.search(ANN)) == ["second", "first"]


def test_expired_items_can_be_asked_for(app: App, hands: Hands) -> None:
    memory = AnalemmaStore(app, ttl={"omit_expired": False}, database_clock=hands)
    memory.put(ANN, "k", {}, ttl=1)
    hands.move(2)
    assert keys(memory.search(ANN, refresh_ttl=False)) == ["k"]
    assert memory.list_namespaces() == [ANN]
    # As other stores have it, reading one brings it back.
    assert memory.get(ANN, "k") is not None
    assert memory.sweep_ttl() == 0
    hands.move(2)
    assert memory.sweep_ttl() == 1


def test_a_reading_without_expiry_asks_no_clock(app: App) -> None:
    def broken(source: object, /) -> int:
        raise Invalid("nobody is to ask")

    AnalemmaStore(app).put(ANN, "k", {})
    assert AnalemmaStore(app, database_clock=broken).get(ANN, "k") is not None


def test_sweeping_goes_in_steps(store: Store, app_of_store: App, hands: Hands) -> None:
    memory = AnalemmaStore(app_of_store, database_clock=hands)
    memory.batch([PutOp((f"s{n % 130}",), str(n), {}, ttl=1 if n < 1300 else 5) for n in range(1310)])
    memory.batch([PutOp(("one",), str(n), {}, ttl=1) for n in range(1200)])
    hands.move(2)
    assert memory.sweep_ttl() == 2500
    assert rows(store) == 10
    assert sorted(keys(memory.search((), limit=100))) == [str(n) for n in range(1300, 1310)]


def test_the_times_of_one_store_are_the_databases(store: Store) -> None:
    with store.open() as app:
        memory = AnalemmaStore(app, ttl={"default_ttl": 0.001})
        memory.put(ANN, "k", {})
        deadline = time.monotonic() + 30
        while memory.get(ANN, "k", refresh_ttl=False) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert memory.sweep_ttl() == 1


def test_a_default_that_is_no_time_is_refused_at_once(app: App) -> None:
    times: list[Any] = ["1", -1, float("nan"), True]
    for ttl in times:
        with pytest.raises(Invalid, match="time to live"):
            AnalemmaStore(app, ttl={"default_ttl": ttl})


def test_a_sweeper_sweeps_until_it_is_stopped() -> None:
    with AnalemmaStore("sqlite:///:memory:") as memory:
        memory.put(ANN, "k", {}, ttl=0)
        ended = memory.start_ttl_sweeper(0.0005)
        assert memory.start_ttl_sweeper(1) is ended
        deadline = time.monotonic() + 30
        while memory.sweep_ttl() or AnalemmaStore.batch(memory, [ListNamespacesOp(), SearchOp(())]) != [[], []]:
            assert time.monotonic() < deadline
        assert memory.stop_ttl_sweeper(30)
        assert ended.done()
        cancelled = memory.start_ttl_sweeper(1000)
        assert cancelled.cancel()
    assert not [thread for thread in threading.enumerate() if thread.name == "analemma-store-sweeper"]


def test_a_sweep_that_fails_is_tried_again(app: App) -> None:
    swept = threading.Event()
    asked: list[int] = []

    def clock(source: object, /) -> int:
        asked.append(len(asked))
        if len(asked) == 1:
            raise Invalid("not now")
        swept.set()
        return 1_800_000_000_000_000

    memory = AnalemmaStore(app, database_clock=clock)
    memory.start_ttl_sweeper(0.0005)
    assert swept.wait(30)
    assert memory.stop_ttl_sweeper(30)
    with pytest.raises(Invalid, match="interval"):
        memory.start_ttl_sweeper(-1)
