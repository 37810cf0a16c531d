"""Repacking."""

from __future__ import annotations

from analemma import App
from tests.api.gc.packing_stores import (
    OWNER,
    SMALL,
    assert_whole,
    block_rows,
    converse,
    meddle,
    moved_nothing,
    packs,
    query,
    states,
    upload_states,
)
from tests.stores import Store


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
        old = packs(store)
        assert len(old) == 2 and all(usage.wasted > 0.5 for usage in old)
        report = app.packing.repack()
        assert (report.blocks, report.packs, report.emptied, report.left) == (len(kept), 2, 2, 0)
        assert report.freed_bytes == sum(usage.size for usage in old)
        living = [usage for usage in packs(store) if usage.blocks]
        assert {usage.upload for usage in living}.isdisjoint({usage.upload for usage in old})
        assert all(usage.wasted < 0.05 for usage in living) and set(block_rows(store)) == kept
        assert states(app) == expected
        # The collector takes what is empty; nothing that is needed was in there.
        assert app.objects is not None
        for usage in old:
            app.objects.delete(usage.key)
        assert states(app) == expected
        assert_whole(app)
        assert moved_nothing(app.packing.repack())


def test_waste_is_below_the_threshold_afterwards(store: Store) -> None:
    with store.open(**SMALL) as app:
        half_dead(app, store)
        assert any(usage.blocks and usage.wasted > 0.3 for usage in packs(store))
        app.packing.repack(waste=0.3)
        assert all(usage.wasted <= 0.3 for usage in packs(store) if usage.blocks)
        assert_whole(app)


def test_packs_that_mostly_live_are_left_alone(store: Store) -> None:
    with store.open(**SMALL) as app:
        converse(app)
        app.packing.pack(older_than_s=0)
        rows = block_rows(store)
        assert moved_nothing(app.packing.repack())
        assert block_rows(store) == rows


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

        with store.open(**SMALL | {"pack_target_bytes": 16 << 20}) as other:
            meddle(other, repack_first)
            report = other.packing.repack()
        assert report.blocks == 0 and report.left == len(kept)
        assert sorted(upload_states(store)) == ["ready"] * 4 + ["temp"] * 2
        assert states(app) == expected
        assert_whole(app)


def test_a_damaged_block_stays_and_its_neighbours_move(store: Store) -> None:
    with store.open(**SMALL | {"pack_target_bytes": 16 << 20}) as app:
        kept = half_dead(app, store)
        block, row = min((block, row) for block, row in block_rows(store).items() if row[6] is None)
        assert app.objects is not None
        [key] = [pack.key for pack in packs(store) if pack.upload == row[3]]
        data = app.objects.get(key)
        app.objects.put(key, data[: row[4]] + bytes(row[5]) + data[row[4] + row[5] :])
        report = app.packing.repack()
        assert report.blocks == len(kept) - 1 and report.emptied == 1
        assert len(report.problems) == 1 and block.hex() in report.problems[0]
        assert block_rows(store)[block] == row


def test_a_missing_pack_is_a_problem_and_the_others_move(store: Store) -> None:
    with store.open(**SMALL) as app:
        half_dead(app, store)
        lost, *others = [usage for usage in packs(store) if usage.blocks and usage.wasted > 0.3]
        assert app.objects is not None and others
        app.objects.delete(lost.key)
        report = app.packing.repack(waste=0.3)
        assert report.emptied == len(others) and lost.key in report.problems[0]
        places = {row[3] for row in block_rows(store).values()}
        assert lost.upload in places and places.isdisjoint({usage.upload for usage in others})


def test_with_the_collector_only_what_is_needed_stays(store: Store) -> None:
    with store.open(**SMALL, gc_upload_age_s=0, gc_object_delay_s=0) as app:
        converse(app, versions=40)
        app.packing.pack(older_than_s=0)
        first = {usage.upload for usage in packs(store)}
        app.kernel.set_retention(owner_id=OWNER, keep_last=4)
        for _ in range(2):
            app.gc.run(grace_s=0)
        expected = states(app)
        assert len(expected) == 4 and any(usage.wasted > 0.5 for usage in packs(store))
        app.packing.repack()
        app.gc.run(grace_s=0)
        living = packs(store)
        assert all(usage.blocks and usage.wasted <= 0.5 for usage in living) and {u.upload for u in living} != first
        assert app.objects is not None
        assert {info.key for info in app.objects.list()} == {usage.key for usage in living}
        assert states(app) == expected
        assert_whole(app)
