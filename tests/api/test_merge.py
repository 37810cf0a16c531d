"""Merging what two branches changed: strategies are asked, lists are merged by position or by key, and what is in doubt
is a conflict."""

from __future__ import annotations

from typing import Any

import pytest

import analemma
from analemma.errors import Conflict, Invalid
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


class Sides:
    """A workflow, and what two branches made of it."""

    def __init__(self, app: analemma.App, base: Any, ours: Any, theirs: Any, name: str = "trip") -> None:
        self.kernel = app.kernel
        self.name: dict[str, Any] = {"workflow_id": name, "owner_id": "ann"}
        first = self.kernel.save_state_delta({} if base is GONE else {"x": base}, **self.name)
        self.kernel.fork(first.manifest_id, owner_id="ann", branch="idea")
        for branch, value in (("main", ours), ("idea", theirs)):
            if value is GONE:
                self.kernel.save_state_delta({}, deleted=["x"], branch=branch, **self.name)
            else:
                self.kernel.save_state_delta({"x": value}, branch=branch, **self.name)

    def merged(self, **options: Any) -> Any:
        self.kernel.merge(source="idea", **options, **self.name)
        assert self.kernel.verify(**self.name).ok
        return self.kernel.load_latest_state(**self.name).get("x", GONE)

    def conflicts(self, **options: Any) -> list[str]:
        before = self.kernel.load_latest_state(**self.name)
        with pytest.raises(Conflict) as refused:
            self.kernel.merge(source="idea", **options, **self.name)
        assert self.kernel.load_latest_state(**self.name) == before
        return [each["path"] for each in refused.value.conflicts]


GONE = object()


def added(base: Any, ours: Any, theirs: Any) -> Any:
    return ours + theirs - base


def total(base: Any, ours: Any, theirs: Any) -> Any:
    return {**ours, **theirs, "sum": sum([*ours.values(), *theirs.values()]) - sum(base.values())}


ALIKE: dict[str, tuple[Any, Any, Any, Any]] = {
    # What is given: base, what both made of it, the strategy, what then stands.
    "a function": (0, 10, added, 20),
    "collect": (0, 10, "collect", [10, 10]),
    "append": (["a"], ["a", "b"], "append", ["a", "b", "b"]),
    "dedupe_append": (["a"], ["a", "b"], "dedupe_append", ["a", "b"]),
    "last_write_wins": (0, 10, "last_write_wins", 10),
    "one that does not apply": (0, 10, "append", 10),
    "refuse": (0, 10, "refuse", 10),
    "a name, of what both removed": (0, GONE, "collect", GONE),
    "a function, of what both removed": (5, GONE, lambda base, ours, theirs: base, 5),
    "nothing": (0, 10, None, 10),
}


def test_a_strategy_is_asked_also_where_both_sides_made_the_same_change(store: Store) -> None:
    merged = {}
    with store.open() as app:
        for kind, (base, both, strategy, _) in ALIKE.items():
            for where in ("the path", "everything"):
                options: dict[str, Any] = {}
                if strategy is not None:
                    options = {"strategies": {"x": strategy}} if where == "the path" else {"strategy": strategy}
                merged[kind, where] = Sides(app, base, both, both, f"{kind} for {where}").merged(**options)
    assert merged == {place: ALIKE[place[0]][3] for place in merged}


