"""Effects of which nobody knows whether they happened: tried again, asked about, or found out by somebody."""

from __future__ import annotations

from typing import Any

import pytest

from analemma import App, Flow
from analemma.errors import Conflict, Invalid, NotFound
from analemma.testing import failpoints
from tests.api.flows.runs import PLACE, die
from tests.api.flows.test_effects import Crash, Outside
from tests.raw_rows import select
from tests.stores import Store


def interrupted(app: App, outside: Outside, on_unknown: str) -> tuple[Flow, str]:
    """A run whose process ended between the effect and its record."""
    crash = [True]
    flow = Flow("pay")

    @flow.step(writes=["paid"])
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        def charge(key: str) -> int:
            outside(key)
            if crash[0]:
                crash[0] = False
                raise Crash
            return len(outside.calls)

        return {"paid": ctx.once("charge", charge, on_unknown=on_unknown)}

    with pytest.raises(Crash):
        app.flows.run(flow, **PLACE)
    (run,) = app.flows.runs()
    assert (run.status, run.holder) == ("RUNNING", None)
    return flow, run.execution_id


def test_nobody_knows_and_it_is_tried_again_under_the_same_key(app: App) -> None:
    outside = Outside()
    _, execution = interrupted(app, outside, "retry")
    assert app.flows.resume(execution).state == {"paid": 2}
    assert len(outside.calls) == 2 and len(set(outside.calls)) == 1


def test_nobody_knows_and_the_run_fails(app: App) -> None:
    outside = Outside()
    _, execution = interrupted(app, outside, "fail")
    run = app.flows.resume(execution)
    assert run.error is not None and (run.status, run.error.kind) == ("FAILED", "outcome_unknown")
    assert len(outside.calls) == 1


@pytest.mark.parametrize("unknown", ["happened", "did not"])
def test_a_run_that_failed_because_nobody_knew_goes_on_when_somebody_has_found_out(app: App, unknown: Any) -> None:
    outside = Outside()
    _, execution = interrupted(app, outside, "fail")
    failed = app.flows.resume(execution)
    assert failed.error is not None and failed.error.effect is not None and "unknown=" in (failed.error.hint or "")
    # Told nothing, it ends the same, as often as one likes.
    assert app.flows.resume(execution).error == failed.error and len(outside.calls) == 1
    big = {"id": "y" * 20_000}
    run = app.flows.resume(execution, unknown=unknown, result=big if unknown == "happened" else None)
    assert (run.status, run.error, run.incarnation) == ("COMPLETED", None, 1)
    assert run.state == {"paid": big if unknown == "happened" else 2}
    assert len(outside.calls) == (1 if unknown == "happened" else 2) and len(set(outside.calls)) == 1
    assert app.kernel.get_workflow(**PLACE).status == "COMPLETED"
    with pytest.raises(Conflict, match="nobody knows of"):
        app.flows.resume(execution, unknown="happened")


def test_only_what_nobody_knows_of_is_found_out(app: App) -> None:
    outside = Outside()
    _, execution = interrupted(app, outside, "fail")
    with pytest.raises(Conflict, match="leave out unknown"):
        app.flows.resume(execution, unknown="happened")
    app.flows.resume(execution)
    with pytest.raises(Invalid, match="'did not'"):
        app.flows.resume(execution, unknown="perhaps")  # type: ignore[arg-type]
    left = app.flows.resume(execution, unknown="did not", wait=False)
    assert (left.status, left.holder, len(outside.calls)) == ("RUNNING", None, 1)
    assert app.flows.resume(execution).state == {"paid": 2}


def late(calls: list[str], **options: Any) -> Flow:
    """Pays, and does not hear whether that happened."""
    flow = Flow("late")

    @flow.step(writes=["paid"], **options)
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        def charge(key: str) -> str:
            calls.append(key)
            raise TimeoutError("no answer")

        return {"paid": ctx.once("charge", charge, on_unknown="fail")}

    return flow


