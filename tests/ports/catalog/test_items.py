"""Writers of one namespace of a LangGraph store take turns, whoever empties it and whoever fills it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langgraph.store.base import PutOp

from analemma.langgraph import AnalemmaStore
from analemma.testing import failpoints
from tests.postgres_locks import beside, deadlocks, wait_for_waiting
from tests.raw_rows import is_sqlite
from tests.stores import Store

SPACE = ("users", "ann")


def put(key: str) -> PutOp:
    return PutOp(SPACE, key, {})


def delete(key: str) -> PutOp:
    return PutOp(SPACE, key, None)


@pytest.mark.both_stores("a row that others lock, and one writer at a time")
@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        pytest.param(put("new"), delete("old"), ["new"], id="emptied while it is filled"),
        pytest.param(delete("old"), put("new"), ["new"], id="filled while it is emptied"),
        pytest.param(delete("old"), delete("old"), [], id="emptied twice"),
    ],
)
def test_the_second_waits_for_the_first(store: Store, first: PutOp, second: PutOp, left: list[str]) -> None:
    with store.open() as app, store.open() as other:
        memory, theirs = AnalemmaStore(app), AnalemmaStore(other)
        memory.put(SPACE, "old", {})
        with (
            failpoints.paused("items.before_commit", lambda: memory.batch([first])) as slow,
            beside(lambda: theirs.batch([second])) as thread,
        ):
            if not is_sqlite(store):
                wait_for_waiting(store.url, thread)
            assert thread.is_alive(), "it did not wait"
            slow.go_on()
        assert [item.key for item in memory.search(("users",))] == left
        assert memory.list_namespaces() == [SPACE][: len(left)]


def test_batches_in_opposite_orders_never_wait_for_each_other_in_a_circle(migrated_url: str) -> None:
    spaces = [("users", name) for name in "abcd"]

    def work(memory: Any, worker: int) -> None:
        for turn in range(10):
            chosen = spaces if (worker + turn) % 2 else spaces[::-1]
            memory.batch([PutOp(space, f"{worker}", {}) for space in chosen])
            memory.batch([PutOp(space, f"{worker}", None) for space in chosen])

    with Store(migrated_url).open() as app, ThreadPoolExecutor(4) as pool:
        memory = AnalemmaStore(app)
        list(pool.map(lambda worker: work(memory, worker), range(4)))
        assert memory.list_namespaces() == []
    assert deadlocks(migrated_url) == 0


def test_a_prefix_is_a_namespace_and_what_is_below_it(store: Store) -> None:
    spaces = [("a",), ("a", "b"), ("a", "b", "c"), ("a\x01",), ("ab",), ("b",), ("é",)]
    with store.open() as app:
        memory = AnalemmaStore(app)
        memory.batch([PutOp(space, "k", {}) for space in spaces])

        def below(*prefix: str) -> list[tuple[str, ...]]:
            listed = sorted(memory.list_namespaces(prefix=prefix))
            assert sorted(item.namespace for item in memory.search(prefix)) == listed
            return listed

        assert below() == spaces
        assert below("a") == spaces[:3]
        assert below("a", "b") == spaces[1:3]
        assert below("c") == []
