"""AnalemmaStore: any program of batches gives the answers of LangGraph's InMemoryStore, in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("langgraph.store.memory")

from langgraph.store.base import GetOp, Item, ListNamespacesOp, MatchCondition, Op, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from analemma.errors import Invalid
from analemma.langgraph import AnalemmaStore
from tests import depth
from tests.stores import Store

# Few of each, so that programs meet themselves; "a-", "a\x01" and "aé" sort around whatever separates labels.
labels = st.sampled_from(["a", "b", "a-", "a\x01", "aé", "\U0001f600"])
namespaces = st.lists(labels, min_size=1, max_size=3).map(tuple)
prefixes = st.lists(labels, max_size=3).map(tuple)
keys = st.sampled_from(["k", "K", "", "l"])
numbers = st.integers(-3, 3) | st.sampled_from([0.0, -0.0, 1.0, 1.5, 2.0, 1e300, 2**53, 2**70])
scalars = st.none() | st.booleans() | numbers | st.sampled_from(["", "x", "y", "1", "2.5", "1e1"])
jsons = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("nxy"), inner, max_size=2)
)
values = st.dictionaries(st.sampled_from(["n", "x", "y", "z"]), jsons, max_size=3)
comparisons = st.dictionaries(
    st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]), jsons, min_size=1, max_size=2
)
filters = st.none() | st.dictionaries(
    st.sampled_from(["n", "x", "y"]),
    jsons | comparisons | st.dictionaries(st.sampled_from("nxy"), comparisons, max_size=1),
    max_size=2,
)
pages = st.sampled_from([(10, 0), (1, 0), (2, 1), (0, 0), (100, 3)])
wild = st.lists(labels | st.just("*"), max_size=3).map(tuple)
conditions = st.lists(
    st.builds(MatchCondition, match_type=st.sampled_from(["prefix", "suffix"]), path=wild), max_size=2
).map(tuple)

gets = st.tuples(namespaces, keys).map(lambda parts: GetOp(*parts))
puts = st.tuples(namespaces, keys, values | st.none()).map(lambda parts: PutOp(*parts))
searches = st.tuples(prefixes, filters, pages).map(lambda parts: SearchOp(parts[0], parts[1], *parts[2]))
listings = st.tuples(conditions, st.none() | st.integers(1, 3), pages).map(
    lambda parts: ListNamespacesOp(parts[0], parts[1], *parts[2])
)
batches = st.lists(st.one_of(puts, puts, gets, searches, listings), min_size=1, max_size=8)

RAISES = object()


class Oracle:
    """InMemoryStore without what it does by accident: a namespace without items is none, whoever asked for it. So each
    question is asked of one that holds only what is there."""

    def __init__(self) -> None:
        self._items: dict[tuple[str, ...], dict[str, Any]] = {}

    def batch(self, ops: list[Op]) -> list[Any]:
        results: list[Any] = []
        for op in ops:
            if isinstance(op, PutOp):
                results.append(None)
                continue
            try:
                results.append(self._memory().batch([op])[0])
            except (TypeError, ValueError):
                # It cannot order what is missing or is no number.
                results.append(RAISES)
        # Of several writes to one item the last counts, at the place of the first.
        last = {(op.namespace, op.key): op.value for op in ops if isinstance(op, PutOp)}
        for (namespace, key), value in last.items():
            if value is not None:
                self._items.setdefault(namespace, {})[key] = value
            elif namespace in self._items:
                self._items[namespace].pop(key, None)
        self._items = {namespace: items for namespace, items in self._items.items() if items}
        return results

    def _memory(self) -> InMemoryStore:
        memory = InMemoryStore()
        memory.batch([PutOp(where, key, value) for where, items in self._items.items() for key, value in items.items()])
        return memory


def shown(result: Any) -> Any:
    """What must be equal: everything but times, with 1, 1.0 and True apart."""
    if isinstance(result, Item):
        return type(result).__name__, result.namespace, result.key, repr(result.value)
    return [shown(one) for one in result] if isinstance(result, list) else result


tenants = count(1)


@settings(
    max_examples=depth.count(20, deep=60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(program=st.lists(batches, min_size=1, max_size=6))
def test_programs_give_the_answers_of_the_memory_store(store: Store, opened: dict[str, Any], program: Any) -> None:
    if "app" not in opened:
        opened["app"] = store.open(sqlite_synchronous="NORMAL")
    tested = AnalemmaStore(opened["app"], tenant=f"program-{next(tenants)}")
    oracle = Oracle()
    for batch in program:
        expected = oracle.batch(batch)
        found = tested.batch(batch)
        for op, right, answer in zip(batch, expected, found, strict=True):
            if right is not RAISES:
                assert shown(answer) == shown(right), op
    everything: list[Op] = [SearchOp((), None, 1000), ListNamespacesOp(None, None, 1000)]
    assert [shown(one) for one in tested.batch(everything)] == [shown(one) for one in oracle.batch(everything)]


@pytest.fixture
def opened() -> Any:
    """The app that all examples of one test share: each has a tenant of its own."""
    holder: dict[str, Any] = {}
    yield holder
    for app in holder.values():
        app.close()


any_labels = st.lists(st.text(st.characters(exclude_characters=".\0", exclude_categories=["Cs"]), min_size=1))


@pytest.fixture(scope="module")
def memory() -> Iterator[AnalemmaStore]:
    with AnalemmaStore("sqlite:///:memory:") as memory:
        yield memory


@settings(max_examples=depth.count(60, deep=300), deadline=None)
@given(one=any_labels.map(tuple), other=any_labels.map(tuple))
def test_namespaces_are_in_the_order_of_their_labels_and_below_those_they_begin_with(
    memory: AnalemmaStore, one: tuple[str, ...], other: tuple[str, ...]
) -> None:
    # Below the whole of one, and beside it: whatever its labels are.
    spaces = {("root", *one), ("root", *other), ("root", *one, *other)}
    try:
        memory.batch([PutOp(space, "k", {"n": 1}) for space in spaces])
    except Invalid:
        return
    try:
        assert memory.list_namespaces(limit=10) == sorted(spaces)
        for space in spaces:
            found = {item.namespace for item in memory.search(space, limit=10)}
            assert found == {each for each in spaces if each[: len(space)] == space}
    finally:
        memory.batch([PutOp(space, "k", None) for space in spaces])


any_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abé\U0001f600"), inner, max_size=4),
)


@settings(max_examples=depth.count(60, deep=300), deadline=None)
@given(value=st.dictionaries(st.text("abé\U0001f600"), any_json, max_size=4))
def test_values_come_back_exactly(memory: AnalemmaStore, value: dict[str, Any]) -> None:
    memory.put(("values",), "k", value)
    found = memory.get(("values",), "k")
    assert found is not None and repr(found.value) == repr(value)
    memory.delete(("values",), "k")
