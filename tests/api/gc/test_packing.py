"""Packing: what moves, what it costs, and that nobody notices."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from analemma.errors import Invalid
from tests.api.gc.packing_stores import (
    OWNER,
    SMALL,
    assert_whole,
    block_rows,
    bytes_in_database,
    converse,
    moved_nothing,
    query,
    states,
    upload_states,
)
from tests.stores import Store


def test_packing_keeps_every_byte_readable_and_empties_the_database(store: Store) -> None:
    with store.open(**SMALL) as app:
        converse(app)
        expected, before, blocks = states(app), bytes_in_database(store), block_rows(store)
        report = app.packing.pack(older_than_s=0)
        assert report.blocks == len(blocks) and report.problems == () and report.left == 0
        assert bytes_in_database(store) <= before / 10
        assert set(upload_states(store)) == {"ready"}
        assert states(app) == expected
        assert_whole(app)
    with store.open(cache_bytes=0) as app:
        assert states(app) == expected
        # Life goes on, on top of what is packed.
        app.kernel.save_state_delta({"/messages/-": {"role": "user"}}, workflow_id="report", owner_id=OWNER)
        assert_whole(app)


def test_packing_makes_few_objects(store: Store) -> None:
    with store.open(**SMALL) as app:
        converse(app)
        report = app.packing.pack(older_than_s=0)
        assert app.objects is not None
        assert len([*app.objects.list("packs")]) == report.packs > 1
    assert report.packs <= report.blocks / 5


def test_packing_again_finds_nothing_to_do(store: Store) -> None:
    with store.open(**SMALL) as app:
        converse(app)
        app.packing.pack(older_than_s=0)
        rows = block_rows(store)
        assert moved_nothing(app.packing.pack(older_than_s=0))
        assert block_rows(store) == rows


def test_only_what_was_stored_before_is_packed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open(**SMALL) as app:
        converse(app, "old", versions=20)
        old = set(block_rows(store))
        right = time.time_ns
        with monkeypatch.context() as patched:
            patched.setattr(time, "time_ns", lambda: right() + 3000 * 10**9)
            converse(app, "new", versions=20, seed=8)
            assert moved_nothing(app.packing.pack(older_than_s=9000))
            report = app.packing.pack(older_than_s=1000)
        packed = {block for block, row in block_rows(store).items() if row[2] is None}
        assert packed == old and report.blocks == len(old)
        assert_whole(app, "old")
        assert_whole(app, "new")


def test_blocks_lie_in_the_order_in_which_they_were_saved(store: Store) -> None:
    with store.open(**SMALL | {"pack_target_bytes": 16 << 20}) as app:
        converse(app)
        app.packing.pack(older_than_s=0)
        versions = app.kernel.history(workflow_id="report", owner_id=OWNER, limit=1000)
        rows = block_rows(store)
        lying = [rows[bytes.fromhex(version.manifest_id)] for version in reversed(versions)]
    offsets = [row[4] for row in lying]
    assert len({row[3] for row in lying}) == 1 and offsets == sorted(offsets)


def test_blocks_that_link_to_others_have_packs_of_their_own(store: Store) -> None:
    with store.open(**SMALL) as app:
        converse(app)
        app.packing.pack(older_than_s=0)
    kinds: dict[bytes, set[bool]] = {}
    for row in block_rows(store).values():
        kinds.setdefault(row[3], set()).add(row[6] is not None)
    assert sorted(map(len, kinds.values())) == [1] * len(kinds)
    assert {True, False} == set.union(*kinds.values())


def test_a_dry_run_counts_and_moves_nothing(store: Store) -> None:
    with store.open(**SMALL) as app:
        converse(app)
        rows = block_rows(store)
        plan = app.packing.pack(older_than_s=0, dry_run=True)
        assert plan.dry_run and block_rows(store) == rows and upload_states(store) == []
        done = app.packing.pack(older_than_s=0)
    assert (plan.blocks, plan.bytes) == (done.blocks, done.bytes)


def test_too_little_waits_for_more(store: Store) -> None:
    with store.open(**SMALL | {"pack_least_bytes": 16 << 20}) as app:
        converse(app, versions=5)
        rows = block_rows(store)
        report = app.packing.pack(older_than_s=0)
        assert report.blocks == report.packs == 0 and report.waiting_bytes > 0
        assert block_rows(store) == rows


def test_what_fills_no_pack_waits(store: Store) -> None:
    with store.open(**SMALL | {"pack_least_bytes": 65_536}) as app:
        converse(app)
        report = app.packing.pack(older_than_s=0)
        inline = query(store, "SELECT coalesce(sum(length(body)), 0) FROM block")[0][0]
        assert report.blocks > 0 and report.waiting_bytes == inline < 2 * 65_536
        assert_whole(app)


def test_progress_is_told_after_every_pack(store: Store) -> None:
    heard: list[Any] = []
    with store.open(**SMALL) as app:
        converse(app)
        report = app.packing.pack(older_than_s=0, progress=heard.append)
    assert [each.packs for each in heard] == list(range(1, report.packs + 1))
    assert heard[-1].blocks == report.blocks


def test_doomed_blocks_are_not_worth_moving(store: Store) -> None:
    with store.open(**SMALL) as app:
        converse(app, versions=10)
        app.kernel.set_retention(owner_id=OWNER, keep_last=1)
        doomed = app.gc.run(grace_s=0).doomed
        app.packing.pack(older_than_s=0)
        rows = block_rows(store).values()
    assert len([row for row in rows if row[-1] is not None]) == doomed > 0
    assert all((row[2] is None) == (row[-1] is None) for row in rows)


def test_tenants_are_packed_apart(store: Store) -> None:
    with store.open(**SMALL) as app:
        converse(app, versions=10)
        other = app.tenant("other").kernel
        other.save_state_delta({"n": list(range(1000))}, workflow_id="report", owner_id=OWNER)
        before = query(store, "SELECT id FROM block WHERE body IS NOT NULL AND tenant = 2 ORDER BY id")
        app.packing.pack(older_than_s=0)
        assert query(store, "SELECT id FROM block WHERE body IS NOT NULL ORDER BY id") == before != []
        app.tenant("other").packing.pack(older_than_s=0)
        assert query(store, "SELECT id FROM block WHERE body IS NOT NULL") == []
        assert query(store, "SELECT tenant, count(*) FROM upload GROUP BY tenant ORDER BY tenant")[1][0] == 2
        assert other.verify(workflow_id="report", owner_id=OWNER).problems == []


def test_postgresql_alone_has_nowhere_to_pack(postgres_url: str) -> None:
    with Store(postgres_url).open() as app:
        for verb in (app.packing.pack, app.packing.repack):
            with pytest.raises(Invalid, match="no object store") as refused:
                verb()
            assert "ANALEMMA_OBJECTS" in (refused.value.hint or "")


def test_a_time_or_a_share_that_is_none_is_refused(store: Store) -> None:
    with store.open() as app:
        for seconds in (-1, float("nan"), float("inf")):
            with pytest.raises(Invalid, match="seconds"):
                app.packing.pack(older_than_s=seconds)
        for waste in (-0.1, 1, float("nan")):
            with pytest.raises(Invalid, match="share"):
                app.packing.repack(waste=waste)


def test_vacuum_gives_an_sqlite_file_its_free_pages_back(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    file = tmp_path / "store" / "catalog.db"
    with store.open(**SMALL) as app:
        converse(app, versions=150)
        app.packing.pack(older_than_s=0)
        before, after = app.packing.vacuum()
        assert after < before / 2 and file.stat().st_size == after
        assert_whole(app)
        app.kernel.save_state_delta({"n": 1}, workflow_id="report", owner_id=OWNER)
        assert_whole(app)


def test_vacuum_is_not_for_postgresql(postgres_url: str) -> None:
    with Store(postgres_url).open() as app, pytest.raises(Invalid, match="by itself"):
        app.packing.vacuum()
