"""Who may collect archives, and when nobody should: leases, clocks that are off, brakes, and how long orphans live."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analemma import App
from analemma.errors import Conflict, Denied, Unavailable
from analemma.testing import failpoints
from tests.api.archives.collections import (
    DELAY_S,
    FOLDER,
    HOUR_S,
    Empty,
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
)
from tests.raw_rows import change, select
from tests.stores import Store, local


def stalled(app: App, point: str = "archive_gc.after_lease") -> AbstractContextManager[failpoints.Paused[Any]]:
    """Another who collects, and stands still."""
    return failpoints.paused(point, lambda: app.archives.gc_run(0))


def test_two_do_not_collect_at_a_time(store: Store, tmp_path: Path) -> None:
    with store.open() as app, store.open() as other:
        superseded(app, tmp_path, "ws1")
        with stalled(other) as held:
            with pytest.raises(Conflict, match="is collecting"):
                app.archives.gc_run()
            # A plan needs no lease.
            assert app.archives.gc_plan().to_mark == 1
            assert held.go_on().marked == 1
        assert app.archives.gc_run().waiting == 1


def test_of_many_that_begin_together_one_collects(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        _, new = superseded(app, tmp_path, "ws1")
        app.archives.gc_run(0)
        said: list[Any] = []
        gate = threading.Barrier(4)

        def run() -> None:
            gate.wait()
            try:
                said.append(app.archives.gc_run(0).deleted)
            except Conflict:
                said.append("refused")

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(each for each in said if each != "refused") == 1
        assert units(app) == {f"ws1/{new}"}


def test_a_collector_that_died_is_followed_by_another_after_its_lease(store: Store, tmp_path: Path) -> None:
    with store.open() as app, store.open() as other:
        superseded(app, tmp_path, "ws1")
        with stalled(other):
            let_pass(store, 200)
            with pytest.raises(Conflict):
                app.archives.gc_run()
            let_pass(store, 101)
            assert app.archives.gc_run().marked == 1


@pytest.mark.parametrize(
    "point", ["archive_gc.after_list", "archive_gc.after_look", "archive_gc.after_mark", "archive_gc.after_claim"]
)
def test_whoever_lost_the_lease_writes_nothing(point: str, store: Store, tmp_path: Path) -> None:
    with store.open() as app, store.open() as other:
        old, new = superseded(app, tmp_path, "ws1")
        if point != "archive_gc.after_mark":
            app.archives.gc_run(0)
        # There is something to mark, something to clear, and something to claim.
        cold(app, tmp_path, "ws2")
        app.archives.delete("ws2")
        with stalled(other, point) as held:
            let_pass(store, 301)
            # Another has it now, and has done nothing yet: only who it was that wrote is of interest.
            with store.open() as third, stalled(third):
                before, states = marks(store), unit_states(store, "ws1")
                report = held.go_on()
                assert report.kind == "conflict" and "lost its lease" in str(report.problem)
                assert (marks(store), unit_states(store, "ws1")) == (before, states)
                # What was claimed is nobody's: anybody may delete it.
                kept = {f"ws1/{new}"} if point == "archive_gc.after_claim" else {f"ws1/{new}", f"ws1/{old}"}
                assert units(app) >= kept


def test_whoever_lost_the_lease_does_not_renew_that_of_the_other(store: Store, tmp_path: Path) -> None:
    with store.open(gc_lease_s=1) as app, store.open() as other:
        superseded(app, tmp_path, "ws1")
        with stalled(app, "archive_gc.after_list") as slow:
            let_pass(store, 2)
            with stalled(other) as held:
                before = select(store, "SELECT pass, lease_until FROM archive_gc")
                time.sleep(0.5)  # So long that the first has to renew its own.
                report = slow.go_on()
                assert "lost its lease" in str(report.problem)
                assert select(store, "SELECT pass, lease_until FROM archive_gc") == before
                assert held.go_on().ok


class Many:
    """An object store with twelve thousand archives of which no catalog ever heard."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def list(self, prefix: str = "") -> Iterator[Any]:
        found = list(self._inner.list(prefix))
        foreign = (replace(found[0], key=f"{FOLDER}/foreign/{number:05}/home.meta") for number in range(12_000))
        yield from sorted([*found, *foreign], key=lambda info: str(info.key))


