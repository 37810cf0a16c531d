"""The collector keeps all of what it has to keep: what is nested deep, and what runs have recorded so far."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import analemma
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")


def text(seed: int) -> str:
    return f"{seed:05}" * 4000


def collect(store: Store) -> None:
    with store.open() as app:
        for _ in range(2):
            assert app.gc.run(grace_s=0).ok


def test_values_that_are_nested_deep_are_kept(store: Store) -> None:
    """Guard: links of leaves are followed as far as they lead."""
    value: Any = [text(number) for number in range(20)]
    for level in range(6):
        value = {f"level {level}": value, "beside": [text(100 * level + number) for number in range(3)]}
    with store.open() as app:
        app.kernel.save_state_delta({"value": value}, **PLACE)
    collect(store)
    with store.open() as app:
        assert app.kernel.load_latest_state(**PLACE) == {"value": value}


def test_what_an_effect_answered_is_kept_until_its_run_is_over(store: Store) -> None:
    """Guard: results of effects that are too large for their rows are roots."""
    calls: list[str] = []

    def trip(*, fails: bool) -> analemma.Flow:
        def fetch(key: str) -> str:
            calls.append(key)
            return text(1)

        def plan(state: Any, ctx: Any) -> dict[str, str]:
            found = ctx.once("fetch", fetch)
            if fails:
                raise ValueError("not yet")
            return {"plan": found}

        flow = analemma.Flow("trip")
        flow.step(plan, writes=["plan"])
        return flow

    with store.open() as app:
        run = app.flows.run(trip(fails=True), {}, **PLACE)
        assert run.status == "FAILED"
    collect(store)
    with store.open() as app:
        app.flows.register(trip(fails=False))
        done = app.flows.resume(run.execution_id)
        assert (done.status, done.state) == ("COMPLETED", {"plan": text(1)})
    assert len(calls) == 1


def test_what_tasks_came_to_is_kept_until_their_run_is_over(store: Store) -> None:
    """Guard: results of tasks are roots."""
    calls: list[int] = []

    def trip(*, fails: bool) -> analemma.Flow:
        def look(state: Any, ctx: Any) -> dict[str, str]:
            if fails and state["number"] == 3:
                raise ValueError("not yet")
            calls.append(state["number"])
            return {"found": text(state["number"])}

        flow = analemma.Flow("trip")
        flow.step(look, reads=["number"], writes=["found"])
        flow.for_each("each", over="numbers", step=look, item="number", result="found", into="all", max_parallel=1)
        return flow

    with store.open() as app:
        run = app.flows.run(trip(fails=True), {"numbers": [1, 2, 3]}, **PLACE)
        assert run.status == "FAILED"
    collect(store)
    with store.open() as app:
        app.flows.register(trip(fails=False))
        done = app.flows.resume(run.execution_id)
        assert (done.status, done.state["all"]) == ("COMPLETED", [text(number) for number in (1, 2, 3)])
    assert calls == [1, 2, 3]