def test_a_function_is_asked_where_the_sides_changed_different_parts_of_its_value(store: Store) -> None:
    with store.open() as app:
        sides = Sides(app, {"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 3})
        assert sides.merged(strategies={"x": total}) == {"a": 1, "b": 3, "sum": 5}


def test_a_function_is_not_asked_where_only_one_side_changed_something(store: Store) -> None:
    def refuse(base: Any, ours: Any, theirs: Any) -> Any:
        raise AssertionError("nobody else changed it")

    with store.open() as app:
        assert Sides(app, {"a": 1, "b": 1}, {"a": 1, "b": 1}, {"a": 2, "b": 3}).merged(strategies={"x": refuse}) == {
            "a": 2,
            "b": 3,
        }


def test_what_unrelated_workflows_have_alike_stands_whatever_the_strategy(store: Store) -> None:
    with store.open() as app:
        app.kernel.save_state_delta({"n": 10, "log": ["a"]}, **NAME)
        other = app.kernel.save_state_delta({"n": 10, "log": ["a", "b"]}, workflow_id="other", owner_id="ann")
        app.kernel.merge(source=other.manifest_id, strategy="collect", **NAME)
        assert app.kernel.load_latest_state(**NAME) == {"n": 10, "log": [["a"], ["a", "b"]]}


BY_POSITION: dict[str, tuple[list[Any], list[Any], list[Any], list[Any]]] = {
    "items replaced": ([1, 2, 3], [10, 2, 3], [1, 2, 30], [10, 2, 30]),
    "neighbours replaced": ([1, 2, 3], [10, 2, 3], [1, 20, 3], [10, 20, 3]),
    "one replaced, one appended": ([1, 2, 3], [10, 2, 3], [1, 2, 3, 4], [10, 2, 3, 4]),
    "one removed, one inserted": ([1, 2, 3, 4], [2, 3, 4], [1, 2, 3, 9, 4], [2, 3, 9, 4]),
    "neighbours removed": ([1, 2, 3], [2, 3], [1, 3], [3]),
    "at both ends": ([1, 2], [0, 1, 2], [1, 2, 3], [0, 1, 2, 3]),
    "the same item alike, others not": ([1, 2, 3], [10, 2, 30], [10, 20, 3], [10, 20, 30]),
    "fields of one item": (
        [{"id": 1, "a": 1, "b": 1}, {"id": 2}],
        [{"id": 1, "a": 2, "b": 1}, {"id": 2}],
        [{"id": 1, "a": 1, "b": 2}, {"id": 2, "c": 1}],
        [{"id": 1, "a": 2, "b": 2}, {"id": 2, "c": 1}],
    ),
    "a list in an item": ([[1, 2, 3], "z"], [[0, 1, 2, 3], "z"], [[1, 2, 3, 4], "y"], [[0, 1, 2, 3, 4], "y"]),
    "equal items that nobody touched": (
        ["ok", "ok", 1, 2, "ok"],
        ["ok", "ok", 1, 5, "ok"],
        ["ok", "ok", 3, 2, "ok"],
        ["ok", "ok", 3, 5, "ok"],
    ),
    "1, 1.0 and True": ([1, 1.0, True], [1, 2.0, True], [1, 1.0, False], [1, 2.0, False]),
}


def typed(items: list[Any]) -> list[tuple[type, Any]]:
    return [(type(item), item) for item in items]


def test_lists_merge_by_position_where_the_alignment_is_unambiguous(store: Store) -> None:
    with store.open() as app:
        merged = {kind: Sides(app, *lists[:3], kind).merged() for kind, lists in BY_POSITION.items()}
    assert {kind: typed(found) for kind, found in merged.items()} == {
        kind: typed(lists[3]) for kind, lists in BY_POSITION.items()
    }


IN_DOUBT: dict[str, tuple[list[Any], list[Any], list[Any]]] = {
    "both appended": ([1], [1, 2], [1, 3]),
    "both inserted at one place": ([1, 2], [1, 8, 2], [1, 9, 2]),
    "both replaced one item": ([1, 2, 3], [1, 8, 3], [1, 9, 3]),
    "one removed what the other replaced": ([1, 2, 3], [1, 3], [1, 9, 3]),
    "inserted beside what the other replaced": ([1, 2, 3], [1, 8, 2, 3], [1, 9, 3]),
    "which of equal items was removed": (["a", "a"], ["a"], ["b", "a"]),
    "which of equal items is new": (["a", "b"], ["a", "a", "b"], ["z", "b"]),
    "items that changed places": ([1, 2], [2, 1], [1, 9, 2]),
    "one field of one item": ([{"n": 1, "m": 1}], [{"n": 2, "m": 1}], [{"n": 3, "m": 1}]),
}


def test_lists_whose_positions_are_in_doubt_are_a_conflict(store: Store) -> None:
    with store.open() as app:
        found = {kind: Sides(app, *lists, kind).conflicts() for kind, lists in IN_DOUBT.items()}
    assert found == {kind: ["/x"] for kind in IN_DOUBT}


def test_a_list_strategy_is_asked_instead_of_merging_by_position(store: Store) -> None:
    base, ours, theirs, _ = BY_POSITION["items replaced"]
    with store.open() as app:
        sides = Sides(app, base, ours, theirs)
        assert sides.conflicts(strategies={"x": "refuse"}) == ["/x"]
        assert sides.merged(strategies={"x": "ours"}) == ours


def items(**fields: Any) -> list[dict[str, Any]]:
    return [{"id": name, "v": value} for name, value in fields.items()]


BY_KEY: dict[str, tuple[Any, Any, Any, Any]] = {
    "items changed, added and removed": (
        items(a=1, b=1, c=1),
        items(a=2, b=1, c=1, d=1),
        items(b=1, e=1, a=1),
        items(b=1, d=1, e=1, a=2),
    ),
    "both added": (items(a=1), items(a=1, b=1), items(a=1, c=1), items(a=1, b=1, c=1)),
    "both added alike": (items(a=1), items(a=1, b=1), items(a=1, b=1), items(a=1, b=1)),
    "both put something first": (items(a=1), items(b=1, a=1), items(c=1, a=1), items(b=1, c=1, a=1)),
    "one changed, the other moved": (items(a=1, b=1), items(a=1, b=2), items(b=1, a=1), items(b=2, a=1)),
    "fields of one item": (
        [{"id": 1, "a": 1, "b": 1}],
        [{"id": 1, "a": 2, "b": 1}],
        [{"id": 1, "a": 1, "b": 2, "c": 3}],
        [{"id": 1, "a": 2, "b": 2, "c": 3}],
    ),
    "a list that both began": (GONE, items(a=1), items(b=1), items(a=1, b=1)),
}


def test_lists_merge_by_key_where_a_strategy_names_one(store: Store) -> None:
    strategies = {"x": analemma.by_key("id")}
    with store.open() as app:
        merged = {kind: Sides(app, *lists[:3], kind).merged(strategies=strategies) for kind, lists in BY_KEY.items()}
    assert merged == {kind: lists[3] for kind, lists in BY_KEY.items()}


NO_KEYS: dict[str, tuple[Any, Any, Any]] = {
    "one field of one item": (items(a=1), items(a=2), items(a=3)),
    "one changed what the other removed": (items(a=1, b=1), items(a=2, b=1), items(b=1)),
    "an item without the field": (items(a=1), [*items(a=1), {"v": 1}], items(a=2)),
    "two items with one key": (items(a=1), [*items(a=1), *items(a=2)], items(a=2)),
    "no items": (items(a=1), [1], items(a=2)),
    "no list": (items(a=1), 5, items(a=2)),
}


def test_what_cannot_be_merged_by_key_is_a_conflict(store: Store) -> None:
    strategies = {"x": "by_key:id"}
    with store.open() as app:
        found = {kind: Sides(app, *lists, kind).conflicts(strategies=strategies) for kind, lists in NO_KEYS.items()}
    assert found == {kind: ["/x"] for kind in NO_KEYS}


def test_a_key_without_a_field_is_no_strategy(store: Store) -> None:
    with store.open() as app, pytest.raises(Invalid, match="no merge strategy"):
        Sides(app, 1, 2, 3).merged(strategy="by_key:")


def parallel(results: dict[str, dict[str, Any]], **merge: Any) -> analemma.Flow:
    """Branches of a run, by name, that each write something."""
    flow = analemma.Flow("both", merge=merge)

    def writer(name: str) -> Any:
        def write(state: Any, ctx: Any) -> dict[str, Any]:
            return results[name]

        write.__name__ = f"write_{name}"
        return flow.step(reads=[], writes=["x", "n"])(write)

    flow.parallel("all", {name: [writer(name)] for name in results})
    return flow


PARALLEL: dict[str, tuple[list[Any], dict[str, Any], Any]] = {
    # What each branch writes to x, how it is merged, what then stands.
    "collect": ([10, 10, 10], {"strategies": {"x": "collect"}}, [10, 10, 10]),
    "append": ([[1, 2], [1, 2]], {"strategies": {"x": "append"}}, [1, 2, 2]),
    "nothing": ([10, 10], {}, 10),
    "one that does not apply": ([10, 10], {"strategy": "append"}, 10),
    "by position": ([[0, 1], [1, 9]], {}, [0, 1, 9]),
    "by key": ([items(a=1), items(b=1)], {"strategies": {"x": analemma.by_key("id")}}, items(a=1, b=1)),
}


def test_branches_of_a_run_merge_as_branches_of_a_workflow_do(store: Store) -> None:
    merged = {}
    with store.open() as app:
        for kind, (written, merge, _) in PARALLEL.items():
            base = {"append": [1], "by position": [1], "by key": []}.get(kind, 0)
            flow = parallel({f"b{number}": {"x": value} for number, value in enumerate(written)}, **merge)
            run = app.flows.run(flow, {"x": base}, workflow_id=kind, owner_id="ann")
            assert run.status == "COMPLETED", run.error
            merged[kind] = run.state["x"]
    assert merged == {kind: expected for kind, (_, _, expected) in PARALLEL.items()}


def test_a_workflow_document_with_an_unknown_strategy_is_refused(store: Store) -> None:
    with store.open() as app, pytest.raises(Invalid, match="no merge strategy 'best'"):
        app.flows.run(parallel({"a": {"n": 1}, "b": {"n": 1}}, strategies={"x": "best"}), {}, **NAME)
