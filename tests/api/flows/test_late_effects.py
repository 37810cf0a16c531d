"""Attempts whose time is over, and what they still say of effects; attempts side by side."""

from __future__ import annotations

import threading
import time
from typing import Any

from analemma import App, Flow
from analemma.canon.standard_types import standard_registry
from analemma.canon.tree import Trees, no_blocks
from analemma.flows.context import Cancelled
from tests.api.flows.test_effects import PLACE, app, effects, quiet

__all__ = ["app", "quiet"]


def test_what_still_runs_after_its_time_can_do_nothing_more(app: App) -> None:
    late: list[Any] = []
    over = threading.Event()
    flow = Flow("late")

    @flow.step(timeout_s=0.05)
    def slow(state: Any, ctx: Any) -> None:
        over.wait(10)
        for verb in (lambda: ctx.once("x", late.append), lambda: ctx.emit({"type": "T"}), ctx.now, ctx.uuid):
            try:
                verb()
            except Cancelled as exc:
                late.append(type(exc))
        late.append("end")

    assert app.flows.run(flow, **PLACE).status == "FAILED"
    over.set()
    for _ in range(200):
        if late[-1:] == ["end"]:
            break
        time.sleep(0.02)
    assert late == [Cancelled] * 4 + ["end"]
    assert effects(app) == []


def until(holds: Any) -> None:
    end = time.monotonic() + 10
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    assert holds()


def test_an_attempt_that_is_late_and_succeeds_says_what_happened_for_the_next_as_well(app: App) -> None:
    calls: list[str] = []
    began = threading.Event()
    flow = Flow("late")

    @flow.step(writes=["paid"], timeout_s=1.5, retries={"times": 1, "delay_s": 0.001})
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        def charge(key: str) -> int:
            calls.append(key)
            if len(calls) == 1:
                began.wait(10)
                return 1
            began.set()
            until(lambda: effects(app)[0][1] == "done")
            return 2

        return {"paid": ctx.once("charge", charge)}

    run = app.flows.run(flow, **PLACE)
    assert run.error is None and run.state == {"paid": 1}
    assert len(calls) == 2 and len(set(calls)) == 1
    assert effects(app)[0][1:] == ("done", 2)


def test_an_attempt_that_is_late_and_fails_says_nothing_of_the_next(app: App) -> None:
    calls: list[str] = []
    late: list[Any] = []
    began = threading.Event()
    flow = Flow("late")

    @flow.step(writes=["paid"], timeout_s=1.5, retries={"times": 1, "delay_s": 0.001})
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        def charge(key: str) -> Any:
            calls.append(key)
            if len(calls) == 1:
                began.wait(10)
                raise ValueError("late")
            began.set()
            until(lambda: late)
            return effects(app)[0][1]

        try:
            return {"paid": ctx.once("charge", charge)}
        except ValueError as exc:
            late.append(exc)
            raise

    run = app.flows.run(flow, **PLACE)
    assert run.error is None and run.state == {"paid": "intent"}
    assert effects(app)[0][1:] == ("done", 2)


def test_what_two_attempts_read_is_what_was_recorded_first(app: App) -> None:
    calls: list[int] = []
    began = threading.Event()
    flow = Flow("late")

    @flow.step(writes=["seen"], timeout_s=1.5, retries={"times": 1, "delay_s": 0.001})
    def look(state: Any, ctx: Any) -> dict[str, Any]:
        def read() -> int:
            calls.append(0)
            if len(calls) == 1:
                began.wait(10)
                return 1
            began.set()
            until(lambda: effects(app))
            return 2

        return {"seen": ctx.reading("look", read)}

    run = app.flows.run(flow, **PLACE)
    assert run.error is None and run.state == {"seen": 1}


def test_what_was_done_when_it_is_begun_again_is_not_done_again(app: App) -> None:
    calls: list[str] = []
    flow = Flow("late")

    @flow.step(writes=["paid"])
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        # As an attempt would that is late: behind the back of this one, which knows of no effect.
        made = Trees(no_blocks, standard_registry()).build("before")
        body = made.root.id + made.blocks[0].data
        fence = app.flows._row(ctx.execution_id).fence
        known = {"key": "pay:-:-:pay:charge:0", "state": "done", "result": None, "body": body}
        app.catalog.engine.execute("put_effect", run=1, incarnation=1, fence=fence, **known)
        return {"paid": ctx.once("charge", calls.append)}

    run = app.flows.run(flow, **PLACE)
    assert run.error is None and run.state == {"paid": "before"}
    assert calls == []
