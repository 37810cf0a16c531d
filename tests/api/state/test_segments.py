"""Workflow manifests: configuration and segments under their hashes, shared, inherited, verified and injected."""

from __future__ import annotations

import pickle
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from analemma import App, Commit
from analemma import open as open_store
from analemma.errors import Conflict, Corrupt, HeadMoved, Invalid, NotFound
from tests.api.state.raw_access import damaged
from tests.raw_rows import change, select
from tests.stores import Store

OWNER: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
CONFIG = {"name": "trip", "nodes": ["plan", "book", "pay"]}


def segment(number: int) -> dict[str, Any]:
    return {"node": f"node {number}", "prompt": "please " * 20, "limit": number}


def create(app: App, numbers: list[int], parent: str | None = None) -> Any:
    return app.kernel.create_manifest("trip", CONFIG, [segment(n) for n in numbers], parent, owner_id="ann")


def root_hash(app: App, state: dict[str, Any]) -> str:
    return app.kernel.save_state_delta(state, workflow_id="other", owner_id="ann", branch=str(state)[:100]).root_hash


def test_a_new_workflow_begins_with_an_empty_state(store: Store) -> None:
    with store.open() as app:
        made = create(app, [1, 2, 3])
        assert (made.version, made.parent_hash, made.hash_version) == (1, None, 1)
        assert made.manifest_id == made.manifest_hash
        # A configuration is named as a state with the same fields is.
        assert made.config_hash == root_hash(app, CONFIG)
        assert made.segment_hashes == {n: root_hash(app, segment(n + 1)) for n in range(3)}
        assert made.metadata["segment_count"] == 3 and made.metadata["total_size"] > 3 * 140
        assert app.kernel.load_latest_state(**OWNER) == {}
        assert app.kernel.get_manifest(made.manifest_id) == made
        assert app.kernel.load_workflow_config(made.manifest_id) == CONFIG
        assert app.kernel.load_segment_manifest(made.manifest_id) == [segment(1), segment(2), segment(3)]
        assert app.kernel.verify(**OWNER).ok


def test_equal_segments_are_stored_once(store: Store) -> None:
    with store.open() as app:
        stored = reused = 0
        known: set[str] = set()
        for version in range(10):
            numbers = [(version + offset) % 8 for offset in range(5)]
            made = create(app, numbers)
            stored += made.metadata["blocks_stored"]
            reused += made.metadata["blocks_reused"]
            known.update(made.segment_hashes.values())
        assert (stored, reused, len(known)) == (8, 42, 8)
        rows = select(store, "SELECT id FROM block")
        assert len([row for row in rows if bytes(row[0]).hex() in known]) == 8


def test_a_segment_twice_in_one_list_is_stored_once(store: Store) -> None:
    with store.open() as app:
        made = create(app, [1, 1, 2])
        assert (made.metadata["blocks_stored"], made.metadata["blocks_reused"]) == (2, 1)
        assert made.segment_hashes[0] == made.segment_hashes[1] and len(made.blocks) == 2


def test_saves_rollbacks_and_forks_inherit_configuration_and_segments(store: Store) -> None:
    with store.open() as app:
        made = create(app, [1, 2])
        saved = app.kernel.save_state_delta({"n": 1}, **OWNER)
        back = app.kernel.rollback_to_version(**OWNER, version=1)
        assert isinstance(back, Commit)
        forked = app.kernel.fork(saved.manifest_id, owner_id="ann", branch="idea")
        merged = app.kernel.merge(**OWNER, source="idea").commit
        assert merged is not None
        for manifest_id in (saved.manifest_id, back.manifest_id, forked.manifest_id, merged.manifest_id):
            later = app.kernel.get_manifest(manifest_id)
            assert (later.config_hash, later.segment_hashes, later.hash_version) == (
                made.config_hash,
                made.segment_hashes,
                1,
            )
            assert app.kernel.verify_segment_config(segment(2), manifest_id, 1)


def test_a_parent_keeps_its_state_and_must_be_the_head(store: Store) -> None:
    with store.open() as app:
        saved = app.kernel.save_state_delta({"n": 1}, **OWNER)
        plain = app.kernel.get_manifest(saved.manifest_id)
        assert (plain.config_hash, plain.segment_hashes, plain.hash_version) == (None, {}, 0)
        made = create(app, [1], parent=saved.manifest_id)
        assert (made.version, made.parent_hash) == (2, saved.manifest_id)
        assert app.kernel.load_latest_state(**OWNER) == {"n": 1}
        with pytest.raises(HeadMoved):
            create(app, [9], parent=saved.manifest_id)
        elsewhere = app.kernel.fork(saved.manifest_id, owner_id="ann", workflow_id="copy")
        before = app.stats()
        with pytest.raises(Invalid, match="no version of"):
            create(app, [9], parent=elsewhere.manifest_id)
        assert app.stats() == before
        assert create(app, [2]).version == 3
        assert app.kernel.load_latest_state(**OWNER) == {"n": 1}


