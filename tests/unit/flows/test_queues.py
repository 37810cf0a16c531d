"""Queues: never more at a time, nor more beginnings within a period, than they may; in order; freed by whoever dies."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from analemma.app import App
from analemma.catalog.opening import FILE_NAME
from analemma.catalog.port import TenantId
from analemma.catalog.queues import Lane, claim_next, next_lanes
from analemma.catalog.runs import RunRow
from analemma.catalog.statements import load
from analemma.errors import Invalid, NotFound
from analemma.flows.building import Flow
from tests.stores import Store
from tests.unit.catalog.test_run_plans import COLUMNS, plan_nodes
from tests.unit.gc.collections import script

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
        start(app, "other", queue="letters")
        start(app, "plain", queue="")
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
        ("claim_due_runs", "run_due"),
    ):
        statement = load("sqlite")[name]
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", [None] * len(statement.positions)).fetchall()
        assert any(f"INDEX {index} " in row[-1] for row in plan), (name, plan)
    connection.close()
