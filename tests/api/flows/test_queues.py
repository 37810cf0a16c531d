"""Queues: never more at a time, nor more beginnings within a period, than they may; in order; freed by whoever dies."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from analemma import App, Flow
from analemma.errors import Invalid, NotFound
from analemma.testing import failpoints
from tests.api.flows.runs import die, end_leases, take
from tests.raw_rows import change
from tests.stores import Store

FLOW = Flow("mail")


@FLOW.step(writes=["sent"])
def send(state: Any, ctx: Any) -> dict[str, bool]:
    return {"sent": True}


def start(app: App, name: str, queue: str = "mail", **more: Any) -> str:
    return app.flows.start(FLOW, workflow_id=name, owner_id="me", queue=queue, **more).execution_id


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
        assert [take(app, store) for _ in range(5)] == ["a", "b", "other", "plain", None]
        queue = app.flows.queues.get("mail")
        assert (queue.working, queue.waiting) == (2, 1)
        release(app, "b")
        assert [take(app, store), take(app, store)] == ["c", None]


def test_a_dead_holders_place_is_free_when_its_lease_is_over(store: Store) -> None:
    with store.open() as app:
        app.flows.queues.set("mail", concurrency=1)
        start(app, "a")
        start(app, "b")
        assert [take(app, store), take(app, store)] == ["a", None]
        end_leases(store)
        # What has begun goes on before anything else begins.
        assert [take(app, store), take(app, store)] == ["a", None]


def test_a_rate_counts_beginnings_within_every_period(store: Store) -> None:
    with store.open() as app:
        app.flows.queues.set("mail", rate=2, per_s=100)
        for name in ("a", "b", "c", "d"):
            start(app, name)
        assert [take(app, store) for _ in range(3)] == ["a", "b", None]
        # Going on with what has begun is not limited.
        change(store, "UPDATE run SET due_at = 1 WHERE workflow = 'a'")
        assert [take(app, store), take(app, store)] == ["a", None]
        change(store, "UPDATE run_start SET at = at - 100000000 WHERE seq = 1")
        assert [take(app, store), take(app, store)] == ["c", None]
        change(store, "UPDATE run_start SET at = at - 100000000 WHERE seq = 2")
        assert [take(app, store), take(app, store)] == ["d", None]
        app.flows.queues.set("mail")
        start(app, "e")
        assert take(app, store) == "e"
        assert app.flows.queues.get("mail").rate is None


def test_higher_priorities_come_first_and_each_is_in_order(store: Store) -> None:
    with store.open() as app:
        for name, priority in (("a", 0), ("b", 5), ("c", -1), ("d", 5), ("e", 0)):
            start(app, name, priority=priority)
            time.sleep(0.002)
        start(app, "later", priority=9, delay_s=100)
        assert [take(app, store) for _ in range(6)] == ["b", "d", "a", "e", "c", None]


def test_of_several_queues_the_one_that_waits_the_longest_is_next(store: Store) -> None:
    with store.open() as app:
        for name, queue, priority in (("a", "one", 0), ("b", "two", 9), ("c", "", 0), ("d", "two", 9), ("e", "one", 0)):
            start(app, name, queue=queue, priority=priority)
            time.sleep(0.002)
        assert [take(app, store) for _ in range(6)] == ["a", "b", "c", "d", "e", None]


def test_a_worker_keeps_to_the_limit_and_does_everything(store: Store) -> None:
    busy: list[int] = []
    now: set[str] = set()
    lock = threading.Lock()
    # Two at a time, and none goes on alone.
    pairs = threading.Barrier(2, timeout=60)
    flow = Flow("slow")

    @flow.step
    def work(state: Any, ctx: Any) -> None:
        with lock:
            now.add(ctx.execution_id)
            busy.append(len(now))
        pairs.wait()
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
        assert (max(busy), len(busy)) == (2, 8)


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


def test_limits_and_places_that_make_no_sense_are_refused(memory: App) -> None:
    limits: list[dict[str, Any]] = [
        {"concurrency": 0},
        {"concurrency": True},
        {"rate": 1},
        {"per_s": 1},
        {"rate": 1, "per_s": 0},
        {"rate": -1, "per_s": 1},
    ]
    for given in limits:
        with pytest.raises(Invalid):
            memory.flows.queues.set("mail", **given)
    places: list[dict[str, Any]] = [{"priority": 1}, {"queue": "q", "priority": 101}, {"queue": 7}]
    places += [{"delay_s": delay} for delay in (float("nan"), float("inf"), "x", -5, 1e30, True, None)]
    for place in places:
        with pytest.raises(Invalid):
            memory.flows.start(FLOW, workflow_id="a", owner_id="me", **place)
    for name in ("a\nb", "\x1b[2J", "\x7f", "\x9b"):
        with pytest.raises(Invalid):
            start(memory, "a", queue=name)
        with pytest.raises(Invalid):
            memory.flows.queues.set(name, concurrency=1)
    assert memory.flows.queues.list() == [] and memory.flows.runs() == []


def test_removing_a_queue_lifts_its_limits(store: Store) -> None:
    with store.open() as app:
        with pytest.raises(NotFound):
            app.flows.queues.get("mail")
        app.flows.queues.set("mail", concurrency=1)
        start(app, "a")
        start(app, "b")
        assert [take(app, store), take(app, store)] == ["a", None]
        app.flows.queues.remove("mail")
        assert take(app, store) == "b"
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
        change(store, "UPDATE run SET ended_at = ended_at - 1000000000")
        assert app.flows.forget(500) == 2
        assert [queue.name for queue in app.flows.queues.list()] == ["limited", "mail"]
        assert take(app, store) == "b"


def test_the_time_of_a_run_begins_when_somebody_takes_it(store: Store) -> None:
    flow = Flow("short", limits={"timeout_s": 60})

    @flow.step
    def work(state: Any, ctx: Any) -> None:
        pass

    with store.open() as app:
        app.flows.register(flow)
        places: list[dict[str, Any]] = [{}, {"queue": "mail"}, {"delay_s": 3600}]
        runs = [
            app.flows.start(flow, workflow_id=f"w-{number}", owner_id="me", **place)
            for number, place in enumerate(places)
        ]
        # They waited for an hour.
        change(
            store,
            "UPDATE run SET created_at = created_at - 3600000000, due_at = due_at - 3600000000,"
            " deadline = deadline - 3600000000",
        )
        app.run_worker(1).drain()
        assert [app.flows.get(run.execution_id).status for run in runs] == ["COMPLETED"] * 3
        # And from then on it does not begin again.
        late = app.flows.start(flow, workflow_id="late", owner_id="me")
        assert take(app, store) == "late"
        change(store, "UPDATE run SET deadline = deadline - 61000000, due_at = 1 WHERE workflow = 'late'")
        app.run_worker(1).drain()
        error = app.flows.get(late.execution_id).error
        assert error is not None and error.kind == "timeout"


def test_a_run_that_nobody_has_begun_is_not_begun_by_resuming_it(store: Store) -> None:
    with store.open() as app:
        app.flows.queues.set("mail", rate=1, per_s=1000)
        first, second = (start(app, name, delay_s=3600) for name in ("a", "b"))
        for execution in (first, second):
            assert app.flows.resume(execution, wait=False).status == "PENDING"
        assert [take(app, store), take(app, store)] == ["a", None]


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
            app.run_worker(1).drain()
        assert [run.status for run in app.flows.runs()] == ["WAITING_HUMAN"] * 2
        change(store, "UPDATE run SET due_at = number")
        # A worker decides what nobody decided of the first, takes the second, and dies with it.
        with failpoints.call("run.after_claim", die, time=2):
            app.run_worker(1).drain()
        # Decided, and due: the one place is for whoever claims next.
        assert worked == [] and app.flows.runs(workflow_id="a")[0].status == "RUNNING"
        assert (app.flows.queues.get("mail").working, take(app, store)) == (1, None)


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


def test_where_only_beginnings_are_used_up_what_has_begun_goes_on(store: Store) -> None:
    with store.open() as app:
        app.flows.queues.set("mail", rate=1, per_s=1000)
        for priority in range(5):
            start(app, f"w-{priority}", priority=priority)
        assert [take(app, store), take(app, store)] == ["w-4", None]
        start(app, "low", priority=-5)
        # Behind those that may not begin, whichever is their priority.
        change(store, "UPDATE run SET due_at = 1, priority = -5 WHERE workflow = 'w-4'")
        assert [take(app, store), take(app, store)] == ["w-4", None]


def test_a_fork_stays_in_the_queue(store: Store) -> None:
    with store.open() as app:
        app.flows.register(FLOW)
        run = start(app, "a", priority=3)
        app.run_worker(1).drain()
        forked = app.flows.rerun(run, from_segment=0, fork=True, wait=False)
        assert (forked.queue, forked.priority, forked.status) == ("mail", 3, "PENDING")
        app.run_worker(1).drain()
        assert app.flows.get(forked.execution_id).status == "COMPLETED"
