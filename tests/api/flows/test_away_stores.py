"""A store that does not answer what a node asks of its context: the run waits where it stands, and has not failed."""

from __future__ import annotations

from typing import Any

import pytest

from analemma import App, Flow
from analemma.catalog.effects import EffectRows
from analemma.catalog.run_tasks import TaskRows
from analemma.errors import AnalemmaError, Timeout, Unavailable
from analemma.state.block_store import BlockStore
from tests.api.flows.test_running import PLACE, app, quiet
from tests.stores import Store

__all__ = ["app", "quiet"]


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


def fail_once(
    patched: pytest.MonkeyPatch, method: str, error: type[AnalemmaError] = Unavailable, rows: Any = EffectRows
) -> None:
    """The store is away the first time that it is asked for this."""
    real, asked = getattr(rows, method), [0]

    def away(self: Any, *arguments: Any) -> Any:
        asked[0] += 1
        if asked[0] == 1:
            raise error("the database is away")
        return real(self, *arguments)

    patched.setattr(rows, method, away)


def let_go(app: App, *, at_once: bool) -> str:
    """The id of a run that nobody holds, and that has not failed; when somebody may go on with it."""
    (run,) = app.flows.runs()
    assert (run.status, run.holder, run.error, run.segments) == ("RUNNING", None, None, ())
    row = app.flows._row(run.execution_id)
    assert row.due_at_us is not None
    wait_s = (row.due_at_us - row.updated_at_us) / 1_000_000
    # A lease is 30 s.
    assert wait_s < 10 if at_once else wait_s > 20
    return run.execution_id


@pytest.mark.parametrize("method", ["put", "begin", "end"])
@pytest.mark.parametrize("where", ["step", "for_each"])
def test_a_store_that_is_away_inside_of_a_node_lets_the_run_go(
    app: App, monkeypatch: pytest.MonkeyPatch, where: str, method: str
) -> None:
    calls: list[str] = []
    with monkeypatch.context() as patched:
        fail_once(patched, method)
        with pytest.raises(Unavailable, match="away"):
            app.flows.run(calling(calls, where=where), {"items": [1]}, **PLACE)
    (run,) = app.flows.runs()
    assert (run.status, run.holder, run.error, run.segments) == ("RUNNING", None, None, ())
    assert app.flows.resume(run.execution_id).status == "COMPLETED"
    # Nobody knew of the one that was not recorded: it was called again, under its key.
    assert (len(calls), len(set(calls))) == (2 if method == "end" else 1, 1)


