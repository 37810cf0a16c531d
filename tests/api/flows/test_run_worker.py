"""Workers: they go on with what nobody else does, one at a time each, and stop between segments."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from analemma import Flow
from analemma.errors import Conflict, Denied, NotFound
from tests.api.flows.runs import PLACE
from tests.raw_rows import change
from tests.stores import Store


def test_many_runs_are_done_once_each_by_several_workers(store: Store) -> None:
    flow = Flow("many", checkpoints="node")

    @flow.step(reads=["n"], writes=["n"])
    def first(state: Any, ctx: Any) -> None:
        state["n"] += 1
        ctx.emit({"type": "Counted"})

    @flow.step(reads=["n"], writes=["n"])
    def second(state: Any, ctx: Any) -> None:
        state["n"] += 1

    with store.open() as app, store.open() as other:
        for tenant in ("default", "shop"):
            for number in range(6):
                app.tenant(tenant).flows.start(flow, {"n": 0}, workflow_id=f"w-{number}", owner_id="me")
        other.handlers.add_all(flow)
        workers = [app.run_worker(2), other.run_worker(2)]
        app.handlers.add_all(flow)
        threads = [threading.Thread(target=worker.drain) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(worker.worked.runs for worker in workers) == 12
        for tenant in ("default", "shop"):
            runs = app.tenant(tenant).flows.runs()
            assert [run.status for run in runs] == ["COMPLETED"] * 6
            assert all(run.state == {"n": 2} for run in runs)
        assert app.outbox.status().pending == 12


def test_a_worker_of_one_tenant_leaves_others_alone(store: Store) -> None:
    flow = Flow("one")

    @flow.step
    def step(state: Any, ctx: Any) -> None:
        return None

    with store.open() as app:
        app.handlers.add_all(flow)
        mine = app.tenant("shop").flows.start(flow, **PLACE)
        theirs = app.flows.start(flow, **PLACE)
        assert app.run_worker(tenant="shop").drain().runs == 1
        assert app.tenant("shop").flows.get(mine.execution_id).status == "COMPLETED"
        assert app.flows.get(theirs.execution_id).status == "PENDING"
        with pytest.raises(NotFound):
            app.run_worker(tenant="nobody")


def test_a_worker_that_stops_leaves_the_rest_to_others(store: Store) -> None:
    flow = Flow("stop", checkpoints="node")
    workers: list[Any] = []

    @flow.step(writes=["a"])
    def first(state: Any, ctx: Any) -> dict[str, int]:
        workers[0].stop()
        return {"a": 1}

    @flow.step(writes=["b"])
    def second(state: Any, ctx: Any) -> dict[str, int]:
        return {"b": 1}

    with store.open() as app:
        app.handlers.add_all(flow)
        workers.append(app.run_worker(1))
        run = app.flows.start(flow, **PLACE)
        workers[0].run()
        stopped = app.flows.get(run.execution_id)
        assert (stopped.status, stopped.segment_id, stopped.holder) == ("RUNNING", "second", None)
        assert app.run_worker(1).drain().runs == 1
        assert app.flows.get(run.execution_id).state == {"a": 1, "b": 1}


def test_a_long_wait_before_a_retry_is_left_to_whoever_looks_then(store: Store) -> None:
    attempts: list[int] = []
    flow = Flow("later")

    @flow.step(writes=["n"], retries={"times": 3, "delay_s": 100_000, "maximum_delay_s": 100_000})
    def flaky(state: Any, ctx: Any) -> dict[str, int]:
        attempts.append(ctx.attempt)
        if len(attempts) < 3:
            raise OSError("not yet")
        return {"n": 1}

    with store.open() as app:
        app.handlers.add_all(flow)
        run = app.flows.start(flow, **PLACE)
        for expected in (1, 2):
            assert app.run_worker(1).drain().runs == 1
            waiting = app.flows.get(run.execution_id)
            assert (waiting.status, waiting.holder, len(attempts)) == ("RUNNING", None, expected)
            assert waiting.waiting is not None
            assert (waiting.waiting.kind, waiting.waiting.node, waiting.waiting.attempt) == (
                "retry",
                "flaky",
                expected + 1,
            )
            assert app.run_worker(1).drain().runs == 0
            app.flows.resume(run.execution_id, wait=False)
        assert app.run_worker(1).drain().runs == 1
        assert app.flows.get(run.execution_id).state == {"n": 1}
    assert attempts == [1, 2, 3]


def test_a_run_that_cannot_be_taken_up_fails_and_does_not_stop_the_worker(store: Store) -> None:
    flow = Flow("gone")

    @flow.step
    def step(state: Any, ctx: Any) -> None:
        return None

    with store.open() as app:
        app.handlers.add_all(flow)
        lost = app.flows.start(flow, **PLACE)
        change(store, """UPDATE run SET position = replace(position, '"step"', '"elsewhere"')""")
        kept = app.flows.start(flow, workflow_id="t-2", owner_id="me")
        app.run_worker(1).drain()
        assert app.flows.get(kept.execution_id).status == "COMPLETED"
        failed = app.flows.get(lost.execution_id)
        assert failed.error is not None and (failed.status, failed.error.kind) == ("FAILED", "denied")
        with pytest.raises(Denied):
            app.flows.resume(lost.execution_id)


def test_a_worker_runs_once_at_a_time(store: Store) -> None:
    flow, inside, over = Flow("one"), threading.Event(), threading.Event()

    @flow.step
    def step(state: Any, ctx: Any) -> None:
        inside.set()
        assert over.wait(60)

    with store.open() as app:
        app.flows.start(flow, **PLACE)
        worker = app.run_worker(1)
        thread = threading.Thread(target=worker.drain)
        thread.start()
        assert inside.wait(60)
        with pytest.raises(Conflict):
            worker.drain()
        over.set()
        thread.join()
        assert worker.drain().runs == 0


def test_closing_does_not_wait_for_the_next_renewal(store: Store) -> None:
    """Whether what renews leases waits already or only begins to."""
    flow = Flow("one")

    @flow.step
    def step(state: Any, ctx: Any) -> None:
        return None

    for number in range(10):
        app = store.open(run_lease_s=3600)
        app.flows.run(flow, workflow_id=f"t-{number}", owner_id="me")
        closing = threading.Thread(target=app.close, daemon=True)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
