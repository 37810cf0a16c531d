"""Plans and runs: what goes, what stays, who may, and what stops them."""

from __future__ import annotations

import json
import os
import signal
import threading
import traceback
from dataclasses import replace
from typing import Any

import pytest

from analemma import App
from analemma.errors import Conflict, Expired, Invalid, NotFound, Unavailable
from analemma.testing import failpoints
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

SENDING: dict[str, Any] = {**PLACE, "execution_id": "run"}


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
        assert app.kernel.verify(**PLACE).ok
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


def test_a_grace_period_that_is_none_is_refused(store: Store) -> None:
    with store.open() as app:
        for grace_s in (-1, float("nan"), float("inf")):
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
        assert type(plan).from_json(plan.to_json()) == plan
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
        assert app.kernel.verify(**PLACE).ok
        assert app.gc.run(grace_s=0).deleted > 0
        with pytest.raises(Invalid, match="another store"):
            app.gc.run(replace(plan, store_id="0" * 32))


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


def send(app: App) -> dict[str, Any]:
    """A payload whose field only a lease keeps."""
    return app.payloads.dehydrate({"large": text("leased")}, force_offload_fields=["large"], **SENDING)


def test_what_only_a_lease_keeps_stays_until_it_is_released(store: Store) -> None:
    with store.open(cache_bytes=0) as app:
        save_versions(app, 1)
        before = app.stats().blocks
        sent = send(app)
        leased = app.stats().blocks - before
        for _ in range(3):
            assert app.gc.run(grace_s=0).ok
        assert app.payloads.hydrate(sent)["large"] == text("leased")
        app.payloads.release(**SENDING)
        for _ in range(2):
            report = app.gc.run(grace_s=0)
        assert report.deleted == leased > 0 and app.stats().blocks == before


def test_a_tenant_whose_leases_were_all_released_is_emptied(store: Store) -> None:
    with store.open() as app:
        send(app)
        app.payloads.release(**SENDING)
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
        assert app.kernel.verify(**PLACE).ok


def test_only_one_collects_at_a_time(store: Store) -> None:
    with store.open() as app, store.open() as other:
        save_versions(app, 1)
        with failpoints.paused("gc.after_lease", lambda: app.gc.run(grace_s=0)) as held:
            with pytest.raises(Conflict, match="is collecting"):
                other.gc.run()
            assert other.gc.status().holder is not None
            # Dead for longer than its lease: then another takes over.
            assert other.collector(database_clock=later(301)).run().ok
            assert "lost its lease" in held.go_on().problems[0]


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


def test_a_child_forked_during_a_run_is_refused_and_collects_with_its_own_store_afterwards(store: Store) -> None:
    with store.open() as app:
        save_versions(app)
        expire_all_but_newest(app)
        inside, done = threading.Event(), threading.Event()
        reports: list[Any] = []

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
                with pytest.raises(Unavailable, match="forked"):
                    app.gc.run(grace_s=0)
                own = store.open()
                with pytest.raises(Conflict) as caught:
                    own.gc.run(grace_s=0)
                # The parent's lease is in the way, not a lock that nobody would ever release.
                assert caught.value.facts["holder"] == holder and "its lease ends in" in (caught.value.hint or "")
                os.write(to_parent, b"!")
                os.read(from_parent, 1)
                assert own.gc.run(grace_s=0).deleted > 0
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
    with store.open() as app, store.open() as other:
        save_versions(app, 1)
        wrong = other.collector(database_clock=later(2 * DAY_S))
        with failpoints.paused("gc.after_lease", lambda: wrong.run(grace_s=0)):
            assert app.gc.run().ok


@pytest.mark.parametrize("stage", ["snapshot", "marking", "scanned", "marking to go"])
def test_a_collector_that_lost_its_lease_writes_nothing_more(stage: str, store: Store) -> None:
    with store.open(gc_lease_s=1) as app, store.open() as other:
        save_versions(app)
        expire_all_but_newest(app)
        app.gc.run(grace_s=0)
        app.kernel.save_state_delta({"own": text("more")}, **PLACE)
        app.kernel.expire(**PLACE)
        thief = other.collector(database_clock=later(2))
        told: list[tuple[str, int]] = []

        def steal(now: str, count: int) -> None:
            if now == stage and not told:
                # It takes the lease, and does nothing with it.
                assert thief.run(grace_s=0, stop=lambda: True).stopped
                told.append((now, app.stats().blocks))

        report = app.gc.run(grace_s=0, progress=steal)
        assert "lost its lease" in report.problems[0]
        assert app.stats().blocks == told[0][1] and (report.deleted, len(told)) == (0, 1)
        assert (report.doomed > 0) == (stage == "marking to go")


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