def test_a_long_look_keeps_the_lease(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard: whoever lists and compares for longer than a lease says in between that he is alive."""
    with store.open() as app, store.open() as other:
        superseded(app, tmp_path, "ws1")
        passed_s, machine, stages = [0], time.monotonic, []

        def take_long(stage: str, count: int) -> None:
            stages.append(stage)
            passed_s[0] += 200
            change(store, "UPDATE archive_gc SET lease_until = lease_until - ?", [200_000_000])

        def collect_too() -> None:
            with pytest.raises(Conflict, match="is collecting"):
                app.archives.gc_run()

        monkeypatch.setattr(time, "monotonic", lambda: machine() + passed_s[0])
        with failpoints.call("archive_gc.after_look", collect_too):
            report = on(other, Many(other.objects)).gc_run(progress=take_long)
        # Each of them alone would have been too long for one lease.
        assert [stages.count(stage) for stage in ("listing", "looking")] == [2, 3]
        assert (report.problem, report.marked) == (None, 1)


@pytest.mark.parametrize("off_s", [-2 * DELAY_S, 2 * DELAY_S])
def test_a_machines_own_clock_does_not_count(
    off_s: int, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.open() as app, store.open() as other:
        old, new = superseded(app, tmp_path, "ws1")
        machine = time.time_ns

        def wrong() -> int:
            return machine() + off_s * 10**9

        monkeypatch.setattr(time, "time_ns", wrong)
        with stalled(other, "archive_gc.after_look") as held:
            monkeypatch.setattr(time, "time_ns", machine)
            with pytest.raises(Conflict, match="is collecting"):
                app.archives.gc_run()
            assert held.go_on().marked == 1
        assert app.archives.gc_run().waiting == 1
        monkeypatch.setattr(time, "time_ns", wrong)
        assert not app.archives.gc_is_due(HOUR_S)
        assert (other.archives.gc_run().waiting, units(app)) == (1, {f"ws1/{old}", f"ws1/{new}"})
        let_pass(store, DELAY_S + 60)
        assert other.archives.gc_run().deleted == 1


def test_another_database_behind_the_same_address_is_not_touched(store: Store, tmp_path: Path) -> None:
    """Guard: a pass begins only in the store that the collector was made for."""
    with store.open() as app:
        superseded(app, tmp_path, "ws1")
        assert app.archives.gc_run(0).marked == 1
        ((right,),) = select(store, "SELECT id FROM store")
        before = select(store, "SELECT * FROM archive_gc"), marks(store), units(app)
        change(store, "UPDATE store SET id = 'another'")
        with pytest.raises(Unavailable, match="this is store another"):
            app.archives.gc_run(0)
        assert (select(store, "SELECT * FROM archive_gc"), marks(store), units(app)) == before
        change(store, "UPDATE store SET id = ?", [right])
        assert app.archives.gc_run(0).deleted == 1


@pytest.mark.parametrize("when", ["before the markers", "before the data"])
def test_a_lease_lost_in_the_middle_of_deleting_is_finished_by_the_other(
    when: str, store: Store, tmp_path: Path
) -> None:
    with store.open() as app, store.open() as other:
        _, new = superseded(app, tmp_path, "ws1")
        app.archives.gc_run(0)
        others: list[Any] = []

        class Overtaken(RefusingDeletes):
            def delete_many(self, keys: Any) -> None:
                chosen = list(keys)
                if chosen and not others and chosen[0].endswith("home.meta") == (when == "before the markers"):
                    let_pass(store, 400)
                    others.append(app.archives.gc_run(0))
                super().delete_many(chosen)

        report = on(other, Overtaken(other.objects, lambda key: False, Unavailable("no"))).gc_run(0)
        assert report.kind == "conflict"
        assert "lost its lease" in str(report.problem)
        assert others[0].deleted == 1
        assert units(app) == {f"ws1/{new}"}
        assert marks(store) == {}
        app.archives.restore("ws1")


def test_a_database_clock_that_jumps_loses_nothing_and_keeps_nothing_for_ever(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        old, new = superseded(app, tmp_path, "ws1")
        assert app.archives.gc_run().marked == 1
        # Two weeks ahead, then back: its marks and its lease are from a time that has not come.
        change(store, "UPDATE archive_gc SET holder = 'another'")
        let_pass(store, -2 * DELAY_S)
        ahead = marks(store)
        report = app.archives.gc_run()
        assert (report.marked, report.deleted) == (1, 0)
        assert marks(store)[f"ws1/{old}/"] < ahead[f"ws1/{old}/"]
        let_pass(store, DELAY_S + 60)
        assert app.archives.gc_run().deleted == 1
        assert units(app) == {f"ws1/{new}"}


def test_every_orphan_is_gone_within_the_delay_and_two_intervals(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        kept = {f"keep/{cold(app, tmp_path, 'keep')}"}
        interval_s, born_s = DELAY_S // 4, {}
        for step in range(12):
            now_s = step * interval_s
            if step < 5:
                put_unit(app, "keep", f"orphan{step}", known_in=store)
                born_s[f"keep/orphan{step}"] = now_s - interval_s + 1  # Just after the pass before.
            app.archives.gc_run()
            let_pass(store, interval_s)
            alive = units(app) - kept
            assert [unit for unit in alive if now_s > born_s[unit] + DELAY_S + 2 * interval_s] == []
        assert units(app) == kept


def test_a_worker_is_told_when_it_is_due(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        assert app.archives.gc_is_due(HOUR_S)
        app.archives.gc_run()
        assert not app.archives.gc_is_due(HOUR_S)
        let_pass(store, HOUR_S + 1)
        assert app.archives.gc_is_due(HOUR_S)


def test_a_database_that_knows_of_nothing_collects_nothing(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        cold(app, tmp_path, "ws1")
        superseded(app, tmp_path, "ws2")
        before = units(app)
    other = Store(str(tmp_path / "other-store"), store.objects or f"{store.url}/objects")
    with other.open() as app:
        (tmp_path / "new").mkdir()
        app.archives.create("mine", owner_id="ann", volume=tmp_path / "new")
        assert units(app) == before
        with pytest.raises(Denied, match="another"):
            app.archives.gc_run(0, force=True)
        if store.objects is None:
            with pytest.raises(Denied, match="own directory of another store"):
                app.adopt_objects()
            return
        app.adopt_objects()
        assert "heard of none" in str(app.archives.gc_plan(0).problem)
        for _ in range(3):
            report = app.archives.gc_run(0)
            assert (report.kind, report.marked, report.deleted) == ("limit", 0, 0)
        assert marks(store) == {}
        assert units(app) == before
        assert app.archives.gc_run(0, force=True).marked == 3


def test_a_database_that_was_emptied_collects_nothing(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        op = cold(app, tmp_path, "ws1")
        app.archives.gc_run(0)
        change(store, "DELETE FROM workspace")
        change(store, "DELETE FROM archive_unit")
        for _ in range(3):
            assert app.archives.gc_run(0).kind == "limit"
        assert units(app) == {f"ws1/{op}"}


@pytest.mark.parametrize("filter", ["merge", "bloom"])
def test_another_bucket_is_noticed(filter: str, store: Store, tmp_path: Path) -> None:
    with store.open(archive_gc_filter=filter) as app, store.open(archive_gc_filter=filter) as other:
        for number in range(5):
            cold(app, tmp_path, f"ws{number}")
        superseded(app, tmp_path, "last")
        let_pass(store, 60)
        whole = app.archives.gc_run(0)
        assert (whole.counts.kept, whole.counts.missing, whole.ok) == (6, 0, True)
        before = marks(store)
        let_pass(store, 60)
        report = on(other, Empty(other.objects)).gc_run(0)
        assert (report.kind, report.counts.missing) == ("limit", 6)
        assert "another bucket" in str(report.problem)
        assert set(marks(store)) == set(before)


def test_a_missing_archive_is_told(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        cold(app, tmp_path, "a")
        op = cold(app, tmp_path, "b")
        assert app.objects is not None
        app.objects.delete_many(keys_of(app, "b", op))
        let_pass(store, 60)
        report = app.archives.gc_run()
        assert (report.counts.missing, report.ok) == (1, True)
        assert "not in the object store" in report.describe()


def test_a_claim_that_meets_a_workspace_made_meanwhile_changes_nothing(store: Store, tmp_path: Path) -> None:
    """Without a row there was nothing to lock when it was seen that the archive is nobody's."""
    with store.open() as app, store.open() as other:
        op = cold(app, tmp_path, "ws1")
        (row,) = select(store, "SELECT * FROM workspace")
        change(store, "DELETE FROM workspace")
        assert app.archives.gc_run(0, force=True).marked == 1
        collect = lambda: other.archives.gc_run(0, force=True)  # noqa: E731
        with failpoints.paused("archive_gc.after_look", collect) as held:
            change(store, f"INSERT INTO workspace VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608
            assert held.go_on().deleted == 0
        assert unit_states(store, "ws1") == {op: "kept"}
        app.archives.restore("ws1")


def test_a_local_store_without_objects_has_nothing_to_collect(tmp_path: Path) -> None:
    with local(tmp_path).open() as app:
        report = app.archives.gc_run()
        assert (report.ok, report.counts.units) == (True, 0)


def test_more_orphans_than_look_right_are_left_alone(store: Store, tmp_path: Path) -> None:
    with store.open(gc_brake_unmarked=0.5, gc_brake_blocks=2) as app:
        cold(app, tmp_path, "keep")
        put_unit(app, "keep", "one", known_in=store)
        assert app.archives.gc_run(0).ok
        for op in ("two", "three"):
            put_unit(app, "keep", op, known_in=store)
        report = app.archives.gc_run(0)
        assert (report.kind, report.deleted) == ("limit", 0)
        assert "3 of 4 archives are nobody's" in str(report.problem)
        app.archives.gc_run(0, force=True)
        assert app.archives.gc_run(0, force=True).deleted == 2


def test_that_far_fewer_are_needed_than_before_stops_it(store: Store, tmp_path: Path) -> None:
    with store.open(gc_brake_blocks=2) as app:
        for number in range(5):
            cold(app, tmp_path, f"ws{number}")
        assert app.archives.gc_run(0).ok
        for number in range(3):
            app.archives.delete(f"ws{number}")
        report = app.archives.gc_run(0)
        assert (report.kind, report.marked) == ("limit", 0) and "only 2" in str(report.problem)
        assert app.archives.gc_run(0, force=True).marked == 3
