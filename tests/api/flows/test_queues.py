"""Queues: never more at a time, nor more beginnings within a period, than they may; in order; freed by whoever dies."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from analemma import App, Flow
from analemma.catalog.opening import FILE_NAME
from analemma.catalog.port import TenantId
from analemma.catalog.queues import Lane, claim_next, next_lanes
from analemma.catalog.run_records import RunRow
from analemma.catalog.statements import load
from analemma.errors import Invalid, NotFound
from tests.api.gc.collections import script
from tests.postgres.test_run_plans import COLUMNS, plan_nodes
from tests.stores import Store

FLOW = Flow("mail")


@FLOW.step(writes=["sent"])
def send(state: Any, ctx: Any) -> dict[str, bool]:
    return {"sent": True}


def start(app: App, name: str, queue: str = "mail", **more: Any) -> str:
    return app.flows.start(FLOW, workflow_id=name, owner_id="me", queue=queue, **more).execution_id


def claim(app: App, lease_s: float = 600) -> str | None:
    rows = claim_next(app.catalog.engine, holder="test", lease_s=lease_s)
    return rows[0][1].workflow if rows else None


def release(app: App, name: str) -> None:
    (run,) = app.flows.runs(workflow_id=name)
    app.flows.cancel(run.execution_id)


def test_no_more_runs_are_taken_than_the_queue_has_places(store: Store) -> None:
    with store.open() as app:
        app.flows.queues.set("mail", concurrency=2)
        for name in ("a", "b", "c"):
            start(app, name)
        for name, place in (("other", "letters"), ("plain", "")):
            # SQLite tells time in milliseconds.
            time.sleep(0.002)
            start(app, name, queue=place)
        assert [claim(app) for _ in range(5)] == ["a", "b", "other", "plain", None]
        queue = app.flows.queues.get("mail")
        assert (queue.working, queue.waiting) == (2, 1)
        release(app, "b")
        assert [claim(app), claim(app)] == ["c", None]


def test_a_dead_holders_place_is_free_when_its_lease_is_over(store: Store) -> None:
    with store.open() as app:
        app.flows.queues.set("mail", concurrency=1)
        start(app, "a")
        start(app, "b")
        assert [claim(app, 0.05), claim(app)] == ["a", None]
        time.sleep(0.06)
        # What has begun goes on before anything else begins.
        assert [claim(app), claim(app)] == ["a", None]


def test_a_rate_counts_beginnings_within_every_period(store: Store) -> None:
    with store.open() as app:
        app.flows.queues.set("mail", rate=2, per_s=100)
        for name in ("a", "b", "c", "d"):
            start(app, name)
        assert [claim(app) for _ in range(3)] == ["a", "b", None]
        # Going on with what has begun is not limited.
        script(app, "UPDATE run SET due_at = 1 WHERE workflow = 'a'")
        assert [claim(app), claim(app)] == ["a", None]
        script(app, "UPDATE run_start SET at = at - 100000000 WHERE seq = 1")
        assert [claim(app), claim(app)] == ["c", None]
        script(app, "UPDATE run_start SET at = at - 100000000 WHERE seq = 2")
        assert [claim(app), claim(app)] == ["d", None]
        app.flows.queues.set("mail")
        start(app, "e")
        assert claim(app) == "e"
        assert app.flows.queues.get("mail").rate is None


def test_higher_priorities_come_first_and_each_is_in_order(store: Store) -> None:
    with store.open() as app:
        for name, priority in (("a", 0), ("b", 5), ("c", -1), ("d", 5), ("e", 0)):
            start(app, name, priority=priority)
            time.sleep(0.002)
        start(app, "later", priority=9, delay_s=100)
        assert [claim(app) for _ in range(6)] == ["b", "d", "a", "e", "c", None]


def test_of_several_queues_the_one_that_waits_the_longest_is_next(store: Store) -> None:
    with store.open() as app:
        for name, queue, priority in (("a", "one", 0), ("b", "two", 9), ("c", "", 0), ("d", "two", 9), ("e", "one", 0)):
            start(app, name, queue=queue, priority=priority)
            time.sleep(0.002)
        assert [claim(app) for _ in range(6)] == ["a", "b", "c", "d", "e", None]


def test_the_next_lane_is_the_highest_of_the_oldest_queue() -> None:
    lanes = [
        Lane(TenantId(1), "a", 0, None, 10, None, None),
        Lane(TenantId(1), "a", 5, None, 40, None, None),
        Lane(TenantId(1), "b", 0, 30, 20, None, None),
        Lane(TenantId(1), "c", 0, None, None, None, None),
    ]
    assert [[(each.queue, each.priority) for each in found] for found in next_lanes(lanes)] == [
        [("b", 0)],
        [("a", 5), ("a", 0)],
    ]


def test_claims_side_by_side_never_pass_the_limit(store: Store) -> None:
    with store.open() as app, store.open() as other:
        app.flows.queues.set("mail", concurrency=3, rate=7, per_s=1000)
        for number in range(12):
            start(app, f"w-{number}")
        taken: list[RunRow] = []
        lock = threading.Lock()

        def take(each: App) -> None:
            for _ in range(6):
                rows = claim_next(each.catalog.engine, holder="test", lease_s=600)
                with lock:
                    taken.extend(row for _, row in rows)

        for expected in (3, 6, 7):
            threads = [threading.Thread(target=take, args=(each,)) for each in (app, other, app, other)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(taken) == expected
            for row in taken[-3:]:
                if app.flows.get(row.execution).status == "RUNNING":
                    app.flows.cancel(row.execution)
        assert sorted(row.workflow for row in taken) == sorted(f"w-{number}" for number in range(7))


def test_a_worker_keeps_to_the_limit_and_does_everything(store: Store) -> None:
    busy: list[int] = []
    now: set[str] = set()
    lock = threading.Lock()
    flow = Flow("slow")

    @flow.step
    def work(state: Any, ctx: Any) -> None:
        with lock:
            now.add(ctx.execution_id)
            busy.append(len(now))
        time.sleep(0.02)
        with lock:
            now.discard(ctx.execution_id)

    with store.open() as app, store.open() as other:
        app.flows.queues.set("mail", concurrency=2)
        for number in range(8):
            app.flows.start(flow, workflow_id=f"w-{number}", owner_id="me", queue="mail")
        workers = []
        for each in (app, other):
            each.handlers.add_all(flow)
            workers.append(each.run_worker(4))
        threads = [threading.Thread(target=worker.drain) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {run.status for run in app.flows.runs()} == {"COMPLETED"}
        assert max(busy) == 2


def test_a_child_waits_in_the_queue_of_its_parent_which_has_no_place_meanwhile(store: Store) -> None:
    parent = Flow("parent")
    parent.subflow("send", FLOW, outputs={"sent": "sent"})
    with store.open() as app:
        app.handlers.add_all(parent)
        app.flows.queues.set("mail", concurrency=1)
        run = app.flows.start(parent, workflow_id="p", owner_id="me", queue="mail", priority=3)
        app.run_worker(2).drain()
        assert app.flows.get(run.execution_id).state == {"sent": True}
        assert {(each.queue, each.priority) for each in app.flows.runs()} == {("mail", 3)}


@pytest.mark.parametrize(
    "given",
    [
        {"concurrency": 0},
        {"concurrency": True},
        {"rate": 1},
        {"per_s": 1},
        {"rate": 1, "per_s": 0},
        {"rate": -1, "per_s": 1},
    ],
    ids=str,
)
def test_limits_that_make_no_sense_are_refused(given: dict[str, Any], store: Store) -> None:
    with store.open() as app:
        with pytest.raises(Invalid):
            app.flows.queues.set("mail", **given)
        assert app.flows.queues.list() == []


@pytest.mark.parametrize("place", [{"priority": 1}, {"queue": "q", "priority": 101}, {"queue": 7}], ids=str)
def test_places_that_there_are_not_are_refused(place: dict[str, Any], store: Store) -> None:
    with store.open() as app:
        with pytest.raises(Invalid):
            app.flows.start(FLOW, workflow_id="a", owner_id="me", **place)
        assert app.flows.runs() == []


def test_removing_a_queue_lifts_its_limits(store: Store) -> None:
    with store.open() as app:
        with pytest.raises(NotFound):
            app.flows.queues.get("mail")
        app.flows.queues.set("mail", concurrency=1)
        start(app, "a")
        start(app, "b")
        assert [claim(app), claim(app)] == ["a", None]
        app.flows.queues.remove("mail")
        assert claim(app) == "b"
        with pytest.raises(NotFound):
            app.flows.queues.remove("mail")


def test_a_run_that_failed_is_found_in_a_queue_that_was_removed(store: Store) -> None:
    fails = ["once"]
    flow = Flow("fails")

    @flow.step
    def work(state: Any, ctx: Any) -> None:
        if fails:
            raise RuntimeError(fails.pop())

    with store.open() as app:
        app.flows.register(flow)
        app.flows.queues.set("mail", concurrency=1)
        run = app.flows.start(flow, workflow_id="a", owner_id="me", queue="mail")
        app.run_worker(1).drain()
        assert app.flows.get(run.execution_id).status == "FAILED"
        app.flows.queues.remove("mail")
        assert app.flows.forget(3600) == 0
        app.flows.resume(run.execution_id, wait=False)
        app.run_worker(1).drain()
        assert app.flows.get(run.execution_id).status == "COMPLETED"


def test_a_queue_is_forgotten_with_the_last_of_its_runs(store: Store) -> None:
    with store.open() as app:
        app.flows.queues.set("limited", concurrency=1)
        start(app, "a", queue="old")
        start(app, "b", priority=1)
        start(app, "c")
        for name in ("a", "c"):
            release(app, name)
        script(app, "UPDATE run SET ended_at = ended_at - 1000000000")
        assert app.flows.forget(500) == 2
        assert [queue.name for queue in app.flows.queues.list()] == ["limited", "mail"]
        lanes = app.catalog.engine.all("due_lanes", tenant=None)
        assert [(lane[1], lane[2]) for lane in lanes] == [("mail", 1)]
        assert claim(app) == "b"


def test_a_lane_is_not_dropped_under_a_run_that_is_being_started(migrated_url: str) -> None:
    store = Store(migrated_url)
    with store.open() as app, store.open() as other:
        start(app, "a")
        start(app, "w", queue="other")
        script(app, "DELETE FROM run WHERE workflow = 'a'")
        with psycopg.connect(migrated_url) as between:
            # What a start changes last: it has the lane behind it, and its run is not there for others yet.
            between.execute("SELECT 1 FROM workflow WHERE workflow = 'w' FOR UPDATE")
            starting = threading.Thread(target=start, args=(other, "w"))
            starting.start()
            wait_until_somebody_waits(migrated_url, 1)
            tidying = threading.Thread(target=app.flows.forget, args=(3600,))
            tidying.start()
            wait_until_somebody_waits(migrated_url, 2)
            between.rollback()
        starting.join()
        tidying.join()
        assert [claim(app), claim(app), claim(app)] == ["w", "w", None]


def wait_until_somebody_waits(url: str, many: int) -> None:
    asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(1000):
            (row,) = connection.execute(asked).fetchall()
            if row[0] >= many:
                return
            time.sleep(0.005)
    raise AssertionError("nobody waits")


def test_the_time_of_a_run_begins_when_somebody_takes_it(store: Store) -> None:
    flow = Flow("short", limits={"timeout_s": 60})

    @flow.step
    def work(state: Any, ctx: Any) -> None:
        pass

    with store.open() as app:
        app.flows.register(flow)
        runs = [
            app.flows.start(flow, workflow_id=f"w-{place}", owner_id="me", **place)
            for place in ({}, {"queue": "mail"}, {"delay_s": 3600})
        ]
        # They waited for an hour.
        script(
            app,
            "UPDATE run SET created_at = created_at - 3600000000, due_at = due_at - 3600000000,"
            " deadline = deadline - 3600000000",
        )
        begun = claim_next(app.catalog.engine, holder="test", lease_s=600)[0][1]
        assert begun.deadline_us is not None and begun.begun_at_us is not None
        assert abs(begun.updated_at_us - begun.begun_at_us) < 1_000_000
        assert 59_000_000 < begun.deadline_us - begun.updated_at_us < 61_000_000
        app.flows.resume(begun.execution, take_over=True)
        app.run_worker(1).drain()
        assert [app.flows.get(run.execution_id).status for run in runs] == ["COMPLETED"] * 3
        # And from then on it does not begin again.
        late = app.flows.start(flow, workflow_id="late", owner_id="me")
        claim(app)
        script(app, "UPDATE run SET deadline = deadline - 61000000, due_at = 1 WHERE workflow = 'late'")
        app.run_worker(1).drain()
        error = app.flows.get(late.execution_id).error
        assert error is not None and error.kind == "timeout"


def test_a_run_that_nobody_has_begun_is_not_begun_by_resuming_it(store: Store) -> None:
    with store.open() as app:
        app.flows.queues.set("mail", rate=1, per_s=1000)
        first, second = (start(app, name, delay_s=3600) for name in ("a", "b"))
        for execution in (first, second):
            assert app.flows.resume(execution, wait=False).status == "PENDING"
        assert [claim(app), claim(app)] == ["a", None]


def test_who_decides_late_takes_no_place_that_is_not_free(store: Store) -> None:
    flow = Flow("asks")
    flow.human("ask", choices=["yes", "no"], timeout_s=600, default="no")
    worked: list[str] = []

    @flow.step
    def work(state: Any, ctx: Any) -> None:
        worked.append(ctx.workflow_id)

    with store.open() as app:
        app.flows.register(flow)
        app.flows.queues.set("mail", concurrency=1)
        for name in ("a", "b"):
            app.flows.start(flow, workflow_id=name, owner_id="me", queue="mail")
            ((_, row),) = claim_next(app.catalog.engine, holder="test", lease_s=600)
            app.flows.work_on(row)
        script(app, "UPDATE run SET due_at = number")
        ((_, row),) = claim_next(app.catalog.engine, holder="test", lease_s=600)
        app.flows.work_on(row)
        # Decided, and due: the one place is for whoever claims next.
        assert worked == [] and app.flows.runs(workflow_id="a")[0].status == "RUNNING"
        assert (claim(app), app.flows.queues.get("mail").working, claim(app)) == ("b", 1, None)


def test_children_go_with_what_has_begun_and_do_not_count_for_the_rate(store: Store) -> None:
    parent = Flow("parent")
    parent.subflow("send", FLOW, outputs={"sent": "sent"})
    with store.open() as app:
        app.handlers.add_all(parent)
        app.flows.queues.set("mail", rate=2, per_s=1000)
        runs = [app.flows.start(parent, workflow_id=f"p-{number}", owner_id="me", queue="mail") for number in range(3)]
        app.run_worker(1).drain()
        found = [app.flows.get(run.execution_id).status for run in runs]
        assert found == ["COMPLETED", "COMPLETED", "PENDING"]


def test_a_full_queue_is_asked_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open() as app:
        app.flows.queues.set("mail", concurrency=1)
        for priority in range(5):
            start(app, f"w-{priority}", priority=priority)
        assert claim(app) == "w-4"
        engine = app.catalog.engine
        asked: list[Any] = []
        write = engine.write
        monkeypatch.setattr(engine, "write", lambda *given: asked.append(given) or write(*given))  # type: ignore[func-returns-value]
        assert claim(app) is None
        # One for the queue, and one for the runs of none.
        assert len(asked) == 2
        # Where only beginnings are used up, what has begun goes on, in whichever lane.
        app.flows.queues.set("mail", rate=1, per_s=1000)
        assert [claim(app), claim(app)] == ["w-3", None]
        script(app, "UPDATE run SET due_at = 1 WHERE workflow = 'w-4'")
        script(app, "UPDATE run SET priority = -5 WHERE workflow = 'w-4'")
        script(app, "INSERT INTO run_lane (tenant, queue, priority) SELECT tenant, queue, -5 FROM run_lane LIMIT 1")
        asked.clear()
        assert claim(app) == "w-4" and len(asked) == 2


@pytest.mark.parametrize("delay_s", [float("nan"), float("inf"), "x", -5, 1e30, True, None], ids=str)
def test_delays_that_there_are_not_are_refused(delay_s: Any, tmp_path: Path) -> None:
    with Store(str(tmp_path / "store")).open() as app:
        with pytest.raises(Invalid):
            start(app, "a", delay_s=delay_s)
        assert app.flows.runs() == []


def test_names_with_control_characters_are_refused(tmp_path: Path) -> None:
    with Store(str(tmp_path / "store")).open() as app:
        for name in ("a\nb", "\x1b[2J", "\x7f", "\x9b"):
            with pytest.raises(Invalid):
                start(app, "a", queue=name)
            with pytest.raises(Invalid):
                app.flows.queues.set(name, concurrency=1)
            with pytest.raises(Invalid):
                app.flows.schedules.add(name, FLOW, owner_id="me", workflow_id="w", every_s=60)
        assert app.flows.queues.list() == [] and app.flows.schedules.list() == []


def test_a_fork_stays_in_the_queue(store: Store) -> None:
    with store.open() as app:
        app.flows.register(FLOW)
        run = start(app, "a", priority=3)
        app.run_worker(1).drain()
        forked = app.flows.rerun(run, from_segment=0, fork=True, wait=False)
        assert (forked.queue, forked.priority, forked.status) == ("mail", 3, "PENDING")
        app.run_worker(1).drain()
        assert app.flows.get(forked.execution_id).status == "COMPLETED"


MANY = 5000


def test_what_waits_in_a_queue_costs_a_claim_nothing(migrated_url: str) -> None:
    with Store(migrated_url).open() as app:
        start(app, "a", priority=1)
        start(app, "z")
    with psycopg.connect(migrated_url, autocommit=True) as connection:
        for status, due in (("PENDING", "1 + i"), ("WAITING_HUMAN", "analemma_now() + 1000000000000 + i")):
            connection.execute(
                f"INSERT INTO run (execution, status, due_at, {COLUMNS})"  # noqa: S608
                f" SELECT '{status}' || i, '{status}', {due}, {COLUMNS}"
                f" FROM run, generate_series(1, {MANY}) i WHERE workflow = 'z' AND length(execution) = 32"
            )
        connection.execute("ANALYZE run")
    place = {"tenant": 1, "queue": "mail", "priority": 0, "holder": "me", "lease": 1_000_000}
    for name, parameters, index in (
        ("due_lanes", {"tenant": None}, "run_queued"),
        ("claim_queued", place, "run_queued"),
        ("claim_begun", place, "run_begun"),
        ("queue_held", place, "run_held"),
        ("first_due", {"tenant": None}, "run_due"),
        ("drop_lanes", {"tenant": 1}, "run_begun"),
    ):
        nodes = plan_nodes(migrated_url, name, **parameters)
        assert index in {node.get("Index Name") for node in nodes}, name
        assert sum(node.get("Rows Removed by Filter", 0) for node in nodes) < 10, name
        assert max(node["Actual Rows"] for node in nodes) < 10, name


def test_sqlite_uses_the_same_indexes(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    with store.open() as app:
        start(app, "a")
    connection = sqlite3.connect(tmp_path / "store" / FILE_NAME)
    for name, index in (
        ("due_lanes", "run_queued"),
        ("due_lanes", "run_begun"),
        ("claim_queued", "run_queued"),
        ("claim_begun", "run_begun"),
        ("queue_held", "run_held"),
        ("first_due", "run_due"),
        ("drop_lanes", "run_queued"),
        ("drop_lanes", "run_begun"),
        ("claim_due_runs", "run_due"),
    ):
        statement = load("sqlite")[name]
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", [None] * len(statement.positions)).fetchall()
        assert any(f"INDEX {index} " in row[-1] for row in plan), (name, plan)
    connection.close()
