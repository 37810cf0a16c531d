"""Merging branches: what one side changed is taken, what both changed is surfaced or decided, nothing is lost."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from analemma.app import App
from analemma.canon.identity import parse_block_id
from analemma.catalog.port import RecordRequest
from analemma.errors import Conflict, Expired, Invalid, NotFound
from analemma.state import ancestry
from analemma.state.committer import Outcome, Proposal
from analemma.state.journal import next_record, read_record
from analemma.state.merge_strategies import ABSENT, Strategies, Strategy
from analemma.state.merge_verbs import Merge
from analemma.state.merging import merge_values
from analemma.testing.strategies import SeededValues, shown
from tests.stores import Store
from tests.unit.state.test_store import run_sql

OWNER: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


def save(app: App, delta: dict[str, Any], branch: str = "main", deleted: tuple[str, ...] = ()) -> str:
    return app.kernel.save_state_delta(delta, **OWNER, branch=branch, deleted=deleted).manifest_id


def start(app: App, state: dict[str, Any], branch: str = "idea") -> str:
    """A workflow with a branch that begins at its first version."""
    first = save(app, state)
    app.kernel.fork(first, owner_id="ann", branch=branch)
    return first


def merge(app: App, source: str = "idea", **options: Any) -> Merge:
    return app.kernel.merge(**OWNER, source=source, **options)


def latest(app: App, branch: str = "main") -> dict[str, Any]:
    state: dict[str, Any] = app.kernel.load_latest_state(**OWNER, branch=branch)
    return state


def test_changes_of_both_sides_are_in_the_result(store: Store) -> None:
    with store.open() as app:
        first = start(app, {"a": 1, "b": {"x": 1, "y": 1}, "list": [1, 2, 3], "gone": 0})
        save(app, {"a": 2, "/b/x": 2})
        save(app, {"/b/y": 3, "/list/1": "two", "new": {"z": 1}}, "idea", deleted=("gone",))
        merged = merge(app)
        assert latest(app) == {"a": 2, "b": {"x": 2, "y": 3}, "list": [1, "two", 3], "new": {"z": 1}}
        assert merged.commit is not None and merged.commit.version == 3
        assert (merged.base_id, merged.ancestor, merged.fast_forward) == (first, "found", False)
        assert app.kernel.verify(**OWNER).ok
        assert latest(app, "idea")["a"] == 1


def test_a_conflict_is_surfaced_and_changes_nothing(store: Store) -> None:
    with store.open() as app:
        start(app, {"n": 1, "list": ["a"], "kept": True, "both": 0})
        save(app, {"n": 2, "list": ["a", "b"], "both": 7}, deleted=("kept",))
        save(app, {"n": 3, "list": ["a", "c"], "both": 7, "kept": False}, "idea")
        before = app.stats()
        with pytest.raises(Conflict) as caught:
            merge(app)
        expected = [
            {"path": "/kept", "base": True, "theirs": False},
            {"path": "/list", "base": ["a"], "ours": ["a", "b"], "theirs": ["a", "c"]},
            {"path": "/n", "base": 1, "ours": 2, "theirs": 3},
        ]
        assert caught.value.conflicts == expected
        assert pickle.loads(pickle.dumps(caught.value)).conflicts == expected
        assert app.stats() == before
        assert merge(app, preview=True).conflicts == expected
        assert app.stats() == before


def test_a_preview_says_what_would_change(store: Store) -> None:
    with store.open() as app:
        start(app, {"n": 1, "m": 1})
        save(app, {"m": 2})
        save(app, {"n": 2, "new": 5}, "idea", deleted=("m",))
        seen = merge(app, preview=True, strategy="last_write_wins")
        assert seen.commit is None
        assert sorted(seen.changes, key=lambda change: change["path"]) == [
            {"op": "remove", "path": "/m"},
            {"op": "replace", "path": "/n", "value": 2},
            {"op": "add", "path": "/new", "value": 5},
        ]
        assert latest(app) == {"n": 1, "m": 2}
        merge(app, strategy="last_write_wins")
        assert latest(app) == {"n": 2, "new": 5}


def test_a_fast_forward_is_a_new_version_on_the_source_root(store: Store) -> None:
    with store.open() as app:
        start(app, {"n": 1, "list": list(range(3000))})
        theirs = app.kernel.save_state_delta({"n": 2}, **OWNER, branch="idea")
        merged = merge(app)
        assert merged.fast_forward and merged.commit is not None
        assert merged.commit.root_hash == theirs.root_hash and merged.commit.version == 2
        assert merged.commit.blocks_stored == 1


def test_merging_again_brings_nothing_new(store: Store) -> None:
    with store.open() as app:
        start(app, {"n": 1})
        save(app, {"m": 1}, "idea")
        merge(app)
        again = merge(app)
        assert again.commit is None and again.changes == [] and again.base_id == again.source_id
        assert len(app.kernel.history(**OWNER)) == 2


def test_a_second_merge_starts_from_the_first(store: Store) -> None:
    with store.open() as app:
        start(app, {"x": 0})
        save(app, {"main": 1})
        source = save(app, {"x": 1}, "idea")
        merge(app)
        save(app, {"x": 2})
        save(app, {"y": 5}, "idea")
        # Seen from where the branches parted, both have changed x; since the first merge, only main has.
        second = merge(app)
        assert second.base_id == source
        assert latest(app) == {"x": 2, "y": 5, "main": 1}
        back = app.kernel.merge(**OWNER, source="main", into="idea")
        assert back.commit is not None and latest(app, "idea") == latest(app)
        assert app.kernel.verify(**OWNER).ok and app.kernel.verify(**OWNER, branch="idea").ok


def test_a_manifest_of_another_workflow_can_be_merged(store: Store) -> None:
    with store.open() as app:
        first = save(app, {"a": 1, "b": 1})
        app.kernel.fork(first, owner_id="ann", workflow_id="copy")
        theirs = app.kernel.save_state_delta({"a": 2}, workflow_id="copy", owner_id="ann")
        save(app, {"b": 2})
        assert merge(app, theirs.manifest_id).base_id == first
        assert latest(app) == {"a": 2, "b": 2}
        foreign = app.kernel.save_state_delta({"a": 3}, workflow_id="trip", owner_id="bob")
        with pytest.raises(NotFound):
            merge(app, foreign.manifest_id)


def test_unrelated_lines_merge_as_if_both_had_begun_empty(store: Store) -> None:
    with store.open() as app:
        save(app, {"a": 1, "same": [1, 2], "deep": {"x": 1}})
        other = app.kernel.save_state_delta(
            {"b": 1, "same": [1, 2], "deep": {"y": 2}}, workflow_id="other", owner_id="ann"
        ).manifest_id
        merged = merge(app, other)
        assert (merged.base_id, merged.ancestor) == (None, "none")
        assert latest(app) == {"a": 1, "b": 1, "same": [1, 2], "deep": {"x": 1, "y": 2}}
        clash = app.kernel.save_state_delta({"a": 2}, workflow_id="third", owner_id="ann").manifest_id
        with pytest.raises(Conflict) as caught:
            merge(app, clash)
        assert caught.value.conflicts == [{"path": "/a", "ours": 1, "theirs": 2}]


def test_an_expired_ancestor_is_said_in_the_result(store: Store) -> None:
    with store.open() as app:
        first = start(app, {"a": 1})
        save(app, {"b": 1})
        save(app, {"c": 1}, "idea")
        run_sql(store, "DELETE FROM manifest WHERE version = 1")
        merged = merge(app, preview=True)
        assert (merged.base_id, merged.ancestor) == (None, "expired")
        assert merged.changes == [{"op": "add", "path": "/c", "value": 1}]
        assert first != merged.target_id


def test_a_long_history_is_walked_by_the_page(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open() as app:
        start(app, {"n": 0})
        for number in range(250):
            save(app, {"n": number})
        save(app, {"m": 1}, "idea")
        before = app.catalog.engine.statements.copy()
        assert merge(app, preview=True).ancestor == "found"
        spent = app.catalog.engine.statements - before
        assert sum(spent.values()) < 30, spent
        monkeypatch.setattr(ancestry, "MOST_VERSIONS", 100)
        cut_short = merge(app, preview=True)
        assert (cut_short.ancestor, cut_short.base_id) == ("too_far", None)


def test_a_tag_on_a_merge_does_not_hide_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ancestry, "PAGE", 1)
    with store.open() as app:
        start(app, {"x": 0})
        save(app, {"main": 1})
        source = save(app, {"x": 1}, "idea")
        merged = merge(app).commit
        assert merged is not None
        head = app.default.head(merged.receipt.key)
        assert head is not None
        told = next_record(head.key, head, kind="tagged", manifest=head.manifest, at_us=1)
        app.catalog.append(RecordRequest(app.default.id, head, told))
        save(app, {"y": 1}, "idea")
        assert merge(app, preview=True).base_id == source


def test_reserved_fields_stay_those_of_the_target(store: Store) -> None:
    with store.open() as app:
        start(app, {"loop_counter": 1, "_kernel_fence": 1, "n": 1})
        save(app, {"loop_counter": 9, "_kernel_fence": 5, "config_hash": "forged", "n": 2}, "idea")
        merged = merge(app, strategy="last_write_wins")
        assert not merged.fast_forward
        assert latest(app) == {"loop_counter": 1, "_kernel_fence": 1, "n": 2}
        other = app.kernel.save_state_delta({"loop_counter": 7, "z": 1}, workflow_id="other", owner_id="ann")
        merge(app, other.manifest_id)
        assert latest(app) == {"loop_counter": 1, "_kernel_fence": 1, "n": 2, "z": 1}


def test_the_journal_names_the_source(store: Store) -> None:
    with store.open() as app:
        first = start(app, {"a": 1})
        save(app, {"b": 1})
        source = save(app, {"c": 1}, "idea")
        merged = merge(app, message="bring it home")
        assert merged.commit is not None
        head = app.default.head(merged.commit.receipt.key)
        assert head is not None
        (row,) = app.catalog.journal(app.default.id, head.key, after_seq=head.journal_seq - 1)
        record = read_record(row)
        assert record["kind"] == "merged"
        assert record["facts"] == {"from": source, "source": "idea", "base": first}
        assert app.kernel.history(**OWNER, limit=1)[0].message == "bring it home"
        # The source may go as soon as it is merged: the merged version holds everything it needs.
        run_sql(store, "DELETE FROM head WHERE branch = 'idea'")
        run_sql(store, "DELETE FROM manifest WHERE branch = 'idea'")
        assert app.default.manifest(parse_block_id(merged.commit.manifest_id)).key.branch == "main"
        assert latest(app) == {"a": 1, "b": 1, "c": 1}


def before_first_merge_commit(app: App, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen between a merge's planning and its commit."""
    commit = app.default.committer.commit
    done = False

    def interrupted(proposal: Proposal, *rest: Any) -> Outcome:
        nonlocal done
        if proposal.kind == "merged" and not done:
            done = True
            act()
        return commit(proposal, *rest)

    monkeypatch.setattr(app.default.committer, "commit", interrupted)