def test_a_wrapped_configuration_is_hashed_without_its_wrapping(store: Store) -> None:
    with store.open() as app:
        entry = {"segment_id": 7, "kind": "llm", "long": "x" * 5000, "segment_config": segment(1)}
        made = app.kernel.create_manifest("trip", CONFIG, [entry, segment(1)], owner_id="ann")
        assert made.segment_hashes[0] == made.segment_hashes[1]
        assert app.kernel.load_segment_manifest(made.manifest_id) == [entry, segment(1)]
        assert app.kernel.verify_segment_config(segment(1), made.manifest_id, 0)
        # Around a genuine configuration anything could stand: the wrapping proves nothing, so it is not accepted.
        assert not app.kernel.verify_segment_config(entry, made.manifest_id, 0)
        assert app.kernel.verify(**OWNER).ok


def test_verifying_a_segment_fails_closed(store: Store) -> None:
    with store.open() as app:
        made = create(app, [1, 2])
        verify = app.kernel.verify_segment_config
        assert verify(segment(1), made.manifest_id, 0) and verify(segment(2), made.manifest_id, "1")
        assert not verify(segment(2), made.manifest_id, 0)
        assert not verify(segment(1) | {"limit": 1.0}, made.manifest_id, 0)
        assert not verify(segment(1) | {"extra": None}, made.manifest_id, 0)
        bad: list[Any] = [2, -1, "-1", "one", None, True, 0.0, 10**30, "9" * 5000]
        for index in bad:
            assert not verify(segment(1), made.manifest_id, index)
            assert not verify(segment(2), made.manifest_id, index)
        wrong: list[Any] = [None, [], "text", {"n": float("nan")}, {1: 2}]
        for config in wrong:
            assert not verify(config, made.manifest_id, 0)
        assert not verify(segment(1), "0" * 64, 0)
        nowhere: list[Any] = ["nonsense", None, 5, b"0" * 64]
        for manifest_id in nowhere:
            assert not verify(segment(1), manifest_id, 0)
        plain = app.kernel.save_state_delta({"n": 1}, workflow_id="plain", owner_id="ann")
        assert not verify(segment(1), plain.manifest_id, 0)


def test_a_damaged_list_of_segments_verifies_nothing(store: Store) -> None:
    with store.open() as app:
        made = create(app, [1, 2])
        named = {made.manifest_id, made.config_hash, *made.segment_hashes.values()}
        root = app.kernel.history(**OWNER)[0].root_hash
        blocks = [bytes(block) for (block,) in select(store, "SELECT id FROM block")]
        (listed,) = [block for block in blocks if block.hex() not in {*named, root}]
    change(store, "UPDATE block SET body = ? WHERE id = ?", (b"damaged", listed))
    with store.open() as app:
        assert not app.kernel.verify_segment_config(segment(1), made.manifest_id, 0)
        with pytest.raises(Corrupt):
            app.kernel.get_manifest(made.manifest_id)


def test_an_injected_segment_moves_the_later_ones(store: Store) -> None:
    with store.open() as app:
        inject, verify = app.kernel.inject_dynamic_segment, app.kernel.verify_segment_config
        for position, order in ((0, [9, 1, 2, 3]), (1, [1, 9, 2, 3]), (3, [1, 2, 3, 9])):
            workflow: dict[str, Any] = {"workflow_id": f"trip {position}", "owner_id": "ann"}
            listed = [segment(number) for number in (1, 2, 3)]
            made = app.kernel.create_manifest(workflow["workflow_id"], CONFIG, listed, owner_id="ann")
            grown = inject(made.manifest_id, segment(9), position, expected_hash_version=1)
            assert (grown.version, grown.parent_hash, grown.hash_version) == (2, made.manifest_id, 2)
            assert grown.config_hash == made.config_hash
            assert grown.metadata["blocks_stored"] + grown.metadata["blocks_reused"] == 4
            assert [
                number for index, number in enumerate(order) if verify(segment(number), grown.manifest_id, index)
            ] == order
            assert app.kernel.load_segment_manifest(grown.manifest_id) == [segment(number) for number in order]
            # The manifest it came from is what it was.
            assert app.kernel.get_manifest(made.manifest_id) == made
            assert app.kernel.verify(**workflow).ok


