"""AnalemmaStore: items that expire, by the database's clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.store.base import GetOp, ListNamespacesOp, PutOp, SearchOp

from analemma import App
from analemma.catalog import items
from analemma.catalog.engine import Statements
from analemma.errors import Invalid
from analemma.langgraph import AnalemmaStore
from analemma.langgraph.store_sweeper import Sweeper
from tests.stores import Store

ANN = ("users", "ann")
MINUTE_US = 60_000_000


class Hands:
    """A database's clock whose hands a test moves."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000_000

    def __call__(self, source: Statements, /) -> int:
        return self.now

    def move(self, minutes: float) -> None:
        self.now += int(minutes * MINUTE_US)


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open(sqlite_synchronous="NORMAL") as app:
        yield app


@pytest.fixture
def hands() -> Hands:
    return Hands()


def keys(found: Any) -> list[str]:
    return [item.key for item in found]


def rows(app: App) -> int:
    with app.catalog.engine.transaction() as tx:
        spaces = tx.all("spaces_below", tenant=app.default.id, low=b"", high=b"\xff", after=0, limit=1000)
        found = [tx.all("items_of_space", tenant=1, space=s[0], after=0, now=-1, limit=1000) for s in spaces]
    return sum(map(len, found))


def test_an_expired_item_is_gone_before_it_is_swept(app: App, hands: Hands) -> None:
    memory = AnalemmaStore(app, database_clock=hands)
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
    assert (rows(app), memory.sweep_ttl(), rows(app)) == (4, 2, 2)
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


def test_a_reading_without_expiry_writes_nothing_and_asks_no_clock(app: App) -> None:
    memory = AnalemmaStore(app)
    memory.put(ANN, "k", {})
    app.catalog.engine.statements.clear()
    assert memory.get(ANN, "k") is not None
    assert dict(app.catalog.engine.statements) == {"item": 1}


def test_sweeping_goes_in_steps(app: App, hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "SWEEP_SPACES", 2)
    monkeypatch.setattr(items, "SWEEP_ITEMS", 3)
    memory = AnalemmaStore(app, database_clock=hands)
    memory.batch([PutOp((f"s{n % 4}",), str(n), {}, ttl=1 if n < 14 else 5) for n in range(16)])
    hands.move(2)
    assert memory.sweep_ttl() == 14
    assert rows(app) == 2
    assert sorted(keys(memory.search(()))) == ["14", "15"]


def test_the_times_of_one_store_are_the_databases(store: Store) -> None:
    with store.open() as app:
        memory = AnalemmaStore(app, ttl={"default_ttl": 0.001})
        memory.put(ANN, "k", {})
        deadline = time.monotonic() + 30
        while memory.get(ANN, "k", refresh_ttl=False) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert memory.sweep_ttl() == 1


@pytest.mark.parametrize("ttl", ["1", -1, float("nan"), True])
def test_a_default_that_is_no_time_is_refused_at_once(ttl: Any) -> None:
    with pytest.raises(Invalid, match="time to live"):
        AnalemmaStore("sqlite:///:memory:", ttl={"default_ttl": ttl})


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


def test_a_sweep_that_fails_is_tried_again() -> None:
    swept = threading.Event()
    calls: list[int] = []

    def sweep() -> int:
        calls.append(len(calls))
        if len(calls) == 1:
            raise Invalid("not now")
        swept.set()
        return 1

    sweeper = Sweeper(sweep)
    sweeper.start(0.01)
    assert swept.wait(30)
    assert sweeper.stop(30)
    with pytest.raises(Invalid, match="interval"):
        sweeper.start(0)
