"""What a merge makes of two values: what each strategy decides, and the laws that hold for all."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import analemma
from analemma import App
from analemma.errors import Conflict, Invalid
from analemma.testing.strategies import SeededValues, shown
from tests.depth import count

NOTHING: dict[str, Any] = {}
UNRELATED = None


class Merging:
    """Merges states: each time a workflow of its own, two branches of it, and what becomes of them."""

    def __init__(self, app: App) -> None:
        self._kernel = app.kernel
        self._numbers = itertools.count(1)

    def __call__(
        self,
        base: dict[str, Any] | None,
        ours: dict[str, Any],
        theirs: dict[str, Any],
        strategies: dict[str, Any] | None = None,
        default: Any = "refuse",
    ) -> dict[str, Any]:
        """Our state with the changes that led from base to theirs; Conflict where nothing decides. Without a base, the
        two have nothing to do with each other."""
        place: dict[str, Any] = {"workflow_id": f"w{next(self._numbers)}", "owner_id": "ann"}
        source = "idea"
        if base is None:
            other = self._kernel.save_state_delta(
                _delta(theirs), workflow_id=place["workflow_id"] + "'", owner_id="ann"
            )
            source = other.manifest_id
            self._kernel.save_state_delta(_delta(ours), **place)
        else:
            first = self._kernel.save_state_delta(_delta(base), **place)
            self._kernel.fork(first.manifest_id, owner_id="ann", branch="idea")
            for branch, state in (("main", ours), ("idea", theirs)):
                gone = [_pointer(name) for name in base if name not in state]
                self._kernel.save_state_delta(_delta(state), **place, deleted=gone, branch=branch)
        options: dict[str, Any] = {"source": source, "strategy": default, "strategies": strategies or {}}
        seen = self._kernel.merge(**place, **options, preview=True)
        assert shown(self._kernel.load_latest_state(**place)) == shown(ours), "a preview changes nothing"
        if seen.conflicts:
            with pytest.raises(Conflict) as refused:
                self._kernel.merge(**place, **options)
            assert shown(seen.conflicts) == shown(refused.value.conflicts)
            assert shown(self._kernel.load_latest_state(**place)) == shown(ours), "a conflict changes nothing"
            raise refused.value
        assert shown(seen.changes) == shown(self._kernel.merge(**place, **options).changes)
        assert self._kernel.verify(**place).ok
        found: dict[str, Any] = self._kernel.load_latest_state(**place)
        return found

    def conflicts(self, *sides: Any) -> list[dict[str, Any]]:
        try:
            self(*sides)
        except Conflict as exc:
            found: list[dict[str, Any]] = exc.conflicts
            return found
        return []


def _pointer(name: str) -> str:
    return "/" + name.replace("~", "~0").replace("/", "~1")


def _delta(state: dict[str, Any]) -> dict[str, Any]:
    return {_pointer(name): value for name, value in state.items()}


@pytest.fixture(scope="module")
def merge() -> Iterator[Merging]:
    with analemma.open("sqlite:///:memory:") as app:
        yield Merging(app)


def test_each_strategy_decides_a_list(merge: Merging) -> None:
    base, ours, theirs = ["a", "b"], ["a", "c", "b"], ["b", "a", "d", "b"]
    expected: list[tuple[Any, Any]] = [
        ("last_write_wins", ["b", "a", "d", "b"]),
        ("replace", ["b", "a", "d", "b"]),
        ("ours", ["a", "c", "b"]),
        ("dedupe_append", ["a", "c", "b", "d"]),
        ("set_union", ["a", "c", "b", "d"]),
        ("collect", [["a", "c", "b"], ["b", "a", "d", "b"]]),
        (lambda base, ours, theirs: [len(base), len(ours), len(theirs)], [2, 3, 4]),
    ]
    for strategy, merged in expected:
        assert merge({"l": base}, {"l": ours}, {"l": theirs}, {"l": strategy}) == {"l": merged}, strategy
    appended = merge({"l": base}, {"l": ours}, {"l": ["a", "b", "b", "d"]}, {"l": "append"})
    assert appended == {"l": ["a", "c", "b", "b", "d"]}


def test_appending_keeps_what_both_appended_once(merge: Merging) -> None:
    log = [{"n": 1}, {"n": 2}]
    merged = merge({"l": log}, {"l": [*log, {"n": 3}]}, {"l": [*log, {"n": 4}]}, default="append")
    assert merged == {"l": [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}]}
    assert shown(merge(NOTHING, {"l": [1]}, {"l": [True]}, default="set_union")) == shown({"l": [1, True]})
    assert merge(NOTHING, {"l": {1, 2}}, {"l": {2, 3}}, default="set_union") == {"l": {1, 2, 3}}


def test_list_strategies_do_not_decide_other_values(merge: Merging) -> None:
    for name in ("append", "replace", "dedupe_append", "set_union", "refuse"):
        with pytest.raises(Conflict):
            merge({"n": 1}, {"n": 2}, {"n": [3]}, {"n": name})


def test_deep_merge_joins_dicts_and_keeps_what_one_side_changed(merge: Merging) -> None:
    ours = {"a": {"x": 1, "both": "ours"}}
    theirs = {"a": {"y": 2, "both": "theirs"}, "removed here": 5}
    base = {"a": "a scalar", "removed here": 4}
    assert merge(base, ours, theirs, default="deep_merge") == {
        "a": {"x": 1, "y": 2, "both": "theirs"},
        "removed here": 5,
    }


def test_the_most_specific_pattern_decides(merge: Merging) -> None:
    strategies = {
        "/**": lambda *_: "anything",
        "/a": lambda *_: "a",
        "/a/*/c": lambda *_: "a, some, c",
        "/a/b/c": lambda *_: "a, b, c",
        "/**/z": lambda *_: "some z",
        "f": lambda *_: "f",
    }
    for path, expected in {
        ("x", "y"): "anything",
        ("a",): "a",
        ("a", "q", "c"): "a, some, c",
        ("a", "b", "c"): "a, b, c",
        ("x", "y", "z"): "some z",
        ("f",): "f",
    }.items():
        sides: list[Any] = []
        for number in range(3):
            value: Any = number
            for token in reversed(path):
                value = {token: value}
            sides.append(value)
        found: Any = merge(sides[0], sides[1], sides[2], strategies)
        for token in path:
            found = found[token] if isinstance(found, dict) else found
        assert found == expected, path


def test_a_function_decides_the_value_its_pattern_names(merge: Merging) -> None:
    seen = []

    def total(base: Any, ours: Any, theirs: Any) -> Any:
        seen.append(copy.deepcopy((base, ours, theirs)))
        return {"sum": ours["sum"] + theirs["sum"] - base["sum"], "by": "both"}

    base, ours, theirs = {"sum": 1}, {"sum": 3, "by": "us"}, {"sum": 6, "by": "them"}
    was, mine, other = [{"budget": {"year": each}} for each in (base, ours, theirs)]
    assert merge(was, mine, other, {"/budget/year": total}) == {"budget": {"year": {"sum": 8, "by": "both"}}}
    assert all(each == (base, ours, theirs) for each in seen)
    # What it was given it may give back: nothing.
    assert merge({"n": 1}, {"n": 2}, {}, {"n": lambda base, ours, theirs: theirs}) == {}


def test_reserved_fields_stay_ours_but_only_at_the_top(merge: Merging) -> None:
    ours: dict[str, Any] = {"_kernel_x": 1, "d": {"manifest_id": 1}}
    theirs: dict[str, Any] = {"manifest_id": 2, "_kernel_x": 3, "d": {"manifest_id": 4}}
    merged = merge(UNRELATED, ours, theirs, default="last_write_wins")
    assert merged == {"_kernel_x": 1, "d": {"manifest_id": 4}}


def test_types_that_python_takes_for_equal_are_conflicts(merge: Merging) -> None:
    for one, other in ((1, True), (1, 1.0), (0.0, -0.0), ([1], [True])):
        with pytest.raises(Conflict):
            merge({"n": None}, {"n": one}, {"n": other})


def side(seed: int, value: dict[str, Any]) -> dict[str, Any]:
    """The value after random edits."""
    changed = copy.deepcopy(value)
    SeededValues(seed).edits(changed, 4)
    return changed


def fields(seed: int) -> dict[str, Any]:
    seeded = SeededValues(seed)
    return {f"field {number}": seeded.value(2) for number in range(6)} | {"deep": {"er": {"x": 1, "y": [1]}}}


SEEDS = count(test=8, deep=150)


def test_merging_keeps_its_laws(merge: Merging) -> None:
    clashed = 0
    for seed in range(SEEDS):
        base = fields(seed)
        ours, theirs = side(seed * 2 + 1, base), side(seed * 2 + 2, base)
        assert shown(merge(base, ours, ours)) == shown(ours), seed
        assert shown(merge(base, base, theirs)) == shown(theirs), seed
        assert shown(merge(base, ours, base)) == shown(ours), seed
        found, mirrored = merge.conflicts(base, ours, theirs), merge.conflicts(base, theirs, ours)
        turned = {"ours": "theirs", "theirs": "ours"}
        swapped = [{turned.get(key, key): value for key, value in each.items()} for each in mirrored]
        assert shown(found) == shown(swapped), seed
        clashed += bool(found)
        if not found:
            assert shown(merge(base, ours, theirs)) == shown(merge(base, theirs, ours)), seed
        # Changes to different fields never conflict, and all of them are there.
        together = merge({"a": base, "b": base}, {"a": base, "b": ours}, {"a": theirs, "b": base})
        assert shown(together) == shown({"a": theirs, "b": ours}), seed
    assert 0 < clashed < SEEDS, "of both kinds there were some"


def test_what_only_one_side_changed_is_taken_whatever_decides_the_rest(merge: Merging) -> None:
    for seed in range(SEEDS):
        base = fields(seed)
        ours, theirs = side(seed * 2 + 1, base), side(seed * 2 + 2, base)
        merged = merge(base, ours, theirs, default="last_write_wins")
        for name in {*base, *ours, *theirs}:
            was, mine, other, made = [shown(each.get(name, "nothing")) for each in (base, ours, theirs, merged)]
            if mine == was:
                assert made == other, (seed, name)
            elif other in (was, mine):
                assert made == mine, (seed, name)


def test_states_with_nothing_in_common_merge_as_if_both_had_begun_empty(merge: Merging) -> None:
    for seed in range(SEEDS):
        ours, theirs = side(seed * 2 + 1, fields(seed)), side(seed * 2 + 2, fields(seed))
        assert shown(merge.conflicts(UNRELATED, ours, theirs)) == shown(merge.conflicts(NOTHING, ours, theirs)), seed
        one, other = [merge(base, ours, theirs, default="last_write_wins") for base in (UNRELATED, NOTHING)]
        assert shown(one) == shown(other), seed


BOTH_CHANGED: tuple[dict[str, Any], ...] = (
    {"budget": {"sum": 1, "currency": "KRW"}, "manifest_id": "m", "log": ["a"]},
    {"budget": {"sum": 2, "currency": "KRW"}, "manifest_id": "m", "log": ["a"]},
    {"budget": {"sum": 3, "currency": "EUR"}, "manifest_id": "forged", "log": ["a", "b"]},
)
"""A base and two sides. Of the budget both changed the sum, and one alone the currency."""


def _ours(base: Any, ours: Any, theirs: Any) -> Any:
    return ours


def _changed_in_place(base: Any, ours: Any, theirs: Any) -> Any:
    ours["sum"] += theirs["sum"]
    return ours


def _theirs(base: Any, ours: Any, theirs: Any) -> Any:
    return theirs


def _forged(base: Any, ours: Any, theirs: Any) -> Any:
    return {**ours, "loop_counter": 9, "_kernel_fence": 1}


def test_what_a_function_decides_stands_as_a_whole(merge: Merging) -> None:
    decided: list[tuple[dict[str, Any], dict[str, Any]]] = [
        # The one who changed the currency alone does not change what the function decided as a whole.
        ({"budget": _ours}, {"budget": {"sum": 2, "currency": "KRW"}, "log": ["a", "b"]}),
        ({"budget": _ours, "/budget/sum": "last_write_wins"}, {"budget": {"sum": 3, "currency": "EUR"}}),
        ({"budget": _changed_in_place}, {"budget": {"sum": 5, "currency": "KRW"}, "log": ["a", "b"]}),
        ({"": _theirs}, {"budget": {"sum": 3, "currency": "EUR"}, "log": ["a", "b"]}),
        ({"": _ours}, {"budget": {"sum": 2, "currency": "KRW"}, "log": ["a"]}),
        # A field that is reserved comes from nowhere else than our side, which has none.
        ({"": _forged}, {"budget": {"sum": 2, "currency": "KRW"}, "log": ["a"]}),
    ]
    base, ours, theirs = BOTH_CHANGED
    for strategies, expected in decided:
        whole = {"log": ["a", "b"], **expected, "manifest_id": "m"}
        assert merge(base, ours, theirs, strategies) == whole, strategies


def test_a_function_that_decides_against_a_dict_changes_nothing(merge: Merging) -> None:
    with pytest.raises(Invalid):
        merge({"n": 1}, {"n": 2}, {"n": 3}, {"": lambda base, ours, theirs: 5})