@pytest.mark.parametrize("group", [False, True], ids=["step", "for_each"])
def test_the_first_failure_says_already_what_is_to_be_found_out(app: App, group: bool) -> None:
    calls: list[str] = []
    flow = late(calls)
    if group:
        flow.for_each("each", over="items", step="pay", result="paid", into="all")
    failed = app.flows.run(flow, {"items": [1]}, **PLACE)
    assert failed.error is not None and failed.error.message == "no answer"
    assert failed.error.effect is not None and "unknown=" in (failed.error.hint or "")
    run = app.flows.resume(failed.execution_id, unknown="happened", result="ok")
    assert (run.status, run.state.get("all", run.state.get("paid"))) == ("COMPLETED", ["ok"] if group else "ok")
    assert len(calls) == 1


def test_what_was_found_out_is_not_kept_where_the_program_cannot_go_on(store: Store) -> None:
    flow = late([])
    with store.open() as app:
        failed = app.flows.run(flow, **PLACE)
    with store.open() as app:
        with pytest.raises(NotFound, match="not registered"):
            app.flows.resume(failed.execution_id, unknown="happened", result="ok")
        assert app.flows.get(failed.execution_id).error == failed.error
        before = select(store, "SELECT fence FROM run")[0][0]
        left = app.flows.resume(failed.execution_id, unknown="happened", result="ok", wait=False)
        assert (left.status, left.holder) == ("RUNNING", None)
        # The run is moved once, and not again by what leaves it to workers.
        assert select(store, "SELECT fence FROM run") == [(before + 1,)]
        app.flows.register(flow)
        assert app.flows.resume(failed.execution_id).state == {"paid": "ok"}


def test_a_worker_may_be_faster_with_what_was_found_out(app: App) -> None:
    failed = app.flows.run(late([]), **PLACE)
    with failpoints.call("run.after_move", lambda: app.run_worker(1).drain()):
        run = app.flows.resume(failed.execution_id, unknown="happened", result="ok")
    assert (run.status, run.state) == ("COMPLETED", {"paid": "ok"})


def test_a_worker_that_is_at_it_goes_on_with_what_was_found_out(app: App, store: Store) -> None:
    failed = app.flows.run(late([]), **PLACE)

    def take() -> None:
        with failpoints.call("run.after_claim", die):
            other.run_worker(1).drain()

    with store.open() as other:
        with failpoints.call("run.after_move", take):
            run = app.flows.resume(failed.execution_id, unknown="happened", result="ok", take_over=True)
        assert run.status == "RUNNING" and run.holder is not None


def test_a_result_is_of_what_happened(app: App) -> None:
    failed = app.flows.run(late([]), **PLACE)
    with pytest.raises(Invalid, match="a result"):
        app.flows.resume(failed.execution_id, result="ok")


@pytest.mark.parametrize("happened", [True, False], ids=["happened", "did not"])
def test_nobody_knows_and_somebody_is_asked(app: App, happened: bool) -> None:
    outside = Outside()
    _, execution = interrupted(app, outside, "ask")
    run = app.flows.resume(execution)
    assert run.status == "WAITING_HUMAN" and run.waiting is not None
    assert (run.waiting.kind, run.waiting.node, run.waiting.choices) == ("effect", "pay", ("happened", "did not"))
    big = {"id": "y" * 20_000}
    run = app.flows.approve(execution, "happened" if happened else "did not", "me", big if happened else None)
    assert run.status == "COMPLETED", run.error
    assert run.state == {"paid": big if happened else 2}
    assert len(outside.calls) == (1 if happened else 2)


def test_a_node_that_catches_everything_is_asked_about_all_the_same(app: App) -> None:
    _, execution = interrupted(app, Outside(), "ask")
    flow = Flow("pay")

    @flow.step(writes=["paid"])
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        try:
            ctx.once("charge", lambda key: 1, on_unknown="ask")
        except BaseException:
            pass
        return {"paid": "swallowed"}

    app.flows.register(flow)
    assert app.flows.resume(execution).status == "WAITING_HUMAN"


def test_an_unknown_answer_about_effects_is_refused(app: App) -> None:
    flow = Flow("names")

    @flow.step
    def step(state: Any, ctx: Any) -> None:
        ctx.once("x", lambda key: None, on_unknown="hope")

    run = app.flows.run(flow, **PLACE)
    assert run.error is not None and run.error.kind == "invalid"
