"""A run is one holder's at a time: nobody takes it from somebody who is at it, and nobody goes on with what was
cancelled."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

import analemma
from analemma.errors import Conflict
from analemma.testing import failpoints
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")


def trip(step: Callable[[Any, Any], Any]) -> analemma.Flow:
    step.__name__ = "plan"
    flow = analemma.Flow("trip")
    flow.step(step, writes=["plan"])
    return flow


def test_a_run_that_somebody_is_at_is_not_taken(store: Store) -> None:
    """Guard: a run is claimed only if nobody holds it, or its holder's lease is over."""
    with store.open() as app, store.open() as other:
        other.flows.register(trip(lambda state, ctx: {"plan": "other"}))

        def step(state: Any, ctx: Any) -> dict[str, str]:
            with pytest.raises(Conflict):
                other.flows.resume(ctx.execution_id)
            other.run_worker(1).drain()
            return {"plan": "first"}

        done = app.flows.run(trip(step), {}, **PLACE)
        assert (done.status, done.state) == ("COMPLETED", {"plan": "first"})
        assert len(app.kernel.history(**PLACE)) == 2


def test_of_two_who_take_a_run_at_once_one_has_it(store: Store) -> None:
    """Guard: claiming is one statement, whose conditions are looked at when the row is locked."""
    with store.open() as app, store.open() as other:
        for each in (app, other):
            each.flows.register(trip(lambda state, ctx: {"plan": "done"}))
        pending = app.flows.start(trip(lambda state, ctx: {"plan": "done"}), {}, **PLACE)
        with failpoints.paused("run.after_claim", lambda: app.flows.resume(pending.execution_id)) as held:
            with pytest.raises(Conflict):
                other.flows.resume(pending.execution_id)
            other.run_worker(1).drain()
            assert held.go_on().status == "COMPLETED"
        assert len(app.kernel.history(**PLACE)) == 2


def test_nothing_is_committed_of_a_run_that_was_cancelled_meanwhile(store: Store) -> None:
    """Guard: where a run stands is moved only while it is RUNNING; what was cancelled stays so."""
    with store.open() as app, store.open() as other:

        def step(state: Any, ctx: Any) -> dict[str, str]:
            other.flows.cancel(ctx.execution_id)
            return {"plan": "first"}

        done = app.flows.run(trip(step), {}, **PLACE)
        assert (done.status, done.state) == ("CANCELLED", {})
        assert app.flows.get(done.execution_id).status == "CANCELLED"
        assert len(app.kernel.history(**PLACE)) == 1


def test_a_run_that_went_on_meanwhile_is_not_cancelled_where_it_was(store: Store) -> None:
    """Guard: whoever cancels a run moves it from where he saw it, under its fence, or looks again."""
    with store.open() as app, store.open() as other:
        flow = trip(lambda state, ctx: {"plan": "done"})
        pending = app.flows.start(flow, {}, **PLACE)
        with failpoints.paused("run.before_move", lambda: app.flows.cancel(pending.execution_id)) as held:
            other.flows.register(flow)
            assert other.flows.resume(pending.execution_id).status == "COMPLETED"
            with pytest.raises(Conflict):
                held.go_on()
        assert app.flows.get(pending.execution_id).status == "COMPLETED"


def test_a_run_that_somebody_took_meanwhile_is_cancelled_where_it_is(store: Store) -> None:
    """Guard: the same while it is under way: where it stands by then is not written over with where it stood."""
    with store.open() as app, store.open() as other:

        def plan(state: Any, ctx: Any) -> dict[str, str]:
            return {"plan": "done"}

        def book(state: Any, ctx: Any) -> None:
            held.go_on()

        flow = analemma.Flow("trip", checkpoints="node")
        flow.step(plan, writes=["plan"])
        flow.step(book)
        pending = app.flows.start(flow, {}, **PLACE)
        with failpoints.paused("run.before_move", lambda: app.flows.cancel(pending.execution_id)) as held:
            other.flows.register(flow)
            other.flows.resume(pending.execution_id)
        found = app.flows.get(pending.execution_id)
        assert (found.status, found.state) == ("CANCELLED", {"plan": "done"})
