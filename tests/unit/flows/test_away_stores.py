"""A store that does not answer what a node asks of its context: the run waits where it stands, and has not failed."""

from __future__ import annotations

from typing import Any

import pytest

from analemma.app import App
from analemma.catalog.effects import EffectRows
from analemma.errors import Unavailable
from analemma.flows.building import Flow
from tests.unit.flows.test_running import PLACE, app, quiet

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


def fail_once(patched: pytest.MonkeyPatch, method: str) -> None:
    """The store is away the first time that it is asked for this."""
    real, asked = getattr(EffectRows, method), [0]

    def away(self: EffectRows, *arguments: Any) -> Any:
        asked[0] += 1
        if asked[0] == 1:
            raise Unavailable("the database is away")
        return real(self, *arguments)

    patched.setattr(EffectRows, method, away)


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
