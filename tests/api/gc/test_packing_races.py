"""What others do between reading blocks and moving them: each time the block goes where it should, or stays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from analemma.errors import Conflict, Corrupt
from analemma.testing import failpoints
from tests.api.gc.packing_stores import (
    OWNER,
    SMALL,
    assert_whole,
    block_rows,
    converse,
    meddle,
    query,
    states,
    upload_states,
)
from tests.raw_rows import connect
from tests.stores import Store

ONE_OF_EACH: dict[str, Any] = {**SMALL, "pack_target_bytes": 16 << 20}
"""Settings with which everything goes into two packs: blocks with links, and blocks without."""


def pack_beside(store: Store, happens: Callable[[], object]) -> Any:
    """Pack everything; something happens once, after the first pack was stored. What was moved."""
    waiting = [happens]

    def after_put(_: str) -> None:
        if waiting:
            waiting.pop()()

    with store.open(**ONE_OF_EACH) as other:
        meddle(other, after_put)
        return other.packing.pack(older_than_s=0)


def test_the_second_of_two_packers_moves_nothing(store: Store) -> None:
    with store.open(**ONE_OF_EACH) as app:
        converse(app)
        expected, blocks = states(app), block_rows(store)
        report = pack_beside(store, lambda: app.packing.pack(older_than_s=0))
        assert report.blocks == 0 and report.left == len(blocks)
        # What the first stored counts, what the second stored is left to the collector.
        assert sorted(upload_states(store)) == ["ready", "ready", "temp", "temp"]
        assert states(app) == expected
        assert_whole(app)


def test_a_pack_that_would_begin_mostly_dead_is_not_begun(store: Store) -> None:
    with store.open(**ONE_OF_EACH) as app:
        converse(app)
        branching = [block for block, row in block_rows(store).items() if row[6] is not None]

        def remove_most() -> None:
            # As a collector would: their versions are not looked at again.
            for block in branching[: len(branching) * 2 // 3]:
                query(store, "DELETE FROM block WHERE id = ?", block)

        report = pack_beside(store, remove_most)
        rows = block_rows(store)
        assert all(rows[block][2] is not None for block in branching if block in rows)
        assert sorted(upload_states(store)) == ["ready", "temp"] and report.left == len(branching)
        # The next run takes what the first left.
        assert app.packing.pack(older_than_s=0).blocks == len(branching) - len(branching) * 2 // 3


def test_a_block_deleted_meanwhile_stays_deleted(store: Store) -> None:
    with store.open(**ONE_OF_EACH) as app:
        converse(app)
        before = set(block_rows(store))
        app.kernel.save_state_delta({"only": "here" * 400}, workflow_id="gone", owner_id=OWNER)
        garbage = set(block_rows(store)) - before

        def collect() -> None:
            for block in garbage:
                query(store, "DELETE FROM block WHERE id = ?", block)

        report = pack_beside(store, collect)
        assert set(block_rows(store)) == before
        assert (report.blocks, report.left) == (len(before), len(garbage))
        assert_whole(app)


def test_a_save_that_emits_a_block_again_finds_it_moved(store: Store) -> None:
    with store.open(**ONE_OF_EACH) as app:
        converse(app, versions=20)
        state = states(app)[0]
        packed = set(block_rows(store))

        def save_the_same() -> None:
            app.kernel.save_state_delta(state, workflow_id="copy", owner_id=OWNER)

        pack_beside(store, save_the_same)
        rows = block_rows(store)
        assert {block for block, row in rows.items() if row[2] is None} == packed
        assert states(app, "copy") == [state]
        assert_whole(app)
        assert_whole(app, "copy")


def test_moving_leaves_a_doom_alone_and_a_save_still_clears_it(store: Store) -> None:
    with store.open(**ONE_OF_EACH) as app:
        converse(app, versions=20)
        state = states(app)[0]
        app.kernel.save_state_delta(
            {"messages": [], "scratch": "", "constant": {}}, workflow_id="report", owner_id=OWNER
        )
        app.kernel.set_retention(owner_id=OWNER, keep_last=1)
        pack_beside(store, lambda: app.gc.run(grace_s=0))
        doomed = {block for block, row in block_rows(store).items() if row[-1] is not None}
        assert doomed and all(row[2] is None for row in block_rows(store).values())
        app.kernel.save_state_delta(state, workflow_id="copy", owner_id=OWNER)
        rows = block_rows(store)
        assert any(rows[block][-1] is None and rows[block][2] is None for block in doomed)
        for _ in range(2):
            app.gc.run(grace_s=0)
        assert states(app, "copy") == [state]
        assert_whole(app, "copy")


def test_a_pack_that_the_collector_claimed_gets_no_blocks(store: Store) -> None:
    with store.open(**ONE_OF_EACH) as app:
        converse(app)
        rows = block_rows(store)

        def claim() -> None:
            query(store, "UPDATE upload SET state = 'deleting'")

        with pytest.raises(Conflict, match="collected"):
            pack_beside(store, claim)
        assert block_rows(store) == rows and upload_states(store) == ["deleting"]
        assert_whole(app)


def test_a_block_stored_anew_in_another_form_stays_where_it_is(store: Store) -> None:
    with store.open(**ONE_OF_EACH) as app:
        converse(app, versions=20)
        block, row = next((block, row) for block, row in block_rows(store).items() if row[1] == 1 and row[6] is None)
        data = zstandard.ZstdDecompressor().decompress(row[2], max_output_size=row[0])

        def store_raw() -> None:
            query(store, "UPDATE block SET codec = 0, body = ? WHERE id = ?", data, block)

        report = pack_beside(store, store_raw)
        assert report.left == 1 and block_rows(store)[block][:3] == (row[0], 0, data)
        assert_whole(app)


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_a_pack_that_does_not_read_back_gets_no_blocks(damage: str, store: Store) -> None:
    with store.open(**ONE_OF_EACH) as app:
        converse(app, versions=20)
        rows = block_rows(store)
        assert app.objects is not None

        def spoil(key: str) -> None:
            assert app.objects is not None
            data = app.objects.get(key)
            app.objects.delete(key)
            if damage == "flipped":
                app.objects.put(key, data[:100] + bytes([data[100] ^ 1]) + data[101:])
            elif damage == "cut":
                app.objects.put(key, data[:-1])

        with store.open(**ONE_OF_EACH) as other:
            meddle(other, spoil)
            with pytest.raises(Corrupt):
                other.packing.pack(older_than_s=0)
        # An upload that failed is the collector's at once; one that is found out later waits for it.
        assert block_rows(store) == rows and upload_states(store) == ["temp" if damage == "flipped" else "deleting"]


def test_a_damaged_block_is_left_alone_and_named(store: Store) -> None:
    with store.open(**SMALL) as app:
        converse(app, versions=20)
        damaged = min(block_rows(store))
        query(store, "UPDATE block SET body = ? WHERE id = ?", b"not these bytes", damaged)
        report = app.packing.pack(older_than_s=0)
        rows = block_rows(store)
        assert [block for block, row in rows.items() if row[2] is not None] == [damaged]
        assert len(report.problems) == 1 and damaged.hex() in report.problems[0]


def test_a_lost_answer_is_found_out(migrated_url: str, tmp_path: Path) -> None:
    """The connection ends before the answer comes: whether the blocks have moved is looked up."""
    store = Store(migrated_url, str(tmp_path / "objects"))

    def lose_connections() -> None:
        with connect(store.url) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    with store.open(**ONE_OF_EACH) as app:
        converse(app, versions=20)
        with failpoints.call("pack.before_commit", lose_connections):
            report = app.packing.pack(older_than_s=0)
        assert report.blocks == len(block_rows(store)) and report.left == 0
        assert_whole(app)


def test_savers_and_packers_of_the_same_blocks_get_along(store: Store) -> None:
    """Saves emit what is being packed, unpacked and packed again, in many threads."""
    failures: list[BaseException] = []
    stop = threading.Event()

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as exc:
                failures.append(exc)
                stop.set()

        return run

    with store.open(**SMALL) as app:
        converse(app, versions=15)
        contents = states(app)

        def save(number: int) -> None:
            saved = 0
            while not stop.is_set() or saved < 5:
                app.kernel.save_state_delta(
                    contents[saved % len(contents)], workflow_id=f"copy {number}", owner_id=OWNER
                )
                saved += 1

        def move() -> None:
            try:
                for _ in range(4):
                    app.packing.pack(older_than_s=0)
                    app.packing.repack(waste=0)
            finally:
                stop.set()

        works = [guarded(move), guarded(move), guarded(lambda: save(1)), guarded(lambda: save(2))]
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
        assert failures == []
        for workflow in ("report", "copy 1", "copy 2"):
            assert_whole(app, workflow)
        assert states(app) == contents


class Moving:
    """An object store in which everything lies elsewhere by the time that somebody reads for the first time."""

    def __init__(self, store: Any, move: Callable[[], None]) -> None:
        self._store = store
        self._waiting = [move]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("get") and self._waiting:
            self._waiting.pop()()
        return getattr(self._store, name)


def test_a_reader_follows_a_block_that_moves_before_its_eyes(store: Store) -> None:
    """The row is read, then the block moves on and its old pack goes: it is looked up once more."""
    with store.open(**ONE_OF_EACH) as app, store.open(**ONE_OF_EACH) as reader:
        converse(app, versions=5)
        expected = states(app)
        app.packing.pack(older_than_s=0)
        moved: list[bool] = []

        def move() -> None:
            assert app.objects is not None
            old = [info.key for info in app.objects.list("packs")]
            app.packing.repack(waste=0)
            app.objects.delete_many(old)
            moved.append(True)

        objects: Any = Moving(reader.objects, move)
        reader.objects = objects
        assert states(reader) == expected and moved
