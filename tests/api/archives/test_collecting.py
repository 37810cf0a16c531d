"""Collecting archives: what goes, what stays, and what must not go whatever happens in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analemma.errors import Expired, Invalid, Unavailable
from tests.api.archives.collections import (
    DELAY_S,
    InTheMiddle,
    RefusingDeletes,
    cold,
    keys_of,
    let_pass,
    marks,
    on,
    put_unit,
    superseded,
    unit_states,
    units,
    warm,
)
from tests.raw_rows import change, select
from tests.stores import Store, local

FILTERS = ["merge", "bloom"]


@pytest.mark.parametrize("filter", FILTERS)
def test_an_archive_goes_after_the_delay_in_the_second_pass(filter: str, store: Store, tmp_path: Path) -> None:
    with store.open(archive_gc_filter=filter) as app:
        old, new = superseded(app, tmp_path, "ws1")
        first = app.archives.gc_run()
        assert (first.marked, first.deleted, first.waiting) == (1, 0, 0)
        assert (first.counts.units, first.counts.needed, first.counts.orphans, first.counts.unknown) == (2, 1, 1, 0)
        let_pass(store, DELAY_S - 60)
        early = app.archives.gc_run()
        assert (early.marked, early.deleted, early.waiting) == (0, 0, 1)
        assert units(app) == {f"ws1/{old}", f"ws1/{new}"}
        let_pass(store, 120)
        late = app.archives.gc_run()
        assert (late.deleted, late.objects, late.claimed, late.ok) == (1, 2, 1, True)
        assert late.bytes > 0
        assert units(app) == {f"ws1/{new}"}
        assert marks(store) == {}
        app.archives.restore("ws1")
        assert (tmp_path / "volumes" / "ws1" / "file").read_text() == "other"


def test_one_pass_is_not_enough_whatever_the_delay(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        old, _ = superseded(app, tmp_path, "ws1")
        assert app.archives.gc_run(0).deleted == 0
        assert f"ws1/{old}" in units(app)
        assert app.archives.gc_run(0).deleted == 1


def test_a_dry_run_and_a_plan_change_nothing(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        old, _ = superseded(app, tmp_path, "ws1")
        assert app.archives.gc_plan().to_mark == 1
        assert app.archives.gc_run(dry_run=True).dry_run
        assert marks(store) == {}
        app.archives.gc_run(0)
        plan = app.archives.gc_plan(0)
        assert (plan.to_delete, plan.to_mark, plan.sample) == (1, 0, (f"ws1/{old}/",))
        assert app.objects is not None
        assert plan.delete_bytes == sum([len(app.objects.get(key)) for key in keys_of(app, "ws1", old)])
        assert f"ws1/{old}/" in plan.describe()
        report = app.archives.gc_run(0, True)
        assert (report.deleted, report.number) == (1, 0)
        assert f"ws1/{old}" in units(app)
        assert select(store, "SELECT pass FROM archive_gc") == [(1,)]


def test_both_keys_of_a_needed_archive_stay(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        op = cold(app, tmp_path, "ws1")
        before = keys_of(app, "ws1", op)
        assert [key.rpartition("/")[2] for key in before][-1] == "home.meta"
        for _ in range(4):
            app.archives.gc_run()
            let_pass(store, DELAY_S)
        assert keys_of(app, "ws1", op) == before


def test_an_archive_on_its_way_and_one_of_a_workspace_in_error_stay(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        failed = cold(app, tmp_path, "failed")
        warm(app, tmp_path, "busy")
        change(store, "UPDATE workspace SET status = 'ERROR' WHERE id = 'failed'")
        change(store, "UPDATE workspace SET operation = 'ARCHIVING', op_id = 'onitsway' WHERE id = 'busy'")
        put_unit(app, "busy", "onitsway", known_in=store)
        for _ in range(4):
            assert app.archives.gc_run().counts.orphans == 0
            let_pass(store, DELAY_S)
        assert units(app) == {f"failed/{failed}", "busy/onitsway"}


def test_the_marker_goes_before_the_data(tmp_path: Path) -> None:
    store = local(tmp_path)
    with store.open() as app, store.open() as other:
        superseded(app, tmp_path, "ws1")
        app.archives.gc_run(0)
        deleted: list[list[str]] = []

        class Watching(RefusingDeletes):
            def delete_many(self, keys: Any) -> None:
                deleted.append([key.rpartition("/")[2] for key in keys])
                super().delete_many(keys)

        on(other, Watching(other.objects, lambda key: False, Unavailable("no"))).gc_run(0)
        assert deleted[0] == ["home.meta"]
        assert len(deleted[1]) == 1
        assert deleted[1][0].startswith("home-")


def test_keys_that_do_not_parse_are_never_touched(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        old, _ = superseded(app, tmp_path, "ws1")
        assert app.objects is not None
        base = "tenants/default/archives"
        foreign = [
            f"{base}/notes.txt",
            f"{base}/ws1/notes.txt",
            f"{base}/ws1/{old}/notes.txt",
            f"{base}/ws1/{old}/home.tar",
            f"{base}/ws1/{old}/home-xyz.tar.zst",
            f"{base}/ws1/{old}/deeper/home.meta",
            f"{base}/gone/{old}/home.metadata",
            "tenants/default/other/ws1/op/home.meta",
            "tenants/other/archives/ws1/op/home.meta",
            f"archives/ws1/{old}/home.meta",
        ]
        for key in foreign:
            app.objects.put(key, b"mine")
        assert app.archives.gc_run(0).counts.foreign == 7
        assert app.archives.gc_run(0).deleted == 1
        let_pass(store, 10 * DELAY_S)
        app.archives.gc_run(0)
        assert [key for key in foreign if app.objects.head(key) is None] == []
        assert keys_of(app, "ws1", old) == sorted(key for key in foreign if f"{base}/ws1/{old}/" in key)


def test_ids_that_begin_or_equal_each_other_are_kept_apart(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        kept = {f"{name}/{cold(app, tmp_path, name)}" for name in ("a", "a-b", "a.b", "ab", "a0", "b")}
        op = next(unit for unit in kept if unit.startswith("a/")).partition("/")[2]
        # The op_id of one workspace as another's, a part of it, more than it, and as the id of a workspace.
        orphans = [("b", op), ("a", op[:16]), ("a", op + "0"), ("a", op + "-x"), ("a", "a"), ("a-b", op), (op, "a")]
        for workspace, op_id in orphans:
            put_unit(app, workspace, op_id, known_in=store)
        first = app.archives.gc_run(0)
        assert (first.counts.needed, first.counts.orphans, first.counts.missing) == (6, 7, 0)
        assert app.archives.gc_run(0).deleted == 7
        assert units(app) == kept


@pytest.mark.parametrize("place", [0, 1, 2, 99], ids=["first", "within", "between", "last"])
@pytest.mark.parametrize("filter", FILTERS)
def test_an_archive_committed_while_keys_are_listed_is_safe(
    filter: str, place: int, store: Store, tmp_path: Path
) -> None:
    with store.open(archive_gc_filter=filter) as app:
        for name in ("a", "z"):
            cold(app, tmp_path, name)
        warm(app, tmp_path, "m")
        # It was nobody's in an earlier pass, and is about to be replaced in the middle of this one.
        app.archives.archive("m")
        app.archives.delete("m")
        app.archives.gc_run(0)
        assert len(marks(store)) == 1
        with store.open(archive_gc_filter=filter) as other:
            undelete = lambda: app.archives.undelete("m")  # noqa: E731
            report = on(other, InTheMiddle(other.objects, place, undelete)).gc_run(0)
        assert (report.deleted, report.counts.orphans, report.marked) == (0, 0, 0)
        app.archives.restore("m")
        with store.open(archive_gc_filter=filter) as other:
            report = on(other, InTheMiddle(other.objects, place, lambda: app.archives.archive("m"))).gc_run(0)
        assert report.deleted == 0
        app.archives.restore("m")
        assert (tmp_path / "volumes" / "m" / "file").read_text() == "content"


def test_an_error_in_the_middle_of_a_listing_changes_no_marks(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        old, _ = superseded(app, tmp_path, "ws1")
        other, _ = superseded(app, tmp_path, "ws2")
        app.archives.gc_run()
        before = marks(store)
        assert set(before) == {f"ws1/{old}/", f"ws2/{other}/"}
        put_unit(app, "a", "new", known_in=store)
        let_pass(store, 2 * DELAY_S)
        before = marks(store)

        def fail() -> None:
            raise Unavailable("page 2 did not come")

        for place in range(5):
            with store.open() as failing, pytest.raises(Unavailable, match="page 2"):
                on(failing, InTheMiddle(failing.objects, place, fail)).gc_run()
            assert marks(store) == before
        # Its lease was given back.
        assert app.archives.gc_run().deleted == 2


def test_a_unit_that_is_needed_again_loses_its_mark(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        cold(app, tmp_path, "ws1")
        app.archives.delete("ws1")
        assert app.archives.gc_run().marked == 1
        app.archives.undelete("ws1")
        assert marks(store) == {} and app.archives.gc_run().marked == 0
        app.archives.delete("ws1")
        # The time before does not count.
        let_pass(store, DELAY_S - 60)
        assert app.archives.gc_run().deleted == 0
        let_pass(store, DELAY_S + 60)
        assert app.archives.gc_run().deleted == 1


def test_a_workspace_that_was_deleted_again_gets_the_whole_delay_again(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        op = cold(app, tmp_path, "ws1")
        app.archives.delete("ws1")
        app.archives.gc_run()
        let_pass(store, 2 * DELAY_S)
        app.archives.undelete("ws1")
        app.archives.delete("ws1")
        report = app.archives.gc_run()
        assert (report.marked, report.deleted) == (1, 0)
        assert units(app) == {f"ws1/{op}"}
        let_pass(store, DELAY_S + 60)
        assert app.archives.gc_run().deleted == 1


@pytest.mark.parametrize("filter", FILTERS)
def test_undelete_and_the_collector_agree_on_who_was_first(filter: str, store: Store, tmp_path: Path) -> None:
    with store.open(archive_gc_filter=filter) as app:
        for name in ("a", "b"):
            cold(app, tmp_path, name)
            app.archives.delete(name)
        app.archives.gc_run(0)
        left = ["a"]

        def undelete_after_the_snapshot(stage: str, count: int) -> None:
            if stage == "looking" and left:
                app.archives.undelete(left.pop())

        report = app.archives.gc_run(0, progress=undelete_after_the_snapshot)
        assert (report.refused, report.deleted) == (1, 1)
        assert app.archives.restore("a").status == "WARM"
        with pytest.raises(Expired):
            app.archives.undelete("b")


def test_an_archive_that_is_adopted_before_the_claim_stays(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        cold(app, tmp_path, "keep")
        op = cold(app, tmp_path, "ws1")
        change(store, "DELETE FROM workspace WHERE id = 'ws1'")
        change(store, "DELETE FROM archive_unit WHERE workspace = 'ws1'")
        assert app.archives.gc_run(0, force=True).counts.unknown == 1

        def adopt_after_the_snapshot(stage: str, count: int) -> None:
            if stage == "looking":
                app.archives.adopt("ws1", owner_id="ann", volume=tmp_path / "new", op_id=op)

        report = app.archives.gc_run(0, force=True, progress=adopt_after_the_snapshot)
        assert (report.refused, report.deleted) == (1, 0)
        app.archives.restore("ws1")
        assert (tmp_path / "new" / "file").read_text() == "content"


def test_what_a_late_writer_brings_back_goes_again(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        old, new = superseded(app, tmp_path, "ws1")
        app.archives.gc_run(0)
        app.archives.gc_run(0)
        put_unit(app, "ws1", old)
        app.archives.gc_run(0)
        assert app.archives.gc_run(0).deleted == 1
        assert units(app) == {f"ws1/{new}"}


def test_what_cannot_be_deleted_does_not_keep_the_others_and_is_tried_again(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        stuck, _ = superseded(app, tmp_path, "a")
        superseded(app, tmp_path, "b")
        app.archives.gc_run(0)
        with store.open() as other:
            held = RefusingDeletes(other.objects, lambda key: f"/{stuck}/home-" in key, Unavailable("held by law"))
            report = on(other, held).gc_run(0)
        assert (report.deleted, report.failed, report.claimed, report.ok) == (1, 1, 2, False)
        assert "held by law" in str(report.problem)
        assert [key.rpartition("/")[2][:5] for key in keys_of(app, "a", stuck)] == ["home-"]
        assert set(marks(store)) == {f"a/{stuck}/"}
        report = app.archives.gc_run(0)
        assert (report.deleted, report.ok) == (1, True)
        assert keys_of(app, "a", stuck) == []


def test_a_delay_that_is_none_is_refused(tmp_path: Path) -> None:
    with local(tmp_path).open() as app:
        with pytest.raises(Invalid):
            app.archives.gc_run(-1)
        with pytest.raises(Invalid):
            app.archives.gc_plan(float("nan"))
        with pytest.raises(Invalid):
            app.archives.gc_run(float("inf"))
        # None of them has begun a pass, which others would wait for.
        assert app.archives.gc_run(0).number == 1


def test_a_stop_ends_the_run_and_gives_the_lease_back(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        superseded(app, tmp_path, "ws1")
        report = app.archives.gc_run(stop=lambda: True)
        assert (report.stopped, report.marked) == (True, 0)
        # Also later: it is asked between any two steps, and what was marked stays so.
        asked = iter([False, True])
        report = app.archives.gc_run(stop=lambda: next(asked))
        assert (report.stopped, report.marked) == (True, 1)
        assert app.archives.gc_run(0).deleted == 1


@pytest.mark.parametrize("filter", FILTERS)
def test_an_archive_whose_objects_were_removed_by_hand_is_claimed_too(
    filter: str, store: Store, tmp_path: Path
) -> None:
    """Its row keeps its blocks: it must not stay for ever because there is nothing of it to list."""
    with store.open(archive_gc_filter=filter, archive_format="blocks") as app:
        old, new = superseded(app, tmp_path, "ws1")
        assert app.objects is not None
        app.objects.delete_many(keys_of(app, "ws1", old))
        first = app.archives.gc_run()
        assert (first.marked, first.deleted) == (1, 0)
        let_pass(store, DELAY_S - 60)
        assert app.archives.gc_run().waiting == 1
        let_pass(store, 120)
        late = app.archives.gc_run()
        assert (late.claimed, late.deleted, late.objects, late.ok) == (1, 1, 0, True)
        assert unit_states(store, "ws1") == {old: "claimed", new: "kept"}
        assert marks(store) == {}
        let_pass(store, DELAY_S)
        assert app.archives.gc_run().marked == 0
        app.archives.restore("ws1")
        assert (tmp_path / "volumes" / "ws1" / "file").read_text() == "other"


def test_an_archive_that_is_needed_and_gone_is_not_claimed(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        op = cold(app, tmp_path, "ws1")
        assert app.objects is not None
        app.objects.delete_many(keys_of(app, "ws1", op))
        for _ in range(3):
            app.archives.gc_run()
            let_pass(store, DELAY_S + 1)
        assert unit_states(store, "ws1") == {op: "kept"}
        assert marks(store) == {}


def test_another_tenants_archives_are_another_collection(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        superseded(app, tmp_path, "ws1")
        cold(app, tmp_path, "ws2")
        shop = app.tenant("shop").archives
        root = tmp_path / "shop"
        root.mkdir()
        shop.create("ws1", owner_id="eve", volume=root)
        kept = shop.archive("ws1")
        for _ in range(3):
            app.archives.gc_run(0)
        assert shop.unit("ws1") == kept
        assert shop.gc_plan().counts.units == 1
        shop.restore("ws1")


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            pass

    store = local(tmp_path)
    with store.open() as app:
        superseded(app, tmp_path, "ws1")
        with monkeypatch.context() as patched:
            patched.setattr("tempfile.SpooledTemporaryFile", lambda *arguments, **more: Full())
            with pytest.raises(Unavailable, match="No space left"):
                app.archives.gc_run()
        assert marks(store) == {}
        assert app.archives.gc_run().marked == 1


@pytest.mark.parametrize("filtered", [False, True])
def test_archives_that_the_catalog_never_heard_of_are_left_alone(store: Store, tmp_path: Path, filtered: bool) -> None:
    """They are another store's, wait to be adopted, or are newer than the backup that the catalog comes from."""
    with store.open(archive_gc_filter="bloom" if filtered else "merge") as app:
        old, new = superseded(app, tmp_path, "ws1")
        for number in range(5):
            put_unit(app, "ws1", f"op{number}")
            put_unit(app, f"other{number}", "op")
        for _ in range(3):
            report = app.archives.gc_run(0)
            assert (report.counts.unknown, report.problem) == (10, None)
        assert len(units(app)) == 11 and f"ws1/{old}" not in units(app)
        assert marks(store) == {}
        app.archives.gc_run(0, force=True)
        assert app.archives.gc_run(0, force=True).deleted == 10
        assert units(app) == {f"ws1/{new}"}