def test_an_injection_lands_on_the_newest_state(store: Store) -> None:
    with store.open() as app:
        made = create(app, [1])
        saved = app.kernel.save_state_delta({"n": 5}, **OWNER)
        grown = app.kernel.inject_dynamic_segment(made.manifest_id, segment(2), 1)
        assert (grown.version, grown.parent_hash) == (3, saved.manifest_id)
        assert app.kernel.load_latest_state(**OWNER) == {"n": 5}


def test_a_second_injection_into_the_same_list_conflicts(store: Store) -> None:
    with store.open() as app:
        made = create(app, [1])
        inject = app.kernel.inject_dynamic_segment
        grown = inject(made.manifest_id, segment(2), 0)
        before = app.stats()
        with pytest.raises(Conflict) as caught:
            inject(made.manifest_id, segment(3), 0)
        assert (caught.value.expected, caught.value.found) == (1, 2)
        with pytest.raises(Conflict):
            inject(grown.manifest_id, segment(3), 0, expected_hash_version=1)
        assert app.stats() == before
        assert inject(grown.manifest_id, segment(3), 0, expected_hash_version=2).hash_version == 3


def test_of_concurrent_injections_one_wins(store: Store) -> None:
    with store.open() as app:
        made = create(app, [1])
        outcomes: list[str] = []
        ready = threading.Barrier(4)

        def inject(number: int) -> None:
            ready.wait()
            try:
                app.kernel.inject_dynamic_segment(made.manifest_id, segment(number), 0)
                outcomes.append("injected")
            except Conflict:
                outcomes.append("conflict")

        threads = [threading.Thread(target=inject, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["conflict", "conflict", "conflict", "injected"]
        newest = app.kernel.history(**OWNER, limit=1)[0]
        assert (newest.version, app.kernel.get_manifest(newest.manifest_id).hash_version) == (2, 2)


def test_bad_requests_say_what_is_wrong(store: Store) -> None:
    with store.open() as app:
        made = create(app, [1, 2])
        positions: list[Any] = [-1, 3, True, "0", 1.0]
        for position in positions:
            with pytest.raises(Invalid, match="from 0 to 2"):
                app.kernel.inject_dynamic_segment(made.manifest_id, segment(9), position)
        with pytest.raises(NotFound):
            app.kernel.inject_dynamic_segment("0" * 64, segment(9), 0)
        with pytest.raises(NotFound):
            app.kernel.inject_dynamic_segment(made.manifest_id, segment(9), 0, owner_id="bob")
        plain = app.kernel.save_state_delta({"n": 1}, workflow_id="plain", owner_id="ann")
        with pytest.raises(NotFound, match="no segments"):
            app.kernel.inject_dynamic_segment(plain.manifest_id, segment(9), 0)
        with pytest.raises(NotFound, match="no configuration"):
            app.kernel.load_workflow_config(plain.manifest_id)
        wrong: Any = ["not a dict"]
        with pytest.raises(Invalid, match="segment 0"):
            app.kernel.create_manifest("trip", CONFIG, wrong, owner_id="ann")
        with pytest.raises(NotFound):
            app.kernel.get_manifest("0" * 64)


def test_nothing_of_configuration_and_segments_is_garbage(store: Store) -> None:
    """Every block of them is linked, from the manifest or below."""
    large = {"text": [f"line {number} " * 8 for number in range(500)]}
    wrapped = {"segment_config": {"more": large}, "note": "y" * 4000}
    with store.open() as app:
        made = app.kernel.create_manifest("trip", {"nodes": large}, [segment(1), wrapped], owner_id="ann")
        before = app.stats().blocks
        assert before > 8
        for _ in range(2):
            assert app.gc.run(grace_s=0).ok
        assert app.stats().blocks == before
    with store.open() as app:
        assert app.kernel.load_workflow_config(made.manifest_id) == {"nodes": large}
        assert app.kernel.load_segment_manifest(made.manifest_id) == [segment(1), wrapped]
        assert app.kernel.verify(**OWNER).ok


def test_damage_to_any_block_of_configuration_and_segments_is_found(store: Store) -> None:
    with store.open(cache_bytes=0) as app:
        wrapped = {"segment_config": {"text": ["line " * 80 for _ in range(60)]}, "note": "y" * 4000}
        app.kernel.create_manifest("trip", {"nodes": ["x" * 3000]}, [segment(1), wrapped], owner_id="ann")
        assert app.kernel.verify(**OWNER).ok
        blocks = [bytes(block) for (block,) in select(store, "SELECT id FROM block")]
        assert len(blocks) > 8
        unnoticed = []
        for block in blocks:
            with damaged(store):
                change(store, "UPDATE block SET body = ?, codec = 0 WHERE id = ?", (b"damaged", block))
                if app.kernel.verify(**OWNER).ok:
                    unnoticed.append(block.hex())
        assert unnoticed == []


MANY = 5_000


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What databases that are opened from now on are asked."""
    texts: list[str] = []
    connect = sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(texts.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    return texts


def reads(sent: list[str]) -> int:
    """How often blocks were read: one each time, as lists lead from one to the next."""
    found = [text for text in sent if text.startswith(("SELECT", "WITH")) and "codec, body" in text]
    sent.clear()
    return len(found)


def test_one_of_many_segments_costs_two_blocks(tmp_path: Path, sent: list[str]) -> None:
    """Beside the manifest, and the workflow's document where a segment is injected: whatever runs it is asked first."""
    with open_store(tmp_path) as app:
        made = app.kernel.create_manifest("trip", CONFIG, [{"n": n} for n in range(MANY)], owner_id="ann")
        assert len(made.segment_hashes) == made.metadata["segment_count"] == MANY
    with open_store(tmp_path) as app:
        sent.clear()
        assert app.kernel.verify_segment_config({"n": 4_321}, made.manifest_id, 4_321)
        assert 1 < reads(sent) <= 3
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as rows:
        assert rows.execute("SELECT max(size) FROM block").fetchone()[0] < 20_000
    with open_store(tmp_path) as app:
        sent.clear()
        grown = app.kernel.inject_dynamic_segment(made.manifest_id, {"n": -1}, 2_000, 1)
        assert 1 < reads(sent) <= 4
        assert (grown.hash_version, grown.metadata["segment_count"]) == (2, MANY + 1)
        assert grown.metadata["total_size"] > made.metadata["total_size"]
        assert grown.metadata["blocks_stored"] == 1 and grown.metadata["blocks_reused"] == MANY
        assert app.kernel.verify_segment_config({"n": 1_999}, grown.manifest_id, 1_999)
        assert app.kernel.verify_segment_config({"n": -1}, grown.manifest_id, 2_000)
        assert app.kernel.verify_segment_config({"n": 2_000}, grown.manifest_id, 2_001)
        assert not app.kernel.verify_segment_config({"n": MANY}, grown.manifest_id, MANY + 1)
        assert app.kernel.verify_segment_config({"n": -1}, made.manifest_id, 2_000) is False
        entries = app.kernel.load_segment_manifest(grown.manifest_id)
        assert entries == [*({"n": n} for n in range(2_000)), {"n": -1}, *({"n": n} for n in range(2_000, MANY))]
        assert app.kernel.verify(**OWNER).ok


def test_checking_every_segment_reads_each_list_once(tmp_path: Path, sent: list[str]) -> None:
    segments = [{"n": n} for n in range(1_000)]
    with open_store(tmp_path) as app:
        made = app.kernel.create_manifest("trip", CONFIG, segments, owner_id="ann")
    with open_store(tmp_path) as app:
        sent.clear()
        checks = [app.kernel.verify_segment_config(each, made.manifest_id, n) for n, each in enumerate(segments)]
        assert all(checks) and 1 < reads(sent) <= 2 + len(segments) / 64


def test_the_pointer_of_many_segments_travels(store: Store) -> None:
    with store.open() as app:
        made = app.kernel.create_manifest("trip", CONFIG, [{"n": n % 200} for n in range(300)], owner_id="ann")
        found = app.kernel.get_manifest(made.manifest_id)
        again = pickle.loads(pickle.dumps(found))
    assert again == found == made
    assert again.segment_hashes == made.segment_hashes and len(again.blocks) == 200


def test_a_list_that_grows_long_becomes_lists(store: Store) -> None:
    with store.open() as app:
        pointer = app.kernel.create_manifest("trip", CONFIG, [{"n": n} for n in range(127)], owner_id="ann")
        for number in range(127, 132):
            pointer = app.kernel.inject_dynamic_segment(pointer.manifest_id, {"n": number}, number, number - 126)
        assert app.kernel.load_segment_manifest(pointer.manifest_id) == [{"n": n} for n in range(132)]
        assert pointer.hash_version == 6
        assert app.kernel.verify(**OWNER).ok
