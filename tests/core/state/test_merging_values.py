"""Merging values: what each strategy decides, the laws that hold for all, and that trees merge as values do."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from analemma.errors import Conflict, Invalid
from analemma.state.merge_strategies import ABSENT, Strategies, Strategy
from analemma.state.merging import merge_values
from analemma.testing.strategies import SeededValues, shown
from tests.api.state.merged_branches import latest, merge, save, start
from tests.stores import Store


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("last_write_wins", ["b", "a", "d", "b"]),
        ("replace", ["b", "a", "d", "b"]),
        ("ours", ["a", "c", "b"]),
        ("append", ["a", "c", "b", "b", "d"]),
        ("dedupe_append", ["a", "c", "b", "d"]),
        ("set_union", ["a", "c", "b", "d"]),
        ("collect", [["a", "c", "b"], ["b", "a", "d", "b"]]),
        (lambda base, ours, theirs: [len(base), len(ours), len(theirs)], [2, 3, 4]),
    ],
)
def test_each_strategy_decides_a_list(strategy: Strategy, expected: list[Any]) -> None:
    base, ours, theirs = ["a", "b"], ["a", "c", "b"], ["b", "a", "d", "b"]
    if strategy == "append":
        theirs = ["a", "b", "b", "d"]
    assert merge_values({"l": base}, {"l": ours}, {"l": theirs}, {"l": strategy}) == {"l": expected}


def test_appending_keeps_what_both_appended_once() -> None:
    log = [{"n": 1}, {"n": 2}]
    merged = merge_values(log, [*log, {"n": 3}], [*log, {"n": 4}], default="append")
    assert merged == [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}]
    assert merge_values(ABSENT, [1], [True], default="set_union") == [1, True]
    assert merge_values(ABSENT, {1, 2}, {2, 3}, default="set_union") == {1, 2, 3}


def test_list_strategies_do_not_decide_other_values() -> None:
    for name in ("append", "replace", "dedupe_append", "set_union", "refuse"):
        with pytest.raises(Conflict):
            merge_values({"n": 1}, {"n": 2}, {"n": [3]}, {"n": name})


def test_deep_merge_joins_dicts_and_keeps_what_one_side_changed() -> None:
    ours = {"a": {"x": 1, "both": "ours"}}
    theirs = {"a": {"y": 2, "both": "theirs"}, "removed here": 5}
    base = {"a": "a scalar", "removed here": 4}
    assert merge_values(base, ours, theirs, default="deep_merge") == {
        "a": {"x": 1, "y": 2, "both": "theirs"},
        "removed here": 5,
    }


def test_the_most_specific_pattern_decides() -> None:
    strategies = Strategies(
        "refuse",
        {
            "/**": "last_write_wins",
            "/a": "ours",
            "/a/*/c": "collect",
            "/a/b/c": "append",
            "/**/z": "deep_merge",
            "f": "ours",
        },
    )
    chosen = {
        ("x", "y"): "last_write_wins",
        ("a", "q"): "ours",
        ("a", "q", "c"): "collect",
        ("a", "b", "c"): "append",
        ("x", "y", "z"): "deep_merge",
        ("f",): "ours",
    }
    assert {path: strategies.for_path(path)[0] for path in chosen} == chosen
    assert Strategies("ours").for_path(("a",)) == ("ours", 1)


def test_a_function_decides_the_value_its_pattern_names() -> None:
    seen = []

    def total(base: Any, ours: Any, theirs: Any) -> Any:
        seen.append((base, ours, theirs))
        return {"sum": ours["sum"] + theirs["sum"] - base["sum"], "by": "both"}

    base, ours, theirs = {"sum": 1}, {"sum": 3, "by": "us"}, {"sum": 6, "by": "them"}
    was, mine, other = [{"budget": {"year": each}} for each in (base, ours, theirs)]
    assert merge_values(was, mine, other, {"/budget/year": total}) == {"budget": {"year": {"sum": 8, "by": "both"}}}
    assert seen == [(base, ours, theirs)]
    assert merge_values({"n": 1}, {"n": 2}, {}, {"n": lambda base, ours, theirs: theirs}) == {}


def test_a_function_decides_in_trees_as_in_values(store: Store) -> None:
    with store.open() as app:
        start(app, {"budget": {"sum": 1}, "n": 1})
        save(app, {"/budget/sum": 3})
        save(app, {"/budget/sum": 6, "/budget/note": "more"}, "idea")
        merged = merge(app, strategies={"/budget": lambda base, ours, theirs: {**ours, **theirs, "was": base["sum"]}})
        assert latest(app) == {"budget": {"sum": 6, "note": "more", "was": 1}, "n": 1}
        assert merged.decided[0]["path"] == "/budget"


def test_reserved_fields_of_values_stay_ours_but_only_at_the_top() -> None:
    ours, theirs = (
        {"_kernel_x": 1, "d": {"manifest_id": 1}},
        {"manifest_id": 2, "_kernel_x": 3, "d": {"manifest_id": 4}},
    )
    merged = merge_values(ABSENT, ours, theirs, default="last_write_wins")
    assert merged == {"_kernel_x": 1, "d": {"manifest_id": 4}}


def test_types_that_python_takes_for_equal_are_conflicts() -> None:
    for one, other in ((1, True), (1, 1.0), (0.0, -0.0), ([1], [True])):
        with pytest.raises(Conflict):
            merge_values({"n": None}, {"n": one}, {"n": other})


def test_values_are_left_as_they_were() -> None:
    base, ours, theirs = {"l": [1]}, {"l": [1, 2]}, {"l": [1, 3], "d": {"x": 1}}
    before = copy.deepcopy((base, ours, theirs))
    merged = merge_values(base, ours, theirs, default="append")
    merged["d"]["x"] = merged["l"][0] = None
    assert (base, ours, theirs) == before


def side(seed: int, value: dict[str, Any]) -> dict[str, Any]:
    """The value after random edits."""
    changed = copy.deepcopy(value)
    SeededValues(seed).edits(changed, 4)
    return changed


def fields(seed: int) -> dict[str, Any]:
    seeded = SeededValues(seed)
    return {f"field {number}": seeded.value(2) for number in range(6)} | {"deep": {"er": {"x": 1, "y": [1]}}}


def conflicts_of(*sides: Any) -> list[dict[str, Any]]:
    try:
        merge_values(*sides)
    except Conflict as exc:
        found: list[dict[str, Any]] = exc.conflicts
        return found
    return []


@pytest.mark.parametrize("seed", range(150))
def test_merging_values_keeps_its_laws(seed: int) -> None:
    base = fields(seed)
    ours, theirs = side(seed * 2 + 1, base), side(seed * 2 + 2, base)
    assert shown(merge_values(base, ours, ours)) == shown(ours)
    assert shown(merge_values(base, base, theirs)) == shown(theirs)
    assert shown(merge_values(base, ours, base)) == shown(ours)
    found, mirrored = conflicts_of(base, ours, theirs), conflicts_of(base, theirs, ours)
    swapped = [
        {{"ours": "theirs", "theirs": "ours"}.get(key, key): value for key, value in each.items()} for each in mirrored
    ]
    assert shown(found) == shown(swapped)
    if not found:
        assert shown(merge_values(base, ours, theirs)) == shown(merge_values(base, theirs, ours))
    # Changes to different fields never conflict, and all of them are there.
    disjoint = {"ours": {"a": base, "b": ours}, "theirs": {"a": theirs, "b": base}}
    together = merge_values({"a": base, "b": base}, disjoint["ours"], disjoint["theirs"])
    assert shown(together) == shown({"a": theirs, "b": ours})


def test_trees_merge_as_values_do(store: Store) -> None:
    with store.open() as app:
        for seed in range(40):
            workflow: dict[str, Any] = {"workflow_id": f"w{seed}", "owner_id": "ann"}
            base = fields(seed)
            ours, theirs = side(seed * 2 + 1, base), side(seed * 2 + 2, base)
            first = app.kernel.save_state_delta(base, **workflow)
            app.kernel.fork(first.manifest_id, owner_id="ann", branch="b")
            for branch, state in (("main", ours), ("b", theirs)):
                gone = [name for name in base if name not in state]
                delta = {"/" + name.replace("~", "~0").replace("/", "~1"): value for name, value in state.items()}
                app.kernel.save_state_delta(delta, **workflow, deleted=gone, branch=branch)
            seen = app.kernel.merge(**workflow, source="b", preview=True)
            assert shown(seen.conflicts) == shown(conflicts_of(base, ours, theirs))
            app.kernel.merge(**workflow, source="b", strategy="collect")
            expected = merge_values(base, ours, theirs, default="collect")
            assert shown(app.kernel.load_latest_state(**workflow)) == shown(expected)
            assert app.kernel.verify(**workflow).ok
            history = app.kernel.history(**workflow, limit=1)[0]
            assert history.root_hash == app.default.trees.build(expected).root.id.hex()


def test_unrelated_trees_merge_as_values_do(store: Store) -> None:
    with store.open() as app:
        for seed in range(25):
            ours, theirs = side(seed * 2 + 1, fields(seed)), side(seed * 2 + 2, fields(seed))
            workflow: dict[str, Any] = {"workflow_id": f"w{seed}", "owner_id": "ann"}
            made = []
            for name, state in ((f"w{seed}", ours), (f"other {seed}", theirs)):
                delta = {"/" + key.replace("~", "~0").replace("/", "~1"): value for key, value in state.items()}
                made.append(app.kernel.save_state_delta(delta, workflow_id=name, owner_id="ann"))
            seen = app.kernel.merge(**workflow, source=made[1].manifest_id, preview=True)
            assert shown(seen.conflicts) == shown(conflicts_of(ABSENT, ours, theirs))
            app.kernel.merge(**workflow, source=made[1].manifest_id, strategy="last_write_wins")
            expected = merge_values(ABSENT, ours, theirs, default="last_write_wins")
            assert shown(app.kernel.load_latest_state(**workflow)) == shown(expected)


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


@pytest.mark.parametrize(
    ("strategies", "expected"),
    [
        # The one who changed the currency alone does not change what the function decided as a whole.
        ({"budget": _ours}, {"budget": {"sum": 2, "currency": "KRW"}, "log": ["a", "b"]}),
        ({"budget": _ours, "/budget/sum": "last_write_wins"}, {"budget": {"sum": 3, "currency": "EUR"}}),
        ({"budget": _changed_in_place}, {"budget": {"sum": 5, "currency": "KRW"}, "log": ["a", "b"]}),
        ({"": _theirs}, {"budget": {"sum": 3, "currency": "EUR"}, "log": ["a", "b"]}),
        ({"": _ours}, {"budget": {"sum": 2, "currency": "KRW"}, "log": ["a"]}),
    ],
    ids=["ours", "more literal", "changed in place", "theirs of all", "ours of all"],
)
def test_what_a_function_decides_stands_as_a_whole(
    store: Store, strategies: dict[str, Strategy], expected: dict[str, Any]
) -> None:
    base, ours, theirs = BOTH_CHANGED
    whole = {"log": ["a", "b"], **expected, "manifest_id": "m"}
    kept = copy.deepcopy(BOTH_CHANGED)
    assert merge_values(base, ours, theirs, strategies) == whole
    assert kept == BOTH_CHANGED
    with store.open() as app:
        start(app, base)
        save(app, ours)
        save(app, theirs, branch="idea")
        seen = merge(app, strategies=strategies, preview=True)
        merged = merge(app, strategies=strategies)
        assert latest(app) == whole
        assert seen.changes == merged.changes


def test_a_function_that_decides_against_a_dict_changes_nothing(store: Store) -> None:
    with store.open() as app:
        start(app, {"n": 1})
        save(app, {"n": 2})
        save(app, {"n": 3}, branch="idea")
        with pytest.raises(Invalid):
            merge(app, strategies={"": lambda base, ours, theirs: 5})
        assert latest(app) == {"n": 2}
