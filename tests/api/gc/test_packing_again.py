"""Repacking and unpacking."""

from __future__ import annotations

import pytest

from analemma import App
from analemma.blocks.packs import pack_key
from analemma.catalog.packing import PackUsage, SqlPacking
from analemma.catalog.port import UploadId
from analemma.errors import Invalid
from analemma.gc.packing_moves import PackingReport
from analemma.gc.repacking import is_wasteful, wasted
from tests.api.gc.packing_stores import (
    OWNER,
    SMALL,
    Meddling,
    assert_whole,
    block_rows,
    converse,
    packing_of,
    query,
    states,
    upload_states,
)
from tests.stores import Store


def usages(app: App) -> list[PackUsage]:
    return SqlPacking(app.catalog.engine).pack_usage(app.default.id, limit=1000)


def delete_blocks(store: Store, blocks: set[bytes]) -> None:
    """As the collector does with what nothing leads to."""
    for block in blocks:
        query(store, "DELETE FROM block WHERE id = ?", block)


def half_dead(app: App, store: Store) -> set[bytes]:
    """Packs in which the blocks of two workflows lie side by side; the blocks of one are deleted. Those that stay."""
    for number in range(15):
        app.kernel.save_state_delta({"keep": ["keep " * 300, number]}, workflow_id="report", owner_id=OWNER)
    kept = set(block_rows(store))
    for number in range(45):
        dropped = ["drop " * 300, number, str(number) * 900]
        app.kernel.save_state_delta({"drop": dropped}, workflow_id="gone", owner_id=OWNER)
    app.packing.pack(older_than_s=0)
    delete_blocks(store, set(block_rows(store)) - kept)
    return kept


def test_packs_that_are_mostly_dead_are_written_anew(store: Store) -> None:
    with store.open(**SMALL | {"pack_target_bytes": 16 << 20}) as app:
        kept = half_dead(app, store)
        expected = states(app)
        old = usages(app)
        assert len(old) == 2 and all(wasted(usage) > 0.5 for usage in old)
        report = app.packing.repack()
        assert (report.blocks, report.packs, report.emptied, report.left) == (len(kept), 2, 2, 0)
        assert report.freed_bytes == sum(usage.size for usage in old)
        living = [usage for usage in usages(app) if usage.blocks]
        assert {usage.upload for usage in living}.isdisjoint({usage.upload for usage in old})
        assert all(wasted(usage) < 0.05 for usage in living) and set(block_rows(store)) == kept
        assert states(app) == expected
        # The collector takes what is empty; nothing that is needed was in there.
        assert app.objects is not None
        for usage in old:
            app.objects.delete(pack_key(usage.upload))
        assert states(app) == expected
        assert_whole(app)
        assert app.packing.repack() == PackingReport()


def test_waste_is_below_the_threshold_afterwards(store: Store) -> None:
    with store.open(**SMALL) as app:
        half_dead(app, store)
        assert any(usage.blocks and wasted(usage) > 0.3 for usage in usages(app))
        app.packing.repack(waste=0.3)
        assert all(wasted(usage) <= 0.3 for usage in usages(app) if usage.blocks)
        assert_whole(app)


def test_packs_that_mostly_live_are_left_alone(store: Store) -> None:
    with store.open(**SMALL) as app:
        converse(app)
        app.packing.pack(older_than_s=0)
        rows = block_rows(store)
        assert app.packing.repack() == PackingReport()
        assert block_rows(store) == rows


def test_a_pack_of_tiny_blocks_is_not_wasteful_for_its_footer() -> None:
    tiny = PackUsage(UploadId(b"u" * 16), size=10_000 * (30 + 46) + 57, blocks=10_000, live_bytes=10_000 * 30)
    assert not is_wasteful(tiny, 0.01)
    assert is_wasteful(PackUsage(tiny.upload, tiny.size, 4000, 4000 * 30), 0.5)
    assert not is_wasteful(PackUsage(tiny.upload, tiny.size, 0, 0), 0.5)


def test_a_dry_run_of_repacking_moves_nothing(store: Store) -> None:
    with store.open(**SMALL | {"pack_target_bytes": 16 << 20}) as app:
        half_dead(app, store)
        rows = block_rows(store)
        plan = app.packing.repack(dry_run=True)
        assert block_rows(store) == rows and upload_states(store) == ["ready", "ready"]
        done = app.packing.repack()
    assert (plan.blocks, plan.bytes, plan.emptied, plan.freed_bytes) == (
        done.blocks,
        done.bytes,
        done.emptied,
        done.freed_bytes,
    )


