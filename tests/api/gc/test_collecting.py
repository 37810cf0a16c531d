"""Plans and runs: what goes, what stays, who may, and what stops them."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import traceback

import pytest

from analemma import BranchKey
from analemma.catalog.collecting import Collecting, LeaseLost
from analemma.catalog.payloads import Lease, LeaseId, LeaseRequest
from analemma.clock import SystemClock
from analemma.errors import Conflict, Expired, Invalid, NotFound, Unavailable
from analemma.gc.reports import GcPlan, GcReport
from analemma.gc.sweeping import LONGEST_S, Sweep
from tests.api.gc.collections import (
    DAY_S,
    PLACE,
    blocks_of,
    expire_all_but_newest,
    later,
    save_versions,
    script,
    text,
)
from tests.stores import Store

KEY = BranchKey("ann", "trip")


def test_two_runs_delete_what_expired_versions_left_and_nothing_else(store: Store) -> None:
    with store.open() as app:
        save_versions(app)
        before = blocks_of(app.default, app)
        expire_all_but_newest(app)
        first = app.gc.run(grace_s=0)
        assert (first.deleted, first.total) == (0, len(before)) and first.doomed == first.total - first.referenced > 0
        second = app.gc.run(grace_s=0)
        assert second.deleted == first.doomed and second.bytes > 0 and second.ok
        assert len(blocks_of(app.default, app)) == second.referenced == first.referenced
        assert app.gc.run(grace_s=0).deleted == 0
        assert app.default.verify(KEY).problems == []
        assert app.kernel.load_latest_state(**PLACE)["n"] == 4


def test_a_run_lets_versions_expire_first_unless_told_not_to(store: Store) -> None:
    with store.open() as app:
        save_versions(app)
        app.kernel.set_retention(**PLACE, keep_last=2)
        assert app.gc.run(grace_s=0, expire=False).expired == 0
        assert app.gc.plan(grace_s=0).tenants[0].to_expire == 3
        assert app.gc.run(grace_s=0).expired == 3
        assert len(app.kernel.history(**PLACE)) == 2


def test_versions_age_by_the_databases_clock(store: Store) -> None:
    # One worker whose own clock is wrong must not let the versions of all others expire.
    with store.open() as app:
        save_versions(app)
        app.kernel.set_retention(**PLACE, keep_newer_than_s=30 * DAY_S)
        assert app.gc.run().expired == 0
        month_later = app.collector(database_clock=later(31 * DAY_S))
        assert month_later.plan().tenants[0].to_expire == month_later.run().expired == 4
        assert len(app.kernel.history(**PLACE)) == 1


def test_blocks_stay_for_the_grace_period(store: Store) -> None:
    with store.open() as app:
        save_versions(app)
        expire_all_but_newest(app)
        doomed = app.gc.run().doomed
        assert app.gc.run().deleted == 0
        assert app.gc.plan().tenants[0].waiting == doomed
        almost, tomorrow = (app.collector(database_clock=later(after)) for after in (DAY_S - 60, DAY_S + 60))
        assert almost.run().deleted == 0
        assert tomorrow.run().deleted == doomed


@pytest.mark.parametrize("grace_s", [-1, float("nan"), float("inf")], ids=str)
def test_a_grace_period_that_is_none_is_refused(store: Store, grace_s: float) -> None:
    with store.open() as app:
        with pytest.raises(Invalid, match="grace period"):
            app.gc.run(grace_s=grace_s)
        with pytest.raises(Invalid, match="grace period"):
            app.gc.plan(grace_s=grace_s)
        assert app.gc.status().runs == ()


def test_a_plan_changes_nothing_and_names_what_a_run_deletes(store: Store) -> None:
    with store.open() as app:
        save_versions(app)
        expire_all_but_newest(app)
        number = app.gc.run(grace_s=0).number
        before = blocks_of(app.default, app)
        plan = app.gc.plan(grace_s=0)
        assert blocks_of(app.default, app) == before and app.gc.status().newest == number
        assert GcPlan.from_json(plan.to_json()) == plan
        assert json.loads(json.dumps(plan.as_dict()))["tenants"][0]["to_delete"] == plan.to_delete
        assert f"{plan.to_delete} blocks would be deleted ({plan.delete_bytes} bytes)" in plan.describe()
        dry = app.gc.run(dry_run=True, grace_s=0)
        report = app.gc.run(grace_s=0)
        assert (dry.deleted, dry.bytes) == (plan.to_delete, plan.delete_bytes) == (report.deleted, report.bytes)
        gone = before - blocks_of(app.default, app)
        assert b"".join(sorted(gone)) == plan.tenants[0].deletions
        assert set(plan.tenants[0].sample) <= {block.hex() for block in gone}


def test_a_run_by_plan_deletes_nothing_that_became_needed_or_that_the_plan_does_not_name(store: Store) -> None:
    with store.open() as app:
        save_versions(app)
        expire_all_but_newest(app)
        app.gc.run(grace_s=0)
        plan = app.gc.plan(grace_s=0)
        app.kernel.save_state_delta({"own": text("own 1")}, **PLACE)  # one of the blocks that the plan would delete
        app.kernel.save_state_delta({"own": text("later")}, **PLACE)
        app.kernel.expire(**PLACE)
        app.gc.run(grace_s=0)
        report = app.gc.run(plan, grace_s=0)
        assert report.deleted < plan.to_delete
        assert app.default.verify(KEY).problems == []
        assert app.gc.run(grace_s=0).deleted > 0
        with pytest.raises(Invalid, match="another store"):
            app.gc.run(GcPlan("0" * 32, 0, 0, (), 0, 0, 0))


def test_a_plan_foresees_what_expiry_would_set_free(store: Store) -> None:
    with store.open() as app:
        save_versions(app)
        expire_all_but_newest(app)
        app.gc.run(grace_s=0)
        app.kernel.save_state_delta({"n": 7}, **PLACE)
        plan = app.gc.plan(grace_s=0)
        assert plan.tenants[0].to_expire == 1
        report = app.gc.run(grace_s=0)
        assert (plan.to_delete, plan.tenants[0].to_doom) == (report.deleted, report.doomed)


def test_what_only_a_lease_keeps_stays_until_it_is_released(store: Store) -> None:
    with store.open() as app:
        save_versions(app, 1)
        tree = app.default.trees.build({"large": text("leased")})
        rows = app.default.blocks.prepare(tree.blocks, KEY, "run").rows
        lease = Lease(LeaseId(b"l" * 16), "ann", "trip", "run", tree.root.id, 1, None, 1)
        app.catalog.add_leases(LeaseRequest(app.default.id, (lease,), rows))
        for _ in range(3):
            app.gc.run(grace_s=0)
        assert app.default.trees.read(tree.root.id) == {"large": text("leased")}
        app.catalog.release_leases(app.default.id, "ann", "trip", "run")
        for _ in range(2):
            report = app.gc.run(grace_s=0)
        assert report.deleted == len(tree.blocks)


def test_a_tenant_whose_leases_were_all_released_is_emptied(store: Store) -> None:
    with store.open() as app:
        tree = app.default.trees.build({"large": text("leased")})
        rows = app.default.blocks.prepare(tree.blocks, KEY, "run").rows
        lease = Lease(LeaseId(b"l" * 16), "ann", "trip", "run", tree.root.id, 1, None, 1)
        app.catalog.add_leases(LeaseRequest(app.default.id, (lease,), rows))
        app.catalog.release_leases(app.default.id, "ann", "trip", "run")
        assert [app.gc.run(grace_s=0).ok for _ in range(2)] == [True, True]
        assert blocks_of(app.default, app) == set()


def test_tenants_are_collected_apart(store: Store) -> None:
    with store.open() as app:
        save_versions(app)
        other = app.tenant("other").kernel
        other.save_state_delta({"shared": text("shared")}, **PLACE)
        expire_all_but_newest(app)
        reports = [app.gc.run(grace_s=0, tenant="other") for _ in range(2)]
        assert [each.tenant for each in reports[1].tenants] == ["other"] and reports[1].deleted == 0
        assert [app.gc.run(grace_s=0).deleted for _ in range(2)][1] > 0
        assert other.load_latest_state(**PLACE) == {"shared": text("shared")}
        with pytest.raises(NotFound):
            app.gc.plan("nobody")


def test_a_stalled_writer_of_an_expired_version_hears_that_and_loses_nothing_else(store: Store) -> None:
    with store.open() as app:
        save_versions(app)
        first = app.kernel.history(**PLACE)[-1]
        expire_all_but_newest(app)
        for _ in range(2):
            app.gc.run(grace_s=0)
        with pytest.raises(Expired):
            app.kernel.fork(first.manifest_id, owner_id="ann", branch="late")
        with pytest.raises(Expired):
            app.kernel.load_state(first.manifest_id)
        assert app.default.verify(KEY).problems == []


def test_only_one_collects_at_a_time(store: Store) -> None:
    with store.open() as app, store.open() as other:
        save_versions(app, 1)
        begun = Collecting(app.catalog.engine).begin("someone", 300, store_id=app.catalog.store_id())
        with pytest.raises(Conflict, match="someone is collecting"):
            other.gc.run()
        assert other.gc.status().holder == "someone"
        # Dead for longer than its lease: then another takes over.
        assert other.collector(database_clock=later(301)).run().ok
        with pytest.raises(LeaseLost):
            begun.renew()


def test_two_threads_of_a_program_do_not_take_the_lease_from_each_other(store: Store) -> None:
    with store.open() as app:
        save_versions(app)
        expire_all_but_newest(app)
        refused: list[str] = []

        def meddle(stage: str, count: int) -> None:
            if stage == "scanned":
                with pytest.raises(Conflict, match="is collecting") as caught:
                    app.gc.run(grace_s=0)
                refused.append(caught.value.kind)

        first = app.gc.run(grace_s=0, progress=meddle)
        assert refused == ["conflict"] and first.ok and first.doomed > 0
        assert app.gc.run(grace_s=0).deleted == first.doomed


def test_a_child_forked_during_a_run_waits_for_it_and_then_collects(store: Store) -> None:
    with store.open() as app:
        save_versions(app)
        expire_all_but_newest(app)
        inside, done = threading.Event(), threading.Event()
        reports: list[GcReport] = []

        def pause(stage: str, count: int) -> None:
            if stage == "scanned":
                inside.set()
                done.wait(60)

        thread = threading.Thread(target=lambda: reports.append(app.gc.run(grace_s=0, progress=pause)))
        thread.start()
        assert inside.wait(60)
        holder = app.gc.status().holder
        from_child, to_parent = os.pipe()
        from_parent, to_child = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(60)  # ends a child that waits for a thread it does not have
                with pytest.raises(Conflict) as caught:
                    app.gc.run(grace_s=0)
                # The parent's lease is in the way, not a lock that nobody would ever release.
                assert caught.value.facts["holder"] == holder and "its lease ends in" in (caught.value.hint or "")
                os.write(to_parent, b"!")
                os.read(from_parent, 1)
                assert app.gc.run(grace_s=0).deleted > 0
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(to_parent)
        heard = os.read(from_child, 1)
        done.set()
        thread.join()
        os.write(to_child, b"!")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and heard == b"!"
        for end in (from_child, from_parent, to_child):
            os.close(end)
        assert reports[0].ok and reports[0].doomed > 0
        runs = app.gc.status().runs
        assert [run.state for run in runs] == ["finished", "finished"]
        assert runs[1].holder == holder and runs[0].holder != holder
        assert app.gc.run(grace_s=0).ok


def test_a_lease_from_a_clock_that_was_a_day_ahead_does_not_stop_collection_for_a_day(store: Store) -> None:
    with store.open() as app:
        save_versions(app, 1)
        wrong = Collecting(app.catalog.engine, clock=later(2 * DAY_S))
        wrong.begin("someone", 300, store_id=app.catalog.store_id())
        assert app.gc.run().ok


def test_a_collector_that_lost_its_lease_writes_nothing_more(store: Store) -> None:
    with store.open() as app:
        save_versions(app)
        expire_all_but_newest(app)
        catalog, store_id = Collecting(app.catalog.engine), app.catalog.store_id()
        for stage in ("snapshot", "scanned", "marking to go"):
            begun = catalog.begin("slow", 300, store_id=store_id)
            slow = Sweep(catalog, begun, app.default.id, app.default.blocks.read_uncached, batch=1)
            steps = slow.steps()
            while next(steps)[0] != stage:
                pass
            done = (slow.doomed, slow.deleted)
            catalog.begin("slow", 300, store_id=store_id)
            with pytest.raises(LeaseLost):
                list(steps)
            assert (slow.doomed, slow.deleted) == done


def test_a_run_that_loses_its_lease_says_so(store: Store) -> None:
    with store.open(gc_lease_s=1) as app, store.open() as other:
        save_versions(app)
        expire_all_but_newest(app)
        thief = other.collector(database_clock=later(2))

        def steal(stage: str, count: int) -> None:
            if stage == "scanned":
                thief.run(grace_s=0)

        report = app.gc.run(grace_s=0, progress=steal)
        assert report.kinds == ("conflict",) and report.doomed == 0
        assert app.gc.status().runs[1].state == "aborted"


def test_a_run_can_be_stopped_between_any_two_batches(store: Store) -> None:
    with store.open() as app:
        save_versions(app)
        asked: list[int] = []

        def stop() -> bool:
            asked.append(1)
            return len(asked) > 1

        report = app.gc.run(grace_s=0, stop=stop)
        assert report.stopped and app.gc.status().holder is None
        assert app.gc.status().runs[0].reason == "it was asked to stop"
        assert not app.gc.run(grace_s=0).stopped


def test_another_database_behind_the_same_address_is_not_touched(store: Store) -> None:
    with store.open() as app:
        save_versions(app)
        assert app.gc.run(grace_s=0).ok
        script(app, "UPDATE store SET id = 'another'")
        with pytest.raises(Unavailable, match="this is store another"):
            app.gc.run(grace_s=0)


def test_a_schema_that_the_collector_does_not_know_is_not_touched(store: Store) -> None:
    with store.open() as app:
        save_versions(app)
        script(app, "INSERT INTO migration (number, name, checksum, applied_at) VALUES (9999, 'later', 'x', 0)")
        with pytest.raises(Unavailable, match="schema 9999"):
            app.gc.run(grace_s=0)


def test_status_tells_what_runs_did(store: Store) -> None:
    with store.open() as app:
        save_versions(app)
        expire_all_but_newest(app)
        reports = [app.gc.run(grace_s=0) for _ in range(2)]
        newest, first = app.gc.status().runs
        assert [newest.number, first.number] == [reports[1].number, reports[0].number]
        assert newest.number == first.number + 1 and newest.state == "finished"
        assert (newest.deleted, newest.bytes, newest.referenced) == (
            reports[1].deleted,
            reports[1].bytes,
            reports[1].referenced,
        )
        assert first.doomed == newest.deleted and app.gc.status().holder is None


class SlowClock(SystemClock):
    """By which every look at it takes as long as it is told."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += self._seconds
        return self._now


@pytest.mark.parametrize(
    ("seconds", "sizes"),
    [
        (10 * LONGEST_S, [2500, 250, 100, 100, 100]),
        (LONGEST_S, [2500, 2500, 2500, 2500, 2500]),
        (0.0, [2500, 5000, 10_000, 10_000, 10_000]),
    ],
)
def test_transactions_become_as_large_as_time_allows(seconds: float, sizes: list[int], store: Store) -> None:
    with store.open() as app:
        catalog = Collecting(app.catalog.engine)
        begun = catalog.begin("me", 300, store_id=app.catalog.store_id())
        read = app.default.blocks.read_uncached
        sweep = Sweep(catalog, begun, app.default.id, read, clock=SlowClock(seconds))
        ids = bytearray(random.Random(1).randbytes(32 * sum(sizes)))
        batches = list(sweep._batches(ids))
        assert [len(batch) for batch in batches] == sizes
        assert b"".join(block for batch in batches for block in batch) == ids
        # Without one they are as large as told.
        told = Sweep(catalog, begun, app.default.id, read, batch=7)
        assert [len(batch) for batch in told._batches(ids[: 32 * 8])] == [7, 1]
