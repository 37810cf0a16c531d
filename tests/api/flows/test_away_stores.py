"""A store that is away or late when a run asks it for something: the run waits where it stands, and has not failed. Its
own time, and what others do not answer its nodes, is another matter."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from analemma import App, Flow
from analemma.errors import AnalemmaError, Timeout, Unavailable
from analemma.testing import failpoints
from tests.api.flows.runs import PLACE
from tests.api.flows.test_humans_and_moves import be_late
from tests.api.flows.test_subflows import INPUT, order, shipping
from tests.raw_rows import change, select
from tests.stores import Store

BOTH = pytest.mark.parametrize("error", [Unavailable, Timeout])
LEASE_US = 30_000_000


def calling(calls: list[str], *, where: str, **options: Any) -> Flow:
    flow = Flow("calling")

    @flow.step(writes=["answer"], **options)
    def call(state: Any, ctx: Any) -> dict[str, int]:
        ctx.random()
        ctx.once("call", calls.append)
        return {"answer": 1}

    if where == "for_each":
        flow.for_each("each", over="items", step=call, result="answer", into="answers", max_parallel=1)
    return flow


def away(error: type[AnalemmaError] = Unavailable) -> Callable[[], None]:
    def fail() -> None:
        raise error("the database is away")

    return fail


def let_go(app: App, store: Store, *, at_once: bool) -> str:
    """The id of a run that nobody holds, and that has not failed; when somebody may go on with it."""
    (run,) = app.flows.runs()
    assert (run.status, run.holder, run.error, run.segments) == ("RUNNING", None, None, ())
    ((due_at, updated_at),) = select(store, "SELECT due_at, updated_at FROM run")
    # At once, as far as the time goes that all of it took; or when the lease would have ended.
    assert (due_at - updated_at < LEASE_US) == at_once
    return run.execution_id


@BOTH
@pytest.mark.parametrize("point", ["effect.after_intent", "effect.before_result"])
@pytest.mark.parametrize("where", ["step", "for_each"])
def test_a_store_that_is_away_inside_of_a_node_lets_the_run_go(
    app: App, store: Store, where: str, point: str, error: type[AnalemmaError]
) -> None:
    calls: list[str] = []
    with failpoints.call(point, away(error)), pytest.raises(error, match="away"):
        app.flows.run(calling(calls, where=where), {"items": [1]}, **PLACE)
    execution = let_go(app, store, at_once=error is Unavailable)
    assert app.flows.resume(execution).status == "COMPLETED"
    # Nobody knew of the one that was not recorded: it was called again, under its key.
    assert (len(calls), len(set(calls))) == (2 if point == "effect.before_result" else 1, 1)


def test_a_file_that_somebody_has_locked_lets_the_run_go(migrated_directory: Path) -> None:
    store, flow = Store(str(migrated_directory)), Flow("locked")
    with (
        closing(sqlite3.connect(migrated_directory / "catalog.db", isolation_level=None)) as other,
        store.open(sqlite_lock_timeout_s=0.1) as app,
    ):

        @flow.step(writes=["n"])
        def look(state: Any, ctx: Any) -> dict[str, float]:
            return {"n": ctx.random()}

        run = app.flows.start(flow, **PLACE)
        lock = lambda: other.execute("BEGIN IMMEDIATE")  # noqa: E731
        with failpoints.call("run.before_segment", lock), pytest.raises(Unavailable, match="locked"):
            app.flows.resume(run.execution_id)
        other.execute("ROLLBACK")
        found = app.flows.get(run.execution_id)
        assert (found.status, found.error, found.segments) == ("RUNNING", None, ())
        # Whoever had the file locked kept it from being let go of, too.
        change(store, "UPDATE run SET due_at = 1")
        assert app.flows.resume(run.execution_id).status == "COMPLETED"


def test_a_node_that_is_tried_again_does_not_let_the_run_go(app: App) -> None:
    calls: list[str] = []
    flow = calling(calls, where="step", retries={"times": 1, "delay_s": 0.001})
    with failpoints.call("effect.after_intent", away()):
        assert app.flows.run(flow, **PLACE).status == "COMPLETED"
    assert len(calls) == 1


def test_an_error_of_the_store_is_not_its_own_cause(app: App) -> None:
    with failpoints.call("effect.after_intent", away()), pytest.raises(Unavailable) as raised:
        app.flows.run(calling([], where="step"), **PLACE)
    assert raised.value.__cause__ is None and raised.value.__context__ is None


@BOTH
def test_a_store_that_is_away_for_what_a_task_came_to_lets_the_run_go(
    app: App, store: Store, error: type[AnalemmaError]
) -> None:
    calls: list[str] = []
    with failpoints.call("task.before_record", away(error)), pytest.raises(error, match="away"):
        app.flows.run(calling(calls, where="for_each"), {"items": [1]}, **PLACE)
    assert app.flows.resume(let_go(app, store, at_once=error is Unavailable)).status == "COMPLETED"
    assert len(calls) == 1


@pytest.mark.parametrize("verb", ["once", "reading"])
def test_what_is_away_from_the_node_itself_fails_it(app: App, verb: str) -> None:
    flow = Flow("elsewhere")

    def ask(*_: Any) -> None:
        raise Unavailable("the host is away")

    @flow.step
    def call(state: Any, ctx: Any) -> None:
        getattr(ctx, verb)("ask", ask)

    run = app.flows.run(flow, **PLACE)
    assert run.error is not None and (run.status, run.error.kind, run.error.node) == ("FAILED", "unavailable", "call")


def test_a_node_that_is_late_itself_fails(app: App) -> None:
    flow = Flow("late")

    @flow.step
    def call(state: Any, ctx: Any) -> None:
        ctx.once("before", lambda key: 1)
        raise Timeout("the host is late")

    run = app.flows.run(flow, **PLACE)
    assert run.error is not None and (run.status, run.error.kind, run.error.node) == ("FAILED", "timeout", "call")


@pytest.mark.parametrize("verb", ["reading", "once_here"])
def test_what_a_node_reads_or_does_here_lets_the_run_go_for_a_while(app: App, store: Store, verb: str) -> None:
    asked: list[int] = []
    flow = Flow("here")

    def ask(*_: Any) -> int:
        asked.append(1)
        if len(asked) == 1:
            raise Unavailable("perhaps the store is away")
        return 1

    @flow.step(writes=["n"])
    def call(state: Any, ctx: Any) -> dict[str, int]:
        return {"n": ctx.reading("look", ask, here=True) if verb == "reading" else ctx.once_here("do", ask)}

    with pytest.raises(Unavailable, match="perhaps"):
        app.flows.run(flow, **PLACE)
    done = app.flows.resume(let_go(app, store, at_once=False))
    assert (done.status, done.state, len(asked)) == ("COMPLETED", {"n": 1}, 2)


@BOTH
def test_a_subflow_that_cannot_be_begun_lets_the_run_go(app: App, error: type[AnalemmaError]) -> None:
    with failpoints.call("subflow.before_begin", away(error)), pytest.raises(error, match="away"):
        app.flows.run(order(shipping()), INPUT, **PLACE)
    (run,) = app.flows.runs()
    assert (run.status, run.holder, run.error, run.segment_id) == ("RUNNING", None, None, "ship")
    assert app.flows.resume(run.execution_id).state["said"] == "TO OSLO!"


@BOTH
def test_a_decision_that_nobody_made_in_time_is_made_later(app: App, store: Store, error: type[AnalemmaError]) -> None:
    flow = Flow("asks")
    flow.human("ok", choices=["yes"], timeout_s=3600, default="yes")
    run = app.flows.run(flow, **PLACE)
    be_late(store)
    with failpoints.call("commit.before_transaction", away(error)):
        assert app.run_worker(1).drain().failed == 1
    assert app.flows.get(run.execution_id).status == "WAITING_HUMAN"
    be_late(store)
    app.run_worker(1).drain()
    assert app.flows.get(run.execution_id).state["ok"]["choice"] == "yes"


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


def test_a_subflow_whose_time_is_over_fails_the_run(app: App, store: Store) -> None:
    child = Flow("asks")
    child.human("ask", choices=["yes"])
    flow = Flow("parent")
    flow.subflow("ask", child, outputs={"said": "/ask/choice"}, timeout_s=60)
    app.flows.register(flow)
    run = app.flows.start(flow, **PLACE)
    app.run_worker(1).drain()
    change(store, "UPDATE run SET begun_at = 1, due_at = CASE WHEN name = 'parent' THEN 1 END")
    app.run_worker(1).drain()
    run = app.flows.get(run.execution_id)
    assert run.error is not None and (run.status, run.error.kind, run.error.node) == ("FAILED", "timeout", "ask")
    assert run.error.hint == "raise its timeout_s"
