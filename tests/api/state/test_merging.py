"""Merging branches: what one side changed is taken, what both changed is surfaced, nothing is lost."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from analemma.canon.identity import parse_block_id
from analemma.catalog.port import RecordRequest
from analemma.errors import Conflict, Invalid, NotFound
from analemma.state import ancestry
from analemma.state.journal import next_record, read_record
from tests.api.state.merged_branches import OWNER, latest, merge, save, start
from tests.api.state.test_store import run_sql
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
