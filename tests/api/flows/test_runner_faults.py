"""What handlers, the store and others do at the worst moment: a run fails where it stands, waits, or goes on; it is
never lost, never moved back, and never tried again without end."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from analemma import App, Flow
from analemma.errors import Unavailable
from analemma.testing import failpoints
from tests.api.flows.runs import PLACE, place
from tests.raw_rows import change
from tests.stores import Store


def one_step(function: Callable[[Any, Any], Any], name: str = "one", **options: Any) -> Flow:
    flow = Flow(name)
    flow.step(writes=["a"], **options)(function)
    return flow


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Strange(BaseException):
    """Of no kind that anybody expects."""


async def cancelled(state: Any, ctx: Any) -> None:
    task = asyncio.ensure_future(asyncio.sleep(10))
    await asyncio.sleep(0)
    task.cancel()
    await task


def exits(state: Any, ctx: Any) -> None:
    sys.exit(3)


def closes(state: Any, ctx: Any) -> None:
    raise GeneratorExit


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (exits, {}, "SystemExit: 3"),
        (exits, {"timeout_s": 5}, "SystemExit: 3"),
        (cancelled, {}, "CancelledError"),
        (closes, {}, "GeneratorExit"),
    ],
    ids=["exit", "exit-apart", "cancelled", "generator"],
)
def test_what_would_end_the_program_fails_the_node(
    app: App, function: Callable[[Any, Any], Any], options: dict[str, Any], said: str
) -> None:
    run = app.flows.run(one_step(function, **options), **PLACE)
    assert run.status == "FAILED" and run.error is not None
    assert said in run.error.message and run.error.node == function.__name__


def test_a_condition_that_exits_fails_the_node_too(app: App) -> None:
    flow = Flow("asks")

    @flow.step(writes=["a"])
    def step(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": 1}

    flow.branch("which", [(exits, [step])], default=[])
    run = app.flows.run(flow, **PLACE)
    assert run.status == "FAILED" and run.error is not None and run.error.node == "which"


def test_a_handler_that_exits_leaves_the_worker_alive(store: Store) -> None:
    flow = one_step(exits)

    def good(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": 1}

    other = one_step(good, "good")
    with store.open() as app:
        app.flows.register(flow)
        app.flows.register(other)
        worker = app.run_worker(1)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            bad = app.flows.start(flow, **PLACE)
            fine = app.flows.start(other, workflow_id="t-2", owner_id="me")
            until(lambda: app.flows.get(fine.execution_id).status == "COMPLETED")
            assert app.flows.get(bad.execution_id).status == "FAILED"
        finally:
            worker.stop()
            thread.join()


def test_something_unheard_of_is_not_tried_again_at_once_and_keeps_no_other_run_waiting(store: Store) -> None:
    calls: list[str] = []

    def strange(state: Any, ctx: Any) -> None:
        calls.append(ctx.execution_id)
        raise Strange

    def good(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": 1}

    flow, other = one_step(strange), one_step(good, "good")
    with store.open() as app:
        bad = app.flows.start(flow, **PLACE)
        fine = app.flows.start(other, workflow_id="t-2", owner_id="me")
        app.flows.register(flow)
        app.flows.register(other)
        worked = app.run_worker(1).drain()
        assert (worked.runs, worked.failed) == (1, 1)
        assert app.flows.get(fine.execution_id).status == "COMPLETED"
        found = app.flows.get(bad.execution_id)
        assert (found.status, found.holder, len(calls)) == ("RUNNING", None, 1)
        app.run_worker(1).drain()
        assert len(calls) == 1
        assert change(store, "UPDATE run SET due_at = 1 WHERE status = 'RUNNING'") == 1
        app.run_worker(1).drain()
        assert len(calls) == 2


def test_an_error_that_cannot_be_printed_fails_the_run(app: App) -> None:
    def bad(state: Any, ctx: Any) -> None:
        raise Speechless

    run = app.flows.run(one_step(bad, retries={"times": 1, "delay_s": 0.001}), **PLACE)
    assert run.status == "FAILED" and run.error is not None
    assert (run.error.message, run.error.attempts) == ("Speechless", 2)


def test_what_is_refused_while_the_run_is_ours_fails_it(app: App) -> None:
    kept: list[Any] = []

    def keep(state: Any, ctx: Any) -> None:
        kept.append(ctx)

    def refused(state: Any, ctx: Any) -> None:
        # The context of a node whose time is over.
        kept[0].once("pay", lambda key: None)

    app.flows.run(one_step(keep), **place())
    run = app.flows.run(one_step(refused, "refused"), **PLACE)
    assert (run.status, run.holder) == ("FAILED", None)
    assert run.error is not None and run.error.kind == "conflict"


def test_a_store_that_is_away_between_segments_lets_the_run_go(app: App) -> None:
    flow = Flow("x", checkpoints="node")

    @flow.step(writes=["a"])
    def first(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": 1}

    @flow.step(writes=["b"])
    def second(state: Any, ctx: Any) -> dict[str, int]:
        return {"b": 1}

    with failpoints.call("run.before_segment", away, time=2), pytest.raises(Unavailable, match="away"):
        app.flows.run(flow, **PLACE)
    (run,) = app.flows.runs()
    assert (run.status, run.holder, run.error, run.segment_id) == ("RUNNING", None, None, "second")
    assert app.flows.resume(run.execution_id).state == {"a": 1, "b": 1}


def away() -> None:
    raise Unavailable("the database is away")


def test_a_run_that_is_cancelled_does_not_wait_for_its_next_attempt(app: App) -> None:
    failed = threading.Event()

    def bad(state: Any, ctx: Any) -> None:
        failed.set()
        raise ValueError("not now")

    flow = one_step(bad, retries={"times": 1, "delay_s": 3600, "maximum_delay_s": 3600})
    thread = threading.Thread(target=lambda: app.flows.run(flow, **PLACE), daemon=True)
    thread.start()
    assert failed.wait(60)
    app.flows.cancel(app.flows.runs()[0].execution_id)
    thread.join(60)
    assert not thread.is_alive()


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)
