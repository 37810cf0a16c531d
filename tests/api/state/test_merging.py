"""Merging branches: what one side changed is taken, what both changed is surfaced, nothing is lost."""

from __future__ import annotations

import pickle

import pytest

from analemma.errors import Conflict, Invalid, NotFound
from tests.api.state.journal_rows import journal
from tests.api.state.merged_branches import OWNER, latest, merge, save, start
from tests.raw_rows import change, is_sqlite, select
from tests.stores import Store


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


def test_what_a_strategy_decided_is_told(store: Store) -> None:
    with store.open() as app:
        start(app, {"budget": {"sum": 1}, "n": 1})
        save(app, {"/budget/sum": 3})
        save(app, {"/budget/sum": 6, "/budget/note": "more"}, "idea")
        merged = merge(app, strategies={"/budget": lambda base, ours, theirs: {**ours, **theirs, "was": base["sum"]}})
        assert latest(app) == {"budget": {"sum": 6, "note": "more", "was": 1}, "n": 1}
        assert [each["path"] for each in merged.decided] == ["/budget"]


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
        change(store, "DELETE FROM manifest WHERE version = 1")
        merged = merge(app, preview=True)
        assert (merged.base_id, merged.ancestor) == (None, "expired")
        assert merged.changes == [{"op": "add", "path": "/c", "value": 1}]
        assert first != merged.target_id


def test_the_ancestor_is_found_over_a_long_history(store: Store) -> None:
    with store.open() as app:
        first = start(app, {"n": 0})
        for number in range(250):
            save(app, {"n": number})
        save(app, {"m": 1}, "idea")
        seen = merge(app, preview=True)
        assert (seen.ancestor, seen.base_id) == ("found", first)


@pytest.mark.deep("it takes a hundred thousand versions")
def test_an_ancestor_that_is_too_far_is_said_in_the_result(store: Store) -> None:
    """Between the branch's two versions there are so many that nobody looks behind them."""
    with store.open() as app:
        start(app, {"n": 0})
        save(app, {"n": 1})
        save(app, {"m": 1}, "idea")
        for more, expected in ((99_000, "found"), (1_100, "too_far")):
            put_between(store, more)
            merged = merge(app, preview=True)
            assert (merged.ancestor, merged.base_id is None) == (expected, expected == "too_far")
            assert merged.changes == [{"op": "add", "path": "/m", "value": 1}]


def put_between(store: Store, count: int) -> None:
    """So many versions of a branch below its newest."""
    name = "cast(printf('%032d', {}) AS blob)" if is_sqlite(store) else "convert_to(lpad(({})::text, 32, '0'), 'UTF8')"
    [(last,)] = select(store, "SELECT max(version) FROM manifest WHERE branch = 'idea'")
    newest = f"branch = 'idea' AND version = {last + count}"
    later = f"SET version = version + {count}, created_at = created_at + {count}"
    assert change(store, f"UPDATE manifest {later} WHERE branch = 'idea' AND version = {last}") == 1
    made = change(
        store,
        f"""INSERT INTO manifest (tenant, id, owner, workflow, branch, version, parent, root, created_at)
            WITH RECURSIVE many (n) AS (SELECT {last} UNION ALL SELECT n + 1 FROM many WHERE n < {last + count - 1})
            SELECT tenant, {name.format("n")}, owner, workflow, branch, n,
                   CASE WHEN n = {last} THEN parent ELSE {name.format("n - 1")} END, root, created_at + n - version
            FROM many, manifest WHERE {newest}""",  # noqa: S608
    )
    assert made == count
    assert change(store, f"UPDATE manifest SET parent = {name.format(last + count - 1)} WHERE {newest}") == 1  # noqa: S608


def test_marks_on_a_merge_do_not_hide_it(store: Store) -> None:
    with store.open() as app:
        start(app, {"x": 0})
        save(app, {"main": 1})
        source = save(app, {"x": 1}, "idea")
        merged = merge(app).commit
        # More than are read at once, on the way back from the newest.
        for _ in range(110):
            app.kernel.pin(merged.manifest_id, owner_id="ann")
            app.kernel.unpin(merged.manifest_id, owner_id="ann")
        app.kernel.tag(merged.manifest_id, "good", owner_id="ann")
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
        record = journal(store)[-1]
        assert record["kind"] == "merged"
        assert record["facts"] == {"from": source, "source": "idea", "base": first}
        assert app.kernel.history(**OWNER, limit=1)[0].message == "bring it home"
        # The source may go as soon as it is merged: the merged version holds everything it needs.
        change(store, "DELETE FROM head WHERE branch = 'idea'")
        change(store, "DELETE FROM manifest WHERE branch = 'idea'")
    with store.open() as app:
        assert app.kernel.verify_manifest_integrity(merged.commit.manifest_id)
        assert latest(app) == {"a": 1, "b": 1, "c": 1}


def test_what_neither_side_changed_is_not_written_again(store: Store) -> None:
    with store.open(cache_bytes=0) as app:
        text = {f"key {number}": {"text": "word " * 20, "n": number} for number in range(3000)}
        start(app, {"big": text, "a": 1, "b": 1})
        save(app, {"a": 2, "/big/key 17/n": 0})
        save(app, {"b": 2, "/big/key 2100/n": 0}, "idea")
        before = app.stats().blocks
        assert before > 60
        merged = merge(app)
        assert app.stats().blocks - before == merged.commit.blocks_stored < 10
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
