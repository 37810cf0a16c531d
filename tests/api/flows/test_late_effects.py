"""Attempts whose time is over, and what they still say of effects; attempts side by side."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from analemma import App, Flow
from analemma.testing import failpoints
from tests.api.flows.runs import PLACE, effects
from tests.stores import Store


def test_what_still_runs_after_its_time_can_do_nothing_more(app: App, store: Store) -> None:
    late: list[Any] = []
    over = threading.Event()
    flow = Flow("late")

    @flow.step(timeout_s=0.05)
    def slow(state: Any, ctx: Any) -> None:
        over.wait(60)
        for verb in (lambda: ctx.once("x", late.append), lambda: ctx.emit({"type": "T"}), ctx.now, ctx.uuid):
            try:
                verb()
            except Exception as exc:
                late.append(type(exc).__name__)
        late.append("end")

    assert app.flows.run(flow, **PLACE).status == "FAILED"
    over.set()
    until(lambda: late[-1:] == ["end"])
    assert late == ["Cancelled"] * 4 + ["end"]
    assert effects(store) == []


def until(holds: Any) -> None:
    end = time.monotonic() + 60
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    assert holds()


def test_an_attempt_that_is_late_and_succeeds_says_what_happened_for_the_next_as_well(app: App, store: Store) -> None:
    calls: list[str] = []
    began = threading.Event()
    flow = Flow("late")

    @flow.step(writes=["paid"], timeout_s=0.5, retries={"times": 1, "delay_s": 0.001})
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        def charge(key: str) -> int:
            calls.append(key)
            if len(calls) == 1:
                began.wait(60)
                return 1
            began.set()
            until(lambda: effects(store)[0][1] == "done")
            return 2

        return {"paid": ctx.once("charge", charge)}

    run = app.flows.run(flow, **PLACE)
    assert run.error is None and run.state == {"paid": 1}
    assert len(calls) == 2 and len(set(calls)) == 1
    assert effects(store)[0][1:] == ("done", 2)


def test_an_attempt_that_is_late_and_fails_says_nothing_of_the_next(app: App, store: Store) -> None:
    calls: list[str] = []
    late: list[Any] = []
    began = threading.Event()
    flow = Flow("late")

    @flow.step(writes=["paid"], timeout_s=0.5, retries={"times": 1, "delay_s": 0.001})
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        def charge(key: str) -> Any:
            calls.append(key)
            if len(calls) == 1:
                began.wait(60)
                raise ValueError("late")
            began.set()
            until(lambda: late)
            return effects(store)[0][1]

        try:
            return {"paid": ctx.once("charge", charge)}
        except ValueError as exc:
            late.append(exc)
            raise

    run = app.flows.run(flow, **PLACE)
    assert run.error is None and run.state == {"paid": "intent"}
    assert effects(store)[0][1:] == ("done", 2)


def test_what_two_attempts_read_is_what_was_recorded_first(app: App, store: Store) -> None:
    calls: list[int] = []
    began = threading.Event()
    flow = Flow("late")

    @flow.step(writes=["seen"], timeout_s=0.5, retries={"times": 1, "delay_s": 0.001})
    def look(state: Any, ctx: Any) -> dict[str, Any]:
        def read() -> int:
            calls.append(0)
            if len(calls) == 1:
                began.wait(60)
                return 1
            began.set()
            until(lambda: effects(store))
            return 2

        return {"seen": ctx.reading("look", read)}

    run = app.flows.run(flow, **PLACE)
    assert run.error is None and run.state == {"seen": 1}


@pytest.mark.both_stores("each has its own statement that begins an effect")
def test_what_was_done_when_it_is_begun_again_is_not_done_again(app: App, store: Store) -> None:
    calls: list[str] = []
    late = threading.Event()
    flow = Flow("late")

    @flow.step(writes=["paid"], timeout_s=1, retries={"times": 1, "delay_s": 0.001})
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        def charge(key: str) -> str:
            calls.append(key)
            late.wait(60)
            return "before"

        return {"paid": ctx.once("charge", charge)}

    def end() -> None:
        """The second attempt knows of an effect that was begun; behind its back the first one ends it."""
        late.set()
        until(lambda: effects(store)[0][1] == "done")

    with failpoints.call("effect.before_intent", end, time=2):
        run = app.flows.run(flow, **PLACE)
    assert run.error is None and run.state == {"paid": "before"}
    assert len(calls) == 1