def test_a_target_that_moves_is_merged_into_as_it_then_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open() as app:
        start(app, {"n": 0})
        save(app, {"theirs": 1}, "idea")
        before_first_merge_commit(app, monkeypatch, lambda: save(app, {"n": 1}))
        merged = merge(app)
        assert merged.commit is not None and merged.commit.version == 3 and not merged.fast_forward
        assert latest(app) == {"n": 1, "theirs": 1}
        assert app.kernel.verify(**OWNER).ok


def test_a_target_that_moves_into_a_conflict_is_not_overwritten(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open() as app:
        start(app, {"n": 0})
        save(app, {"n": 1}, "idea")
        before_first_merge_commit(app, monkeypatch, lambda: save(app, {"n": 2}))
        with pytest.raises(Conflict) as caught:
            merge(app)
        assert caught.value.conflicts == [{"path": "/n", "base": 0, "ours": 2, "theirs": 1}]
        assert latest(app) == {"n": 2}


def test_two_merges_of_the_same_source_make_one_version(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open() as app:
        start(app, {"n": 0})
        save(app, {"n": 1}, "idea")
        before_first_merge_commit(app, monkeypatch, lambda: merge(app))
        assert merge(app).commit is None
        assert len(app.kernel.history(**OWNER)) == 2


def test_a_source_that_expires_meanwhile_is_not_linked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open() as app:
        start(app, {"n": 0})
        source = save(app, {"n": 1}, "idea")
        save(app, {"n": 2}, "idea")

        def expire() -> None:
            run_sql(store, "DELETE FROM manifest WHERE id = ?", bytes.fromhex(source))

        before_first_merge_commit(app, monkeypatch, expire)
        with pytest.raises(Expired):
            merge(app, source)
        assert latest(app) == {"n": 0}


def test_what_did_not_change_is_not_read(store: Store) -> None:
    with store.open(cache_bytes=0) as app:
        text = {f"key {number}": {"text": "word " * 20, "n": number} for number in range(3000)}
        start(app, {"big": text, "a": 1, "b": 1})
        save(app, {"a": 2, "/big/key 17/n": 0})
        save(app, {"b": 2, "/big/key 2100/n": 0}, "idea")
        fetched: list[int] = []
        original = app.default.blocks._read

        def counting(blocks: Any) -> Any:
            fetched.append(len(blocks))
            return original(blocks)

        app.default.blocks._read = counting  # type: ignore[method-assign]
        merged = merge(app)
        assert merged.commit is not None and sum(fetched) < 60 < app.stats().blocks
        state = latest(app)
        assert (state["a"], state["b"], state["big"]["key 17"]["n"], state["big"]["key 2100"]["n"]) == (2, 2, 0, 0)


def test_bad_requests_say_what_is_wrong(store: Store) -> None:
    with store.open() as app:
        start(app, {"n": 1})
        with pytest.raises(Invalid, match="itself"):
            merge(app, "main")
        with pytest.raises(NotFound, match="no branch 'nowhere'"):
            merge(app, "nowhere")
        with pytest.raises(NotFound):
            app.kernel.merge(**OWNER, source="main", into="nowhere")
        with pytest.raises(NotFound):
            merge(app, "0" * 64)
        with pytest.raises(Invalid, match="no merge strategy"):
            merge(app, strategy="best")


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
