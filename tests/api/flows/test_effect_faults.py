"""Effects whose answer was not heard, and effects of conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from analemma import App, Flow
from analemma.errors import OutcomeUnknown
from tests.api.flows.runs import PLACE, place
from tests.api.flows.test_runner_faults import one_step


@pytest.mark.parametrize(
    ("how", "status", "calls"), [("fail", "FAILED", 1), ("ask", "WAITING_HUMAN", 1), ("retry", "COMPLETED", 2)]
)
@pytest.mark.parametrize("kind", ["def", "async"])
def test_an_effect_whose_answer_was_not_heard_is_decided_by_on_unknown(
    memory: App, how: Any, status: str, calls: int, kind: str
) -> None:
    for error in (OutcomeUnknown, TimeoutError, ConnectionResetError):
        keys: list[str] = []

        def charge(key: str, keys: list[str] = keys, error: type[Exception] = error) -> int:
            keys.append(key)
            if len(keys) == 1:
                raise error("no answer")
            return 1

        async def charge_async(key: str, charge: Callable[[str], int] = charge) -> int:
            return charge(key)

        def pay(state: Any, ctx: Any, charge: Callable[[str], int] = charge) -> dict[str, int]:
            return {"a": ctx.once("charge", charge, on_unknown=how)}

        async def pay_async(state: Any, ctx: Any, charge: Any = charge_async) -> dict[str, int]:
            return {"a": await ctx.once_async("charge", charge, on_unknown=how)}

        flow = one_step(pay if kind == "def" else pay_async, retries={"times": 2, "delay_s": 0.001})
        run = memory.flows.run(flow, **place())
        assert (run.status, len(keys), len(set(keys))) == (status, calls, 1), error
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
