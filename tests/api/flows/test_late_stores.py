"""A store that does not answer in time what is asked outside of nodes: the run waits where it stands, and has not
failed. Its own time, and that of what it waits for, is another matter."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from analemma import App, Flow
from analemma.catalog.run_tasks import TaskRows
from analemma.catalog.runs import RunRows
from analemma.errors import AnalemmaError, Timeout, Unavailable
from analemma.flows.run_kernel import RunKernel
from tests.api.flows.test_away_stores import fail_once, let_go
from tests.api.flows.test_faults_between_segments import injecting
from tests.api.flows.test_running import PLACE, app, quiet
from tests.api.flows.test_subflows import INPUT, order, shipping
from tests.api.gc.collections import script
from tests.stores import Store

__all__ = ["app", "quiet"]

BOTH = pytest.mark.parametrize("error", [Unavailable, Timeout])


def each_item(fails: list[int] | None = None) -> Flow:
    flow = Flow("items")

    @flow.step(reads=["item"], writes=["twice"])
    def double(state: Any, ctx: Any) -> dict[str, int]:
        if fails:
            raise ValueError(fails.pop())
        return {"twice": state["item"] * 2}

    flow.for_each("each", over="items", step=double, result="twice", into="all", max_parallel=1)
    return flow


@BOTH
def test_a_subflow_that_cannot_be_looked_for_lets_the_run_go(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: type[AnalemmaError]
) -> None:
    with store.open() as app:
        with monkeypatch.context() as patched:
            fail_once(patched, "of_key", error, RunRows)
            with pytest.raises(error, match="away"):
                app.flows.run(order(shipping()), INPUT, **PLACE)
        (run,) = app.flows.runs()
        assert (run.status, run.holder, run.error, run.segment_id) == ("RUNNING", None, None, "ship")
        assert app.flows.resume(run.execution_id).state["said"] == "TO OSLO!"


@BOTH
def test_tasks_that_cannot_be_looked_for_let_the_run_go(
    app: App, monkeypatch: pytest.MonkeyPatch, error: type[AnalemmaError]
) -> None:
    with monkeypatch.context() as patched:
        fail_once(patched, "load", error, TaskRows)
        with pytest.raises(error, match="away"):
            app.flows.run(each_item(), {"items": [1, 2]}, **PLACE)
    done = app.flows.resume(let_go(app, at_once=error is Unavailable))
    assert (done.status, done.state["all"]) == ("COMPLETED", [2, 4])


def test_what_is_locked_in_the_database_lets_the_run_go(migrated_url: str, tmp_path: Path, quiet: None) -> None:
    flow = each_item([1])
    store = Store(migrated_url, str(tmp_path / "objects"))
    with psycopg.connect(migrated_url) as frozen, store.open(statement_timeout_s=0.3) as app:
        run = app.flows.run(flow, {"items": [1, 2]}, **PLACE)
        assert run.status == "FAILED"
        frozen.execute("LOCK TABLE run_task IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(Timeout):
            app.flows.resume(run.execution_id)
        run = app.flows.get(run.execution_id)
        assert (run.status, run.holder, run.error) == ("RUNNING", None, None)
        frozen.rollback()
        done = app.flows.resume(run.execution_id)
        assert (done.status, done.state["all"]) == ("COMPLETED", [2, 4])


@BOTH
@pytest.mark.parametrize("who", ["worker", "resume"])
def test_a_run_whose_manifest_cannot_be_read_is_let_go(
    app: App, monkeypatch: pytest.MonkeyPatch, error: type[AnalemmaError], who: str
) -> None:
    flow = each_item()
    app.flows.register(flow)
    run = app.flows.start(flow, {"items": [1]}, **PLACE)
    with monkeypatch.context() as patched:
        fail_once(patched, "newest", error, RunKernel)
        if who == "worker":
            # One that is away ends the drain; one that is late keeps no other run waiting.
            assert app.run_worker(1).drain().failed == 1
        else:
            with pytest.raises(error, match="away"):
                app.flows.resume(run.execution_id)
    assert app.flows.resume(let_go(app, at_once=error is Unavailable)).status == "COMPLETED"


@BOTH
def test_what_comes_next_is_read_again_if_it_could_not_be(
    app: App, monkeypatch: pytest.MonkeyPatch, error: type[AnalemmaError]
) -> None:
    flow = Flow("x", checkpoints="node")

    @flow.step(writes=["a"])
    def first(state: Any, ctx: Any) -> dict[str, int]:
        injecting(app, flow, "second", ctx.manifest_id)
        fail_once(monkeypatch, "plan", error, RunKernel)
        return {"a": 1}

    @flow.step(writes=["b"])
    def second(state: Any, ctx: Any) -> dict[str, int]:
        return {"b": 1}

    app.flows.handlers.add("x.extra", lambda state, ctx: {"extra": 1})
    with pytest.raises(error, match="away"):
        app.flows.run(flow, **PLACE)
    (run,) = app.flows.runs()
    assert (run.status, run.holder, run.error, run.segment_id) == ("RUNNING", None, None, "second")
    assert app.flows.resume(run.execution_id).state == {"a": 1, "extra": 1, "b": 1}


@BOTH
def test_a_decision_that_nobody_made_in_time_is_made_later(
    store: Store, monkeypatch: pytest.MonkeyPatch, quiet: None, error: type[AnalemmaError]
) -> None:
    flow = Flow("asks")
    flow.human("ok", choices=["yes"], timeout_s=0.05, default="yes")
    with store.open(run_lease_s=0.1) as app:
        run = app.flows.run(flow, **PLACE)
        time.sleep(0.06)
        with monkeypatch.context() as patched:
            fail_once(patched, "newest", error, RunKernel)
            assert app.run_worker(1).drain().failed == 1
        assert app.flows.get(run.execution_id).status == "WAITING_HUMAN"
        time.sleep(0.11)
        app.run_worker(1).drain()
        assert app.flows.get(run.execution_id).state["ok"]["choice"] == "yes"


@BOTH
def test_a_run_that_had_no_time_left_is_not_resumed_without_it(
    app: App, monkeypatch: pytest.MonkeyPatch, error: type[AnalemmaError]
) -> None:
    flow, slow = Flow("x", limits={"timeout_s": 0.3}), [0.35]

    @flow.step(writes=["a"])
    def step(state: Any, ctx: Any) -> dict[str, int]:
        time.sleep(slow[0])
        return {"a": 1}

    @flow.step(writes=["b"])
    def last(state: Any, ctx: Any) -> dict[str, int]:
        return {"b": 1}

    run = app.flows.run(flow, **PLACE)
    assert run.error is not None and (run.status, run.error.kind) == ("FAILED", "timeout")
    slow[0] = 0.0
    with monkeypatch.context() as patched:
        fail_once(patched, "stand_on", error, RunKernel)
        with pytest.raises(error, match="away"):
            app.flows.resume(run.execution_id)
    assert app.flows.get(run.execution_id).status == "FAILED"
    assert app.flows.resume(run.execution_id).status == "COMPLETED"


def test_a_look_at_the_lease_that_is_late_is_no_reason_to_fail(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    flow, asked = Flow("x"), list[bool]()

    @flow.step(writes=["a"])
    def slow(state: Any, ctx: Any) -> dict[str, int]:
        fail_once(monkeypatch, "is_held", Timeout, RunRows)
        time.sleep(0.6)
        asked.append(ctx.cancelled)
        return {"a": 1}

    assert app.flows.run(flow, **PLACE).status == "COMPLETED"
    assert asked == [False]


@pytest.mark.parametrize("where", ["step", "for_each"])
def test_a_run_whose_own_time_is_over_fails(app: App, where: str) -> None:
    flow = Flow("x", limits={"timeout_s": 0.2})

    @flow.step(writes=["a"])
    def step(state: Any, ctx: Any) -> dict[str, int]:
        time.sleep(0.15)
        return {"a": 1}

    if where == "for_each":
        flow.for_each("each", over="items", step=step, result="a", into="all", max_parallel=1)
    else:
        flow.loop("again", [step], times=3)
    run = app.flows.run(flow, {"items": [1, 2, 3]}, **PLACE)
    assert run.error is not None and (run.status, run.error.kind, run.error.type) == ("FAILED", "timeout", "Timeout")
    assert run.error.hint == "raise limits.timeout_s"


def test_a_subflow_whose_time_is_over_fails_the_run(store: Store, quiet: None) -> None:
    child = Flow("asks")
    child.human("ask", choices=["yes"])
    flow = Flow("parent")
    flow.subflow("ask", child, outputs={"said": "/ask/choice"}, timeout_s=60)
    with store.open() as app:
        app.flows.register(flow)
        run = app.flows.start(flow, **PLACE)
        app.run_worker(1).drain()
        script(app, "UPDATE run SET begun_at = 1, due_at = CASE WHEN name = 'parent' THEN 1 END")
        app.run_worker(1).drain()
        run = app.flows.get(run.execution_id)
        assert run.error is not None and (run.status, run.error.kind, run.error.node) == ("FAILED", "timeout", "ask")
        assert run.error.hint == "raise its timeout_s"
