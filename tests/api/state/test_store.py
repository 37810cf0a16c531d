"""Blocks in rows and packs: where they go, and that damage is always found."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma import App
from analemma.errors import Corrupt, HeadMoved, Invalid, Unavailable
from tests.api.state.raw_access import damaged
from tests.depth import count, some
from tests.raw_rows import change, select
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}


def large_value(seed: int = 1) -> dict[str, Any]:
    """State that needs an object: about half a megabyte that does not compress."""
    pick = random.Random(seed)
    return {f"part {number}": pick.randbytes(20_000) for number in range(25)}


def object_files(store: Store) -> list[Path]:
    folder = Path(store.objects) if store.objects else Path(store.url) / "objects"
    return [path for path in folder.rglob("packs/*/*") if path.is_file()]


def test_an_ordinary_commit_touches_no_object_store(store: Store) -> None:
    with store.open() as app:
        commit = app.kernel.save_state_delta({"n": 1, "text": "x" * 5000}, **NAME)
        assert commit.object_paths == ()
        assert object_files(store) == [] and app.stats().uploads == 0


def test_a_large_commit_uploads_one_object(store: Store) -> None:
    with store.open() as app:
        commit = app.kernel.save_state_delta(large_value(), **NAME)
        assert len(commit.object_paths) == len(object_files(store)) == app.stats().uploads == 1
    with store.open() as app:
        assert app.kernel.load_latest_state(**NAME) == large_value()
        assert app.kernel.verify(**NAME).ok


def test_a_large_commit_of_stored_blocks_uploads_nothing(store: Store) -> None:
    with store.open() as app:
        app.kernel.save_state_delta(large_value(), **NAME)
        before = app.stats()
        commit = app.kernel.save_state_delta(large_value(), workflow_id="copy", owner_id="ann")
        assert commit.object_paths == () and len(object_files(store)) == 1
        # Only the manifest is new: everything below it is shared.
        assert app.stats().blocks == before.blocks + 1


def test_equal_blocks_of_two_tenants_are_stored_twice(store: Store) -> None:
    with store.open() as app:
        for name in ("one", "two"):
            app.tenant(name).kernel.save_state_delta({"text": "shared " * 1000}, **NAME)
        assert app.stats("one").blocks == app.stats("two").blocks == app.stats().blocks // 2
        assert app.stats().tenants == 2
        assert app.tenant("three").kernel.list_workflows(owner_id="ann").items == ()


@pytest.mark.both_stores("only a server can be without an object store")
def test_without_an_object_store_everything_lies_in_the_catalog(migrated_url: str) -> None:
    store = Store(migrated_url)
    with store.open() as app:
        app.kernel.save_state_delta(large_value(), **NAME)
    with store.open() as app:
        assert app.kernel.load_latest_state(**NAME) == large_value()


def test_blocks_in_objects_say_which_object_store_is_missing(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        app.kernel.save_state_delta(large_value(), **NAME)
    elsewhere = str(tmp_path / "elsewhere")
    with pytest.raises(Invalid, match="elsewhere"):
        analemma.open(store.url, objects=elsewhere)
    # Not so if somebody says that they were copied, and they were not: then it is told as far as a marker tells it.
    told = (Corrupt, "missing") if store.objects is None else (Unavailable, "no owner.json")
    with (
        analemma.open(store.url, objects=elsewhere, objects_moved=True) as app,
        pytest.raises(told[0], match=told[1]),
    ):
        app.kernel.load_latest_state(**NAME)


def test_a_commit_on_a_moved_head_changes_nothing(store: Store) -> None:
    with store.open() as app:
        first = app.kernel.save_state_delta({"n": 1}, **NAME)
        app.kernel.save_state_delta({"n": 2}, **NAME)
        before = app.stats()
        for seen in (first.manifest_id, None):
            with pytest.raises(HeadMoved):
                app.kernel.save_state_delta({"n": 3}, previous_manifest_id=seen, **NAME)
        assert app.stats() == before
        assert app.kernel.load_latest_state(**NAME) == {"n": 2}


def flipped(data: bytes, position: int) -> bytes:
    """The same but for one bit."""
    changed = bytearray(data)
    changed[position] ^= 1 << (position % 8)
    return bytes(changed)


def is_noticed(app: App, block: bytes) -> bool:
    """Whether verifying names the damaged block, and so does reading, if it needs that block."""
    if not any(block.hex() in problem for problem in app.kernel.verify(**NAME).problems):
        return False
    try:
        app.kernel.load_latest_state(**NAME)
    except Corrupt as exc:
        return bool(exc.block == block.hex())
    return block.hex() == app.kernel.history(**NAME)[0].manifest_id


def test_a_flipped_byte_in_any_row_is_found_and_names_the_block(store: Store) -> None:
    pick = random.Random(5)
    words = ["alpha", "beta", "gamma", "delta"]
    messages = [{"text": " ".join(pick.choices(words, k=60))} for _ in range(30)]
    unnoticed = []
    with store.open(cache_bytes=0) as app:
        app.kernel.save_state_delta({"messages": messages, "raw": pick.randbytes(100), "n": 1}, **NAME)
        rows = select(store, "SELECT id, body FROM block WHERE body IS NOT NULL")
        assert len(rows) >= 3
        for block, body in [(bytes(block), bytes(body)) for block, body in rows]:
            step = max(1, len(body) // count(test=12, deep=60))
            wrong = [flipped(body, position) for position in range(0, len(body), step)]
            for data in [*wrong, body[:-1], b""]:
                change(store, "UPDATE block SET body = ? WHERE id = ?", (data, block))
                if not is_noticed(app, block):
                    unnoticed.append((block.hex(), data))
            change(store, "UPDATE block SET body = ? WHERE id = ?", (body, block))
        assert unnoticed == []
        assert app.kernel.verify(**NAME).ok


def test_a_flipped_byte_in_a_pack_is_found_and_names_the_block(store: Store) -> None:
    unnoticed = []
    with store.open(cache_bytes=0) as app:
        app.kernel.save_state_delta(large_value(), **NAME)
        rows = select(store, "SELECT id, object_offset, object_length FROM block WHERE upload IS NOT NULL")
        (pack,) = object_files(store)
        data = pack.read_bytes()
        assert len(rows) > 20
        for block, offset, length in rows:
            for position in some([0, length // 2, length - 1], test=[length // 2]):
                pack.write_bytes(flipped(data, offset + position))
                if not is_noticed(app, bytes(block)):
                    unnoticed.append((bytes(block).hex(), position))
        assert unnoticed == []
        pack.write_bytes(data)
        assert app.kernel.verify(**NAME).ok
        pack.write_bytes(data[: len(data) // 2])
        assert not app.kernel.verify(**NAME).ok
        pack.unlink()
        assert not app.kernel.verify(**NAME).ok


DAMAGE = [
    "UPDATE manifest SET version = 7 WHERE version = 2",
    "UPDATE manifest SET message = 'forged'",
    "UPDATE manifest SET created_at = created_at + 1",
    "UPDATE head SET version = 9",
    "UPDATE head SET journal_seq = 1",
    "UPDATE journal SET kind = 'forged' WHERE seq = 1",
    "UPDATE journal SET created_at = created_at + 1 WHERE seq = 2",
    "DELETE FROM journal WHERE seq = 1",
    "DELETE FROM journal WHERE seq = 2",
    "DELETE FROM block WHERE id IN (SELECT root FROM manifest WHERE version = 2)",
]


def test_inconsistent_rows_are_found(store: Store) -> None:
    unnoticed = []
    with store.open(cache_bytes=0) as app:
        for number in range(2):
            app.kernel.save_state_delta({"n": number}, **NAME)
        for statement in DAMAGE:
            assert app.kernel.verify(**NAME).ok
            with damaged(store):
                change(store, statement)
                if app.kernel.verify(**NAME).ok:
                    unnoticed.append(statement)
    assert unnoticed == []


def test_the_cache_keeps_what_was_used_last_and_no_more_than_it_may(store: Store) -> None:
    """What is loaded when there are no blocks any more comes from memory."""
    pick, size, most = random.Random(1), 100_000, 1_000_000
    with store.open(cache_bytes=most) as app:
        states = [{"data": pick.randbytes(size)} for _ in range(12)]
        commits = []
        for number, state in enumerate(states):
            commits.append(app.kernel.save_state_delta(state, workflow_id=f"{number}", owner_id="ann"))
            change(store, "UPDATE block SET body = ?, codec = 0", [b"gone"])
            assert app.kernel.load_state(commits[0].manifest_id) == states[0]
        kept = []
        for number, (state, commit) in enumerate(zip(states, commits, strict=True)):
            with contextlib.suppress(Corrupt):
                assert app.kernel.load_state(commit.manifest_id) == state
                kept.append(number)
        # The first, which was used all the time, and the newest.
        assert kept == [0, *range(len(states) + 1 - len(kept), len(states))]
        assert 0.5 * most <= len(kept) * size <= most


def test_a_refused_value_stores_nothing(store: Store) -> None:
    with store.open() as app:
        app.kernel.save_state_delta({"n": 1}, **NAME)
        before = app.stats()
        with pytest.raises(Invalid):
            app.kernel.save_state_delta({"big": "x" * 100_000, "bad": float("nan")}, **NAME)
        assert app.stats() == before