def test_a_node_that_is_tried_again_does_not_let_the_run_go(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fail_once(monkeypatch, "begin")
    flow = calling(calls, where="step", retries={"times": 1, "delay_s": 0.001})
    assert app.flows.run(flow, **PLACE).status == "COMPLETED"
    assert len(calls) == 1


def test_what_is_away_from_the_node_itself_fails_it(app: App) -> None:
    flow = Flow("elsewhere")

    @flow.step
    def call(state: Any, ctx: Any) -> None:
        def ask(key: str) -> None:
            raise Unavailable("the host is away")

        ctx.once("ask", ask)

    run = app.flows.run(flow, **PLACE)
    assert run.error is not None and (run.status, run.error.kind, run.error.node) == ("FAILED", "unavailable", "call")


@pytest.mark.parametrize("method", ["put", "begin", "end"])
@pytest.mark.parametrize("where", ["step", "for_each"])
def test_a_store_that_is_late_inside_of_a_node_lets_the_run_go_for_a_while(
    app: App, monkeypatch: pytest.MonkeyPatch, where: str, method: str
) -> None:
    calls: list[str] = []
    with monkeypatch.context() as patched:
        fail_once(patched, method, Timeout)
        with pytest.raises(Timeout, match="away"):
            app.flows.run(calling(calls, where=where), {"items": [1]}, **PLACE)
    execution = let_go(app, at_once=False)
    assert app.flows.resume(execution).status == "COMPLETED"
    assert (len(calls), len(set(calls))) == (2 if method == "end" else 1, 1)


def test_a_store_that_is_late_for_what_a_task_came_to_lets_the_run_go(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    with monkeypatch.context() as patched:
        fail_once(patched, "record", Timeout, TaskRows)
        with pytest.raises(Timeout, match="away"):
            app.flows.run(calling(calls, where="for_each"), {"items": [1]}, **PLACE)
    assert app.flows.resume(let_go(app, at_once=False)).status == "COMPLETED"
    assert len(calls) == 1


def test_a_node_that_is_late_itself_fails(app: App) -> None:
    flow = Flow("late")

    @flow.step
    def call(state: Any, ctx: Any) -> None:
        ctx.once("before", lambda key: 1)
        raise Timeout("the host is late")

    run = app.flows.run(flow, **PLACE)
    assert run.error is not None and (run.status, run.error.kind, run.error.node) == ("FAILED", "timeout", "call")


def reading_late(where: str, asked: list[int]) -> Flow:
    """Reads a part of the state that is in a block of its own, which is asked for when the node is run."""
    flow = Flow("lazy")

    def look(state: Any, ctx: Any) -> dict[str, int]:
        asked.append(1)
        return {"m": len(state["big"]["k250"])}

    def answer(state: Any, ctx: Any) -> None:
        pass

    def is_long(state: Any, ctx: Any) -> bool:
        return look(state, ctx)["m"] > 10

    if where == "condition":
        flow.branch("is_it", [(is_long, flow.step(answer))], default=[], reads=["big"])
    else:
        flow.step(look, reads=["big"], writes=["m"])
    if where == "for_each":
        flow.for_each("each", over="items", step=look, result="m", max_parallel=1)
    return flow


@pytest.mark.parametrize("where", ["step", "condition", "for_each"])
def test_a_store_that_is_away_when_a_node_reads_its_state_lets_the_run_go(
    store: Store, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    asked: list[int] = []
    flow = reading_late(where, asked)
    big = {f"k{number}": "x" * 5000 + str(number) for number in range(300)}
    with store.open() as app:
        app.flows.start(flow, {"big": big, "items": [1]}, **PLACE)
    real = BlockStore._read

    def away(self: BlockStore, blocks: Any) -> Any:
        if len(asked) == 1:
            raise Unavailable("the objects are away")
        return real(self, blocks)

    # Nothing is cached in a process that has just begun.
    with store.open() as app:
        monkeypatch.setattr(BlockStore, "_read", away)
        app.flows.register(flow)
        (run,) = app.flows.runs()
        with pytest.raises(Unavailable, match="objects are away"):
            app.flows.resume(run.execution_id)
        assert app.flows.resume(let_go(app, at_once=True)).status == "COMPLETED"
        assert len(asked) == 2


@pytest.mark.parametrize("verb", ["reading", "once_here"])
def test_what_a_node_reads_or_does_here_lets_the_run_go_for_a_while(app: App, verb: str) -> None:
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
    done = app.flows.resume(let_go(app, at_once=False))
    assert (done.status, done.state, len(asked)) == ("COMPLETED", {"n": 1}, 2)


def test_what_a_node_reads_elsewhere_fails_it(app: App) -> None:
    flow = Flow("elsewhere")

    @flow.step
    def call(state: Any, ctx: Any) -> None:
        def ask() -> None:
            raise Unavailable("the host is away")

        ctx.reading("ask", ask)

    run = app.flows.run(flow, **PLACE)
    assert run.error is not None and (run.status, run.error.kind) == ("FAILED", "unavailable")


def test_an_error_of_the_store_is_not_its_own_cause(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_once(monkeypatch, "begin")
    with pytest.raises(Unavailable) as raised:
        app.flows.run(calling([], where="step"), **PLACE)
    assert raised.value.__cause__ is None and raised.value.__context__ is None