def test_the_second_of_two_repackers_moves_nothing(store: Store) -> None:
    with store.open(**SMALL | {"pack_target_bytes": 16 << 20}) as app:
        kept = half_dead(app, store)
        expected = states(app)
        waiting = [True]

        def repack_first(_: str) -> None:
            if waiting:
                waiting.pop()
                assert app.packing.repack().blocks == len(kept)

        assert app.objects is not None
        report = packing_of(app, objects=Meddling(app.objects, repack_first)).repack()
        assert report.blocks == 0 and report.left == len(kept)
        assert sorted(upload_states(store)) == ["ready"] * 4 + ["temp"] * 2
        assert states(app) == expected
        assert_whole(app)


def test_a_damaged_block_stays_and_its_neighbours_move(store: Store) -> None:
    with store.open(**SMALL | {"pack_target_bytes": 16 << 20}) as app:
        kept = half_dead(app, store)
        block, row = min((block, row) for block, row in block_rows(store).items() if row[6] is None)
        assert app.objects is not None
        key = pack_key(row[3])
        data = app.objects.get(key)
        app.objects.put(key, data[: row[4]] + bytes(row[5]) + data[row[4] + row[5] :])
        report = app.packing.repack()
        assert report.blocks == len(kept) - 1 and report.emptied == 1
        assert len(report.problems) == 1 and block.hex() in report.problems[0]
        assert block_rows(store)[block] == row


def test_a_missing_pack_is_a_problem_and_the_others_move(store: Store) -> None:
    with store.open(**SMALL) as app:
        converse(app)
        app.packing.pack(older_than_s=0)
        lost, *others = usages(app)
        assert app.objects is not None
        app.objects.delete(pack_key(lost.upload))
        report = app.packing.unpack()
        assert report.emptied == len(others) and pack_key(lost.upload) in report.problems[0]
        assert {row[3] for row in block_rows(store).values()} == {None, lost.upload}


@pytest.mark.parametrize("waste", [-0.1, 1, float("nan")])
def test_a_share_that_is_none_is_refused(waste: float, store: Store) -> None:
    with store.open() as app, pytest.raises(Invalid, match="share"):
        app.packing.repack(waste=waste)


def test_unpacking_undoes_packing(store: Store) -> None:
    with store.open(**SMALL) as app:
        converse(app)
        rows, expected = block_rows(store), states(app)
        packed = app.packing.pack(older_than_s=0)
        plan = app.packing.unpack(dry_run=True)
        assert (plan.blocks, plan.bytes, plan.emptied) == (packed.blocks, packed.bytes, packed.packs)
        done = app.packing.unpack()
        assert (done.blocks, done.bytes, done.emptied) == (packed.blocks, packed.bytes, packed.packs)
        assert block_rows(store) == rows
        # Nothing is read from packs any more.
        assert app.objects is not None
        app.objects.delete_many([info.key for info in app.objects.list()])
        assert states(app) == expected
        assert_whole(app)
        assert app.packing.unpack() == PackingReport()


def test_large_saves_are_unpacked_too(store: Store) -> None:
    with store.open(**SMALL | {"pack_threshold_bytes": 1000}) as app:
        converse(app, versions=5)
        expected = states(app)
        assert {row[2] is None for row in block_rows(store).values()} == {True}
        app.packing.unpack()
        assert {row[2] is None for row in block_rows(store).values()} == {False}
        assert states(app) == expected
        assert_whole(app)


def test_with_the_collector_only_what_is_needed_stays(store: Store) -> None:
    with store.open(**SMALL, gc_upload_age_s=0, gc_object_delay_s=0) as app:
        converse(app, versions=40)
        app.packing.pack(older_than_s=0)
        first = {usage.upload for usage in usages(app)}
        app.kernel.set_retention(owner_id=OWNER, keep_last=4)
        for _ in range(2):
            app.gc.run(grace_s=0)
        expected = states(app)
        assert len(expected) == 4 and any(wasted(usage) > 0.5 for usage in usages(app))
        app.packing.repack()
        app.gc.run(grace_s=0)
        living = usages(app)
        assert all(usage.blocks and wasted(usage) <= 0.5 for usage in living) and {u.upload for u in living} != first
        assert app.objects is not None
        assert {info.key for info in app.objects.list()} == {pack_key(usage.upload) for usage in living}
        assert states(app) == expected
        assert_whole(app)
        app.packing.unpack()
        app.gc.run(grace_s=0)
        assert list(app.objects.list()) == [] and usages(app) == []
        assert states(app) == expected
        assert_whole(app)
