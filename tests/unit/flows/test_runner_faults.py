"""What handlers, the store and others do at the worst moment: a run fails where it stands, waits, or goes on; it is
never lost, never moved back, and never tried again without end."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from analemma.app import App
from analemma.catalog.runs import FencedOut, Move, RunRows
from analemma.errors import Conflict, Denied, OutcomeUnknown, Unavailable
from analemma.flows.building import Flow
from analemma.flows.run_kernel import ReadyPlan, RunKernel, Standing
from analemma.flows.segment_running import SegmentRun
from analemma.flows.segments import injected_segment
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "t-1", "owner_id": "me"}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open() as app:
        yield app


def one_step(function: Callable[[Any, Any], Any], name: str = "one", **options: Any) -> Flow:
    flow = Flow(name)
    flow.step(writes=["a"], **options)(function)
    return flow


def workflow_status(app: App) -> str:
    return str(app.kernel.get_workflow(**PLACE).status)


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
    with store.open(run_lease_s=1.0) as app:
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
        time.sleep(1.05)
        app.run_worker(1).drain()
        assert len(calls) == 2


def test_an_error_that_cannot_be_printed_fails_the_run(app: App) -> None:
    def bad(state: Any, ctx: Any) -> None:
        raise Speechless

    run = app.flows.run(one_step(bad, retries={"times": 1, "delay_s": 0.001}), **PLACE)
    assert run.status == "FAILED" and run.error is not None
    assert (run.error.message, run.error.attempts) == ("Speechless", 2)


def injecting(app: App, flow: Flow, before: str, manifest: str) -> None:
    plan = flow.plan()
    nodes = [{"id": "extra", "type": "python", "function": "x.extra"}]
    config = injected_segment("extra", nodes, plan, plan.numbers[before])
    app.kernel.inject_dynamic_segment(manifest, config, plan.numbers[before])


def test_a_segment_that_was_committed_stays_so_when_what_comes_next_is_refused(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, once = Flow("x", checkpoints="node"), [True]

    @flow.step(reads=["n"], writes=["n"])
    def first(state: Any, ctx: Any) -> None:
        state["n"] += 1
        if once.pop():
            injecting(app, flow, "second", ctx.manifest_id)
        once.append(False)

    @flow.step(writes=["b"])
    def second(state: Any, ctx: Any) -> dict[str, int]:
        return {"b": 1}

    app.flows.handlers.add("x.extra", lambda state, ctx: {"extra": 1})
    real, asked = RunKernel.plan, [0]

    def plan(self: RunKernel, standing: Standing) -> ReadyPlan:
        asked[0] += 1
        if asked[0] == 2:
            raise Denied("this program is too old for it")
        return real(self, standing)

    monkeypatch.setattr(RunKernel, "plan", plan)
    run = app.flows.run(flow, {"n": 0}, **PLACE)
    assert (run.status, run.state, run.segment_id) == ("FAILED", {"n": 1}, "second")
    assert [(each.segment_id, each.status) for each in run.segments] == [("first", "CONTINUE"), ("second", "FAILED")]
    run = app.flows.resume(run.execution_id)
    assert (run.status, run.state) == ("COMPLETED", {"n": 1, "extra": 1, "b": 1})
    assert [each.segment_id for each in run.segments] == ["first", "extra", "second"]


def asking(**options: Any) -> Flow:
    flow = Flow("asks", checkpoints="node")
    flow.human("ok", choices=["yes"], **options)

    @flow.step(writes=["a"])
    def after(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": 1}

    return flow


@pytest.mark.parametrize("late", [False, True], ids=["decided", "late"])
def test_what_is_injected_before_a_human_who_is_being_asked_does_not_come_first(store: Store, late: bool) -> None:
    flow = asking(timeout_s=0.1, default="yes")
    with store.open(run_lease_s=5.0) as app:
        app.flows.handlers.add("x.extra", lambda state, ctx: {"extra": 1})
        run = app.flows.run(flow, **PLACE)
        injecting(app, flow, "ok", run.manifest_id)
        if late:
            time.sleep(0.15)
            assert app.run_worker(1).drain().failed == 0
            run = app.flows.get(run.execution_id)
        else:
            run = app.flows.approve(run.execution_id, "yes", "ann")
        assert (run.status, "extra" in run.state, run.state["a"]) == ("COMPLETED", False, 1)


def test_a_decision_that_cannot_be_made_fails_its_run_and_no_other(store: Store) -> None:
    def good(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": 1}

    flow, other = asking(timeout_s=0.1, default="yes"), one_step(good, "good")
    with store.open(run_lease_s=5.0) as app:
        bad = app.flows.run(flow, **PLACE)
        app.catalog.engine.write(lambda tx: tx.execute("move_run", **lost_place(app, bad.execution_id)))
        time.sleep(0.15)
        fine = app.flows.start(other, workflow_id="t-2", owner_id="me")
        app.flows.register(other)
        assert app.run_worker(1).drain().failed == 0
        found = app.flows.get(bad.execution_id)
        assert found.status == "FAILED" and found.error is not None and found.error.kind == "denied"
        assert app.flows.get(fine.execution_id).status == "COMPLETED"
        assert workflow_status(app) == "FAILED"


def lost_place(app: App, execution: str) -> dict[str, Any]:
    """Where no manifest has a segment."""
    row = RunRows(app.catalog.engine, app.flows._parts.tenant).get(execution)
    assert row is not None
    position = row.position.replace('"ok"', '"gone"')
    return Move(
        row.number, row.fence, position, row.head, "WAITING_HUMAN", 1, "WAITING_HUMAN", row.waiting, due_in_s=0.05
    ).parameters()


def test_what_is_refused_while_the_run_is_ours_fails_it(app: App) -> None:
    def refused(state: Any, ctx: Any) -> None:
        raise FencedOut("an effect was done already")

    run = app.flows.run(one_step(refused), **PLACE)
    assert (run.status, run.holder) == ("FAILED", None)
    assert run.error is not None and run.error.kind == "conflict"


def test_a_commit_that_is_refused_while_the_run_is_ours_lets_it_go(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": 1}

    real = RunKernel.commit_segment

    def refused(self: RunKernel, *arguments: Any) -> Standing:
        raise FencedOut("nobody knows why")

    monkeypatch.setattr(RunKernel, "commit_segment", refused)
    run = app.flows.run(one_step(step), **PLACE)
    assert (run.status, run.holder) == ("RUNNING", None)
    monkeypatch.setattr(RunKernel, "commit_segment", real)
    assert app.flows.resume(run.execution_id).status == "COMPLETED"


@pytest.mark.parametrize("error", [OutcomeUnknown, TimeoutError, ConnectionResetError])
@pytest.mark.parametrize(
    ("how", "status", "calls"), [("fail", "FAILED", 1), ("ask", "WAITING_HUMAN", 1), ("retry", "COMPLETED", 2)]
)
@pytest.mark.parametrize("kind", ["def", "async"])
def test_an_effect_whose_answer_was_not_heard_is_decided_by_on_unknown(
    app: App, error: type[Exception], how: Any, status: str, calls: int, kind: str
) -> None:
    keys: list[str] = []

    def charge(key: str) -> int:
        keys.append(key)
        if len(keys) == 1:
            raise error("no answer")
        return 1

    async def charge_async(key: str) -> int:
        return charge(key)

    def pay(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": ctx.once("charge", charge, on_unknown=how)}

    async def pay_async(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": await ctx.once_async("charge", charge_async, on_unknown=how)}

    flow = one_step(pay if kind == "def" else pay_async, retries={"times": 2, "delay_s": 0.001})
    run = app.flows.run(flow, **PLACE)
    assert (run.status, len(keys), len(set(keys))) == (status, calls, 1)
    if how == "fail":
        assert run.error is not None and (run.error.kind, run.error.attempts) == ("outcome_unknown", 2)


def test_a_run_that_does_not_know_goes_on_as_its_hint_says(app: App) -> None:
    how, keys = ["fail"], list[str]()

    def charge(key: str) -> int:
        keys.append(key)
        raise OutcomeUnknown("no answer")

    def pay(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": ctx.once("charge", charge, on_unknown=how[0])}

    run = app.flows.run(one_step(pay, retries={"times": 5, "delay_s": 0.001}), **PLACE)
    assert run.error is not None and "let on_unknown be ask, and resume" in (run.error.hint or "")
    how[0] = "ask"
    run = app.flows.resume(run.execution_id)
    assert run.status == "WAITING_HUMAN"
    run = app.flows.approve(run.execution_id, "happened", "ann", 7)
    assert (run.status, run.state, len(keys)) == ("COMPLETED", {"a": 7}, 1)


def test_conditions_of_one_branch_do_not_share_effects(app: App) -> None:
    flow, keys = Flow("x"), list[str]()
    steps = []
    for name in ("first", "second", "third"):

        def step(state: Any, ctx: Any, name: str = name) -> dict[str, str]:
            return {"a": name}

        step.__name__ = name
        steps.append(flow.step(writes=["a"])(step))

    def answering(text: str) -> Callable[[str], str]:
        def answer(key: str) -> str:
            keys.append(key)
            return text

        return answer

    def one(state: Any, ctx: Any) -> bool:
        ctx.emit({"type": "Asked", "payload": {"by": 1}})
        return bool(ctx.once("ask", answering("one")) == "two")

    def two(state: Any, ctx: Any) -> bool:
        ctx.emit({"type": "Asked", "payload": {"by": 2}})
        return bool(ctx.once("ask", answering("two")) == "two")

    flow.branch("which", [(one, [steps[0]]), (two, [steps[1]])], default=[steps[2]])
    run = app.flows.run(flow, **PLACE)
    assert (run.status, run.state, len(set(keys))) == ("COMPLETED", {"a": "second"}, 2)
    assert app.outbox.status().pending == 2


def test_functions_of_one_condition_do_not_share_effects(app: App) -> None:
    def one(state: Any, ctx: Any) -> bool:
        return bool(ctx.once("ask", lambda key: True))

    def two(state: Any, ctx: Any) -> bool:
        return bool(ctx.once("ask", lambda key: False))

    app.flows.handlers.add("x.one", one)
    app.flows.handlers.add("x.two", two)
    both = {"all": [{"function": "x.one"}, {"function": "x.two"}]}
    nodes = [
        {"id": "which", "type": "branch", "cases": [{"when": both, "then": ["yes"]}], "default": []},
        {"id": "yes", "type": "human", "choices": ["y"]},
    ]
    assert app.flows.run({"workflow": "x", "nodes": nodes}, **PLACE).status == "COMPLETED"


def test_a_store_that_is_away_for_a_moment_is_no_reason_to_fail(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Flow("x", checkpoints="node")

    @flow.step(writes=["a"])
    def slow(state: Any, ctx: Any) -> dict[str, int]:
        time.sleep(0.6)
        return {"a": 1}

    @flow.step(writes=["b"])
    def second(state: Any, ctx: Any) -> dict[str, int]:
        return {"b": 1}

    real, asked = RunRows.is_held, [0]

    def is_held(self: RunRows, *arguments: Any) -> bool:
        asked[0] += 1
        if asked[0] == 1:
            raise Unavailable("the database is away")
        return real(self, *arguments)

    monkeypatch.setattr(RunRows, "is_held", is_held)
    assert app.flows.run(flow, **PLACE).status == "COMPLETED" and asked[0] >= 1


def test_a_store_that_is_away_inside_of_a_segment_lets_the_run_go(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": 1}

    flow = one_step(step)

    def away(self: SegmentRun) -> None:
        raise Unavailable("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(SegmentRun, "check", away)
        with pytest.raises(Unavailable):
            app.flows.run(flow, **PLACE)
    (run,) = app.flows.runs()
    assert (run.status, run.holder, run.error) == ("RUNNING", None, None)
    assert app.flows.resume(run.execution_id).status == "COMPLETED"


def test_a_rerun_has_its_time_anew_and_so_has_a_fork_and_a_resumed_run(app: App) -> None:
    flow, slow = Flow("x", limits={"timeout_s": 0.4}, checkpoints="node"), [0.0]

    @flow.step(writes=["a"])
    def step(state: Any, ctx: Any) -> dict[str, int]:
        time.sleep(slow[0])
        return {"a": 1}

    @flow.step(writes=["b"])
    def last(state: Any, ctx: Any) -> dict[str, int]:
        return {"b": 1}

    run = app.flows.run(flow, **PLACE)
    time.sleep(0.5)
    assert app.flows.rerun(run.execution_id, from_segment=0).status == "COMPLETED"
    slow[0] = 0.5
    forked = app.flows.rerun(run.execution_id, from_segment=0, fork=True)
    assert forked.status == "FAILED" and forked.error is not None and forked.error.kind == "timeout"
    slow[0] = 0.0
    assert app.flows.resume(forked.execution_id).status == "COMPLETED"
    slow[0] = 0.5
    failed = app.flows.rerun(run.execution_id, from_segment=0)
    assert failed.status == "FAILED"
    slow[0] = 0.0
    app.flows.resume(failed.execution_id, wait=False)
    app.run_worker(1).drain()
    assert app.flows.get(failed.execution_id).status == "COMPLETED"


def test_what_a_failed_run_stands_on_does_not_expire(app: App) -> None:
    flow, failing = Flow("x", checkpoints="node"), [True]

    @flow.step(writes=["a"])
    def first(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": 1}

    @flow.step(writes=["b"])
    def second(state: Any, ctx: Any) -> dict[str, int]:
        if failing[0]:
            raise ValueError("not now")
        return {"b": 1}

    run = app.flows.run(flow, **PLACE)
    for number in range(2):
        app.kernel.save_state_delta({"z": number}, **PLACE)
    app.kernel.set_retention(**PLACE, keep_last=1)
    plan = app.kernel.expire(**PLACE)
    assert {each.version.manifest_id: each.reasons for each in plan.kept}[run.manifest_id] == ("resumable",)
    assert len(plan.expired) == 2
    failing[0] = False
    assert app.flows.resume(run.execution_id).status == "COMPLETED"
    app.kernel.save_state_delta({"z": 9}, **PLACE)
    assert run.manifest_id in {each.manifest_id for each in app.kernel.expire(**PLACE).expired}


def test_a_decision_is_left_to_a_worker_before_what_this_program_does_not_have(app: App) -> None:
    flow = Flow("x", checkpoints="node")
    flow.human("ok", choices=["yes"])

    @flow.step(writes=["a"])
    def first(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": 1}

    flow.branch("which", [(Flow.where("q").equals(1), [first])], default=[])
    run = app.flows.run(flow.workflow(), {"q": 1}, **PLACE)
    run = app.flows.approve(run.execution_id, "yes", "ann")
    assert (run.status, run.segment_id, run.holder, run.error) == ("RUNNING", "first", None, None)
    app.flows.register(flow)
    assert app.run_worker(1).drain().runs == 1
    assert app.flows.get(run.execution_id).status == "COMPLETED"


def test_the_workflow_says_what_became_of_its_run(store: Store) -> None:
    flow = asking(timeout_s=0.1)
    with store.open(run_lease_s=5.0) as app:
        run = app.flows.run(flow, **PLACE)
        assert workflow_status(app) == "RUNNING"
        time.sleep(0.15)
        app.run_worker(1).drain()
        run = app.flows.get(run.execution_id)
        assert (run.status, workflow_status(app)) == ("FAILED", "FAILED")
        assert [(each.segment_id, each.status) for each in run.segments] == [("ok", "FAILED")]
        assert run.segments[0].error is not None and run.segments[0].error.kind == "timeout"
        assert app.flows.resume(run.execution_id).status == "WAITING_HUMAN"
        assert workflow_status(app) == "RUNNING"
        assert app.flows.cancel(run.execution_id).status == "CANCELLED"
        assert workflow_status(app) == "IDLE"


def test_another_trigger_is_another_request(app: App) -> None:
    nodes = [
        {"id": "one", "type": "trigger", "on": "manual"},
        {"id": "two", "type": "trigger", "on": "manual"},
        {"id": "ok", "type": "human", "choices": ["yes"]},
    ]
    edges = [{"from": "one", "to": "ok"}, {"from": "two", "to": "ok"}]
    document = {"workflow": "w", "nodes": nodes, "edges": edges}
    first = app.flows.run(document, idempotency_key="k", trigger={"node": "one"}, **PLACE)
    again = app.flows.run(document, idempotency_key="k", trigger={"node": "one"}, **PLACE)
    assert first.execution_id == again.execution_id
    with pytest.raises(Conflict, match="used for another run"):
        app.flows.run(document, idempotency_key="k", trigger={"node": "two"}, **PLACE)


def test_a_run_that_is_cancelled_does_not_wait_for_its_next_attempt(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()

    def bad(state: Any, ctx: Any) -> None:
        failed.set()
        raise ValueError("not now")

    monkeypatch.setattr("analemma.flows.segment_running.wait_before", lambda *arguments: 30.0)
    thread = threading.Thread(target=lambda: app.flows.run(one_step(bad, retries={"times": 1}), **PLACE), daemon=True)
    thread.start()
    assert failed.wait(10)
    app.flows.cancel(app.flows.runs()[0].execution_id)
    thread.join(8)
    assert not thread.is_alive()


def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)
