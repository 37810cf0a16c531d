"""AnalemmaStore: items by namespace and key. What InMemoryStore answers is compared in tests/property."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import GetOp, InvalidNamespaceError, ListNamespacesOp, MatchCondition, PutOp, SearchOp

import analemma
from analemma import App
from analemma.errors import Invalid, Limit, Unavailable
from analemma.langgraph import AnalemmaStore
from tests.raw_rows import select
from tests.stores import Store

ANN = ("users", "ann")
LONGEST = 1024
"""Bytes of the longest namespace, and of the longest key."""


@pytest.fixture
def memory(app: App) -> AnalemmaStore:
    return AnalemmaStore(app)


@pytest.fixture(scope="module")
def embedded() -> Iterator[AnalemmaStore]:
    """For what is refused before any database is asked."""
    with AnalemmaStore("sqlite:///:memory:") as memory:
        yield memory


def keys(found: Any) -> list[str]:
    return [item.key for item in found]


def test_an_item_survives_reopening(store: Store) -> None:
    with store.open() as app:
        AnalemmaStore(app).put(ANN, "food", {"likes": ["pizza", 1.0, None]})
    with store.open() as app:
        item = AnalemmaStore(app).get(ANN, "food")
    assert item is not None
    assert (item.namespace, item.key, repr(item.value)) == (ANN, "food", "{'likes': ['pizza', 1.0, None]}")


def test_a_store_that_it_opened_is_closed_with_it(tmp_path: Path) -> None:
    with AnalemmaStore(tmp_path / "store") as memory:
        memory.put(ANN, "k", {"n": 1})
    with pytest.raises(Unavailable, match="closed"):
        memory.get(ANN, "k")
    with analemma.open(tmp_path / "store") as app:
        AnalemmaStore(app).close()
        assert AnalemmaStore(app).get(ANN, "k") is not None


def test_creation_is_remembered_across_updates(memory: AnalemmaStore) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=2)
    memory.put(ANN, "k", {"n": 1})
    first = memory.get(ANN, "k")
    memory.put(ANN, "k", {"n": 2})
    second = memory.get(ANN, "k")
    assert first is not None
    assert second is not None
    assert before <= first.created_at == second.created_at == first.updated_at <= second.updated_at
    assert second.updated_at <= datetime.now(UTC) + timedelta(milliseconds=2)
    memory.delete(ANN, "k")
    assert memory.get(ANN, "k") is None


def test_tenants_do_not_see_each_other(app: App) -> None:
    one, other = AnalemmaStore(app, tenant="one"), AnalemmaStore(app, tenant="other")
    one.put(ANN, "k", {"n": 1})
    other.put(("users", "bob"), "k", {"n": 2})
    assert other.get(ANN, "k") is None
    assert keys(other.search(())) == ["k"]
    assert other.list_namespaces() == [("users", "bob")]
    other.delete(ANN, "k")
    assert one.get(ANN, "k") is not None


def test_a_batch_reads_what_was_there_before_it_writes(memory: AnalemmaStore) -> None:
    memory.put(ANN, "k", {"n": 1})
    results: list[Any] = memory.batch(
        [
            PutOp(ANN, "k", {"n": 2}),
            GetOp(ANN, "k"),
            PutOp(ANN, "new", {"n": 3}),
            SearchOp(ANN),
            ListNamespacesOp(),
            PutOp(ANN, "k", {"n": 4}),
        ]
    )
    assert results[1] is not None
    assert results[1].value == {"n": 1}
    assert keys(results[3]) == ["k"]
    assert results[4] == [ANN]
    assert [item.value for item in memory.search(ANN)] == [{"n": 4}, {"n": 3}]


def test_a_batch_with_something_wrong_in_it_changes_nothing(embedded: AnalemmaStore) -> None:
    good = PutOp(ANN, "k", {"n": 1})
    for bad in (
        PutOp(ANN, "k2", {"n": float("nan")}),
        PutOp((), "k2", {}),
        PutOp(ANN, "k2", {}, ttl=-1),
        SearchOp(ANN, {"n": {"$near": 1}}),
        ListNamespacesOp((MatchCondition("infix", ("a",)),)),  # type: ignore[arg-type]
        "no operation",
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            embedded.batch([good, bad])  # type: ignore[list-item]
    assert embedded.search(()) == []


def test_labels_are_checked_in_operations_too(embedded: AnalemmaStore) -> None:
    namespaces: dict[str, Any] = {"periods": ("a.b",), "empty": ("",), "must be strings": (1,), "NUL": ("a\0b",)}
    for why, namespace in namespaces.items():
        for op in (
            PutOp(namespace, "k", {}),
            GetOp(namespace, "k"),
            SearchOp(namespace),
            ListNamespacesOp((MatchCondition("prefix", namespace),)),
        ):
            with pytest.raises(InvalidNamespaceError, match=why):
                embedded.batch([op])


HOSTILE: list[tuple[Any, str]] = [
    (PutOp(("a" * (LONGEST + 1),), "k", {}), "1025 bytes"),
    (PutOp(("é",) * 400, "k", {}), "1199 bytes"),
    (PutOp(("\ud800",), "k", {}), "Unicode"),
    (PutOp(ANN, "k" * (LONGEST + 1), {}), "1025 bytes"),
    (PutOp(ANN, "\0", {}), "NUL"),
    (GetOp(ANN, "\ud800"), "Unicode"),
    (GetOp(ANN, 1), "type int"),  # type: ignore[arg-type]
    (PutOp(ANN, "k", [1]), "mapping"),  # type: ignore[arg-type]
    (PutOp(ANN, "k", {"at": datetime.now(UTC)}), "/at"),
    (PutOp(ANN, "k", {"a": [{1: 2}]}), "/a/0/1"),
    (PutOp(ANN, "k", {"a": "\ud800"}), "surrogate"),
    (PutOp(ANN, "k", {}, ttl="soon"), "type str"),  # type: ignore[arg-type]
    (PutOp(ANN, "k", {}, ttl=float("inf")), "time to live"),
    (SearchOp(ANN, limit=-1), "limit"),
    (SearchOp(ANN, offset=-1), "offset"),
    (SearchOp(ANN, ["n"]), "type list"),  # type: ignore[arg-type]
]


def test_hostile_input_is_refused(embedded: AnalemmaStore) -> None:
    for op, why in HOSTILE:
        with pytest.raises(Invalid, match=why):
            embedded.batch([op])
    assert embedded.search(()) == []


def test_a_value_has_a_limit(memory: AnalemmaStore) -> None:
    with pytest.raises(Limit, match="16777223 bytes"):
        memory.put(ANN, "k", {"": "x" * (16 << 20)})
    memory.put(ANN, "k", {"": "x" * (1 << 20)})
    found = memory.get(ANN, "k")
    assert found is not None
    assert len(found.value[""]) == 1 << 20


def test_a_cycle_is_refused(embedded: AnalemmaStore) -> None:
    loop: dict[str, Any] = {"tuple": ()}
    loop["self"] = [loop, loop]
    with pytest.raises(Invalid):
        embedded.put(ANN, "k", loop)


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


def test_what_json_has_a_form_for_is_stored_in_it(memory: AnalemmaStore) -> None:
    memory.put(ANN, "k", {Colour.RED: (Colour.RED, Level.HIGH, True), "big": 2**80})
    found = memory.get(ANN, "k")
    assert found is not None
    assert repr(found.value) == f"{{'red': ['red', 3, True], 'big': {2**80}}}"


def test_the_longest_names_fit(memory: AnalemmaStore) -> None:
    namespace, key = ("n" * LONGEST,), "k" * LONGEST
    memory.put(namespace, key, {"n": 1})
    assert memory.get(namespace, key) is not None
    assert memory.list_namespaces() == [namespace]


def test_what_cannot_be_compared_does_not_match(memory: AnalemmaStore) -> None:
    for key, value in {"none": None, "text": "b", "list": [1], "number": 2, "numeric": "10"}.items():
        memory.put(ANN, key, {"v": value})
    memory.put(ANN, "missing", {})

    def matching(wanted: Any) -> list[str]:
        return keys(memory.search(ANN, filter={"v": wanted}, limit=100))

    assert matching({"$gt": 1}) == ["number", "numeric"]
    assert matching({"$gt": "9"}) == ["text", "numeric"]
    assert matching({"$gte": "a"}) == ["text"]
    assert matching({"$lt": [2]}) == []
    assert matching({"$lt": 10**400}) == ["number"]
    assert matching({"$ne": (1,)}) == ["none", "text", "number", "numeric", "missing"]
    assert matching({"$eq": (1,)}) == matching([1]) == ["list"]
    assert matching(None) == ["none", "missing"]


def test_pages_of_a_large_namespace_meet_without_gaps(memory: AnalemmaStore) -> None:
    names = [f"{number:04}" for number in range(1200)]
    memory.batch([PutOp(("big",), name, {"even": int(name) % 2 == 0}) for name in names])
    memory.batch([PutOp(("small", name), name, {"even": False}) for name in names[:90]])
    assert keys(memory.search((), limit=5000)) == names + names[:90]
    paged = [keys(memory.search((), limit=300, offset=offset)) for offset in range(0, 1500, 300)]
    assert [name for page in paged for name in page] == names + names[:90]
    assert keys(memory.search((), filter={"even": True}, limit=5, offset=515)) == names[1030:1040:2]


def test_pages_of_namespaces_meet_without_gaps(memory: AnalemmaStore) -> None:
    spaces = [("many", f"{number:04}") for number in range(1050)]
    memory.batch([PutOp(space, "k", {"n": number}) for number, space in enumerate(spaces)])
    assert memory.list_namespaces(limit=5000) == spaces
    assert memory.list_namespaces(limit=100, offset=960) == spaces[960:]
    assert [item.namespace for item in memory.search(("many",), filter={"n": {"$gte": 995}}, limit=100)] == spaces[995:]


def test_pages_of_large_values_meet_without_gaps(memory: AnalemmaStore) -> None:
    names = [str(number) for number in range(70)]
    memory.batch([PutOp(ANN, name, {"text": "x" * 100_000}) for name in names])
    assert keys(memory.search(ANN, filter={"text": {"$ne": ""}}, limit=1000)) == names


def test_emptied_namespaces_are_gone(store: Store) -> None:
    with store.open() as app:
        memory = AnalemmaStore(app)
        memory.put(ANN, "k", {})
        memory.put(ANN, "l", {})
        memory.delete(ANN, "k")
        assert memory.list_namespaces() == [ANN]
        memory.delete(ANN, "l")
        memory.delete(ANN, "l")
        assert memory.list_namespaces() == []
        assert select(store, "SELECT count(*) FROM item_space") == [(0,)]


def test_everything_is_there_for_coroutines(app: App) -> None:
    async def use() -> None:
        async with AnalemmaStore(app) as memory:
            await asyncio.gather(*(memory.aput(ANN, str(number), {"n": number}) for number in range(20)))
            found = await memory.aget(ANN, "7")
            assert found is not None
            assert found.value == {"n": 7}
            assert sorted(keys(await memory.asearch(ANN, limit=100))) == sorted(map(str, range(20)))
            await memory.adelete(ANN, "7")
            assert await memory.aget(ANN, "7") is None
            assert await memory.alist_namespaces(prefix=("*",), max_depth=1) == [("users",)]

    asyncio.run(use())


@pytest.mark.both_stores("writers wait for each other as their database has it")
def test_threads_that_write_and_empty_the_same_namespaces_lose_nothing(app: App, memory: AnalemmaStore) -> None:
    def work(worker: int) -> None:
        # In opposite orders, and with deletes that empty a namespace which another is just entering.
        spaces = [("shared", name) for name in "abcd"]
        for turn in range(15):
            chosen = spaces if (worker + turn) % 2 else spaces[::-1]
            memory.batch([PutOp(space, f"{worker}", {"turn": turn}) for space in chosen])
            memory.batch([PutOp(space, f"{worker}", None) for space in chosen[:2]])
        memory.batch([PutOp(space, f"{worker}", {"turn": "last"}) for space in spaces])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    found = memory.search(("shared",), limit=100)
    assert sorted((item.namespace[1], item.key) for item in found) == [
        (name, str(n)) for name in "abcd" for n in range(4)
    ]
    assert {item.value["turn"] for item in found} == {"last"}
    # Namespaces stay together, whoever made them first.
    assert (
        len({item.namespace for item in found})
        == 4
        == 1 + sum(one.namespace != other.namespace for one, other in pairwise(found))
    )


def test_graphs_hand_it_to_their_nodes(memory: AnalemmaStore) -> None:
    from langgraph.graph import END, START, StateGraph
    from langgraph.runtime import Runtime

    def remember(state: dict[str, Any], runtime: Runtime[None]) -> dict[str, Any]:
        assert runtime.store is not None
        runtime.store.put(ANN, "seen", {"n": state["n"]})
        found = runtime.store.get(ANN, "seen")
        assert found is not None
        return {"n": found.value["n"] + 1}

    graph: Any = StateGraph(dict)  # type: ignore[type-var, unused-ignore]
    graph.add_node("remember", remember)
    graph.add_edge(START, "remember")
    graph.add_edge("remember", END)
    assert graph.compile(store=memory).invoke({"n": 1}) == {"n": 2}
    assert keys(memory.search(ANN)) == ["seen"]
