"""Who may collect archives, and when nobody should: leases, clocks that are off, brakes, and how long orphans live."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analemma import App, Archives
from analemma.archives import collecting_survey
from analemma.archives.collecting_reports import ArchiveBrakes, ArchiveCounts, judge
from analemma.catalog.archive_marks import ArchiveMarks, ArchivePass
from analemma.catalog.collecting import LeaseLost
from analemma.catalog.workspaces import AppearedMeanwhile, SqlWorkspaces
from analemma.clock import SystemClock
from analemma.errors import Conflict, Denied, Unavailable
from tests.api.archives.collections import (
    DELAY_S,
    HOUR_S,
    InTheMiddle,
    RefusingDeletes,
    after,
    cold,
    keys_of,
    marks,
    on,
    put_unit,
    superseded,
    units,
)
from tests.api.gc.collections import later, script
from tests.stores import Store, local


class SteppedClock(SystemClock):
    """Time that passes when told to."""

    passed_s = 0.0

    def monotonic(self) -> float:
        return self.passed_s


def begin(app: App, seconds: float = 0, lease_s: float = 300) -> ArchivePass:
    """Take the lease as another process would."""
    catalog = ArchiveMarks(SqlWorkspaces(app.catalog.engine, clock=later(seconds)))
    return catalog.begin(app.default.id, "another", lease_s, store_id=app.catalog.store_id())


def test_two_do_not_collect_at_a_time(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        superseded(app, tmp_path, "ws1")
        begun = begin(app)
        with pytest.raises(Conflict, match="another is collecting"):
            app.archives.gc_run()
        # A plan needs no lease.
        assert app.archives.gc_plan().to_mark == 1
        begun.finish(None)
        assert app.archives.gc_run().marked == 1


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
    with store.open() as app:
        superseded(app, tmp_path, "ws1")
        begin(app)
        with pytest.raises(Conflict):
            after(app, 200).gc_run()
        assert after(app, 301).gc_run().marked == 1


@pytest.mark.parametrize("step", ["renew", "mark", "clear", "claim"])
def test_whoever_lost_the_lease_writes_nothing(step: str, store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        old, _ = superseded(app, tmp_path, "ws1")
        app.archives.gc_run(0)
        before = marks(app)
        slow = begin(app)
        begin(app, 400).finish(None)
        writes: dict[str, Callable[[], object]] = {
            "renew": slow.renew,
            "mark": lambda: slow.mark(["ws1/new/"]),
            "clear": lambda: slow.clear([f"ws1/{old}/"]),
            "claim": lambda: slow.claim([f"ws1/{old}/"], 0),
        }
        with pytest.raises(LeaseLost):
            writes[step]()
        slow.finish(77)
        assert marks(app) == before
        unit = SqlWorkspaces(app.catalog.engine).unit(app.default.id, "ws1", old)
        assert unit is not None and unit.state == "kept"
        assert ArchiveMarks(SqlWorkspaces(app.catalog.engine)).lease(app.default.id).needed == 1


@pytest.mark.parametrize("when", ["before the markers", "before the data"])
def test_a_lease_lost_in_the_middle_of_deleting_is_finished_by_the_other(
    when: str, store: Store, tmp_path: Path
) -> None:
    with store.open() as app:
        _, new = superseded(app, tmp_path, "ws1")
        app.archives.gc_run(0)
        others: list[Any] = []

        class Overtaken(RefusingDeletes):
            def delete_many(self, keys: Any) -> None:
                chosen = list(keys)
                if chosen and not others and chosen[0].endswith("home.meta") == (when == "before the markers"):
                    others.append(after(app, 400).gc_run(0))
                super().delete_many(chosen)

        report = on(app, Overtaken(app.objects, lambda key: False, Unavailable("no"))).gc_run(0)
        assert report.kind == "conflict"
        assert "lost its lease" in str(report.problem)
        assert others[0].deleted == 1
        assert units(app) == {f"ws1/{new}"}
        assert marks(app) == {}
        app.archives.restore("ws1")


@pytest.mark.parametrize("off_s", [-2 * DELAY_S, 2 * DELAY_S])
def test_a_machines_own_clock_does_not_count(off_s: int, store: Store, tmp_path: Path) -> None:
    class Wrong:
        def now_us(self) -> int:
            return app.archives._parts.clock.now_us() + off_s * 1_000_000

        def monotonic(self) -> float:
            return app.archives._parts.clock.monotonic()

        def sleep(self, seconds: float) -> None:
            app.archives._parts.clock.sleep(seconds)

    with store.open() as app:
        superseded(app, tmp_path, "ws1")
        wrong = type(app.archives)(replace(app.archives._parts, clock=Wrong()))
        assert wrong.gc_run().marked == 1
        assert (app.archives.gc_run().waiting, wrong.gc_run().waiting) == (1, 1)
        assert after(app, DELAY_S + 60).gc_run().deleted == 1


def test_a_database_clock_that_jumps_loses_nothing_and_keeps_nothing_for_ever(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        old, new = superseded(app, tmp_path, "ws1")
        begin(app, 40 * 86_400)
        # Two weeks ahead, then back: its marks and its lease are from a time that has not come.
        assert after(app, 2 * DELAY_S).gc_run().marked == 1
        ahead = marks(app)
        report = app.archives.gc_run()
        assert (report.marked, report.deleted) == (1, 0)
        assert marks(app)[f"ws1/{old}/"] < ahead[f"ws1/{old}/"]
        assert after(app, DELAY_S + 60).gc_run().deleted == 1
        assert units(app) == {f"ws1/{new}"}
        assert app.archives.gc_is_due(HOUR_S)


def test_every_orphan_is_gone_within_the_delay_and_two_intervals(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        kept = {f"keep/{cold(app, tmp_path, 'keep')}"}
        interval_s, born_s = DELAY_S // 4, {}
        for step in range(12):
            now_s = step * interval_s
            if step < 5:
                put_unit(app, "keep", f"orphan{step}")
                born_s[f"keep/orphan{step}"] = now_s - interval_s + 1  # Just after the pass before.
            after(app, now_s).gc_run()
            alive = units(app) - kept
            assert [unit for unit in alive if now_s > born_s[unit] + DELAY_S + 2 * interval_s] == []
        assert units(app) == kept


def test_a_worker_is_told_when_it_is_due(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        assert app.archives.gc_is_due(HOUR_S)
        app.archives.gc_run()
        assert not app.archives.gc_is_due(HOUR_S)
        assert after(app, HOUR_S + 1).gc_is_due(HOUR_S)


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
        assert marks(app) == {}
        assert units(app) == before
        assert app.archives.gc_run(0, force=True).marked == 3


def test_a_database_that_was_emptied_collects_nothing(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        op = cold(app, tmp_path, "ws1")
        app.archives.gc_run(0)
        script(app, "DELETE FROM workspace; DELETE FROM archive_unit")
        for _ in range(3):
            assert app.archives.gc_run(0).kind == "limit"
        assert units(app) == {f"ws1/{op}"}


def test_another_bucket_is_noticed(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        for number in range(5):
            cold(app, tmp_path, f"ws{number}")
        superseded(app, tmp_path, "last")
        app.archives.gc_run(0)
        before = marks(app)
        empty = InTheMiddle(app.objects, 99, lambda: None)
        empty.list = lambda prefix="": iter(())  # type: ignore[method-assign]
        report = on(app, empty, 60).gc_run(0)
        assert (report.kind, report.counts.missing) == ("limit", 6)
        assert "another bucket" in str(report.problem)
        assert marks(app) == before


def test_another_bucket_is_noticed_by_a_filter_too(store: Store, tmp_path: Path) -> None:
    with store.open(archive_gc_filter="bloom") as app:
        for number in range(6):
            cold(app, tmp_path, f"ws{number}")
        whole = after(app, 60).gc_run(0)
        assert (whole.counts.kept, whole.counts.missing, whole.ok) == (6, 0, True)
        assert app.objects is not None
        empty = InTheMiddle(app.objects, 99, lambda: None)
        empty.list = lambda prefix="": iter(())  # type: ignore[method-assign]
        report = on(app, empty, 60).gc_run(0)
        assert (report.kind, report.counts.kept, report.counts.missing) == ("limit", 6, 6)
        assert "another bucket" in str(report.problem)


def test_how_many_are_missing_is_estimated_from_some(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting_survey, "LOOKED_FOR", 4)
    with store.open(archive_gc_filter="bloom") as app:
        ops = {f"ws{number}": cold(app, tmp_path, f"ws{number}") for number in range(12)}
        counts = after(app, 60).gc_plan().counts
        assert (counts.kept, counts.missing) == (12, 0)
        assert app.objects is not None
        for name, op in ops.items():
            app.objects.delete_many(keys_of(app, name, op))
        counts = after(app, 60).gc_plan().counts
        assert (counts.kept, counts.missing) == (12, 12)


def test_a_long_look_keeps_the_lease(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting_survey, "TELL_EVERY", 1)
    with store.open() as app:
        for number in range(4):
            superseded(app, tmp_path, f"ws{number}")
        clock = SteppedClock()
        renewed: list[str] = []
        renew = ArchivePass.renew

        def note(begun: ArchivePass) -> None:
            renewed.append(stage[0])
            renew(begun)

        stage = [""]

        def tell(name: str, count: int) -> None:
            stage[0] = name
            clock.passed_s += 200

        monkeypatch.setattr(ArchivePass, "renew", note)
        report = Archives(replace(app.archives._parts, clock=clock)).gc_run(progress=tell)
        assert report.ok
        assert renewed.count("looking") >= 4


def test_another_store_is_noticed(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        superseded(app, tmp_path, "ws1")
        archives = app.archives
        with pytest.raises(Unavailable, match="this is store"):
            type(archives)(replace(archives._parts, store_id="other")).gc_run()
        assert archives.gc_run().marked == 1


def test_a_missing_archive_is_told(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        cold(app, tmp_path, "a")
        op = cold(app, tmp_path, "b")
        assert app.objects is not None
        app.objects.delete_many(keys_of(app, "b", op))
        report = after(app, 60).gc_run()
        assert (report.counts.missing, report.ok) == (1, True)
        assert "not in the object store" in report.describe()


@pytest.mark.parametrize(
    ("counts", "last", "says"),
    [
        (ArchiveCounts(units=10, orphans=10, unknown=10), None, "heard of none"),
        (ArchiveCounts(units=10, orphans=10, unknown=9), None, None),
        (ArchiveCounts(units=10, orphans=9, unknown=9, protected=1, kept=1), None, None),
        (ArchiveCounts(units=40, orphans=21, unknown=21, protected=19), None, None),
        (ArchiveCounts(units=0, protected=4, kept=4, missing=4), None, "another bucket"),
        (ArchiveCounts(units=0, protected=3, kept=3, missing=3), None, None),
        (ArchiveCounts(units=2000, orphans=1900, protected=100), None, "1900 of 2000 archives are nobody's"),
        (ArchiveCounts(units=2000, orphans=1800, protected=200), None, None),
        (ArchiveCounts(units=2000, orphans=900, protected=900), 2000, "only 900"),
        (ArchiveCounts(units=2000, orphans=900, protected=1100), 2000, None),
    ],
    ids=range(10),
)
def test_brakes(counts: ArchiveCounts, last: int | None, says: str | None) -> None:
    reason = judge(counts, last_needed=last, limits=ArchiveBrakes(orphans=0.9))
    assert (reason is None) == (says is None)
    assert says is None or says in str(reason)


def test_a_claim_that_meets_a_workspace_made_meanwhile_changes_nothing(store: Store, tmp_path: Path) -> None:
    """Without a row there was nothing to lock when the claim looked."""
    with store.open() as app:
        op = cold(app, tmp_path, "ws1")
        rows, tenant = SqlWorkspaces(app.catalog.engine), app.default.id

        class Blind:
            """Sees the workspace from the second look on."""

            def __init__(self, tx: Any) -> None:
                self._tx = tx
                self._looked = False

            def one(self, name: str, **parameters: Any) -> Any:
                if name == "hold_workspace" and not self._looked:
                    self._looked = True
                    return None
                return self._tx.one(name, **parameters)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._tx, name)

        with pytest.raises(AppearedMeanwhile):
            app.catalog.engine.write(lambda tx: rows.claim_in(Blind(tx), tenant, "ws1", op))  # type: ignore[arg-type]
        unit = rows.unit(tenant, "ws1", op)
        assert unit is not None and unit.state == "kept"


def test_a_local_store_without_objects_has_nothing_to_collect(tmp_path: Path) -> None:
    with local(tmp_path).open() as app:
        report = app.archives.gc_run()
        assert (report.ok, report.counts.units) == (True, 0)
