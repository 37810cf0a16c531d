"""Subflows: runs that other runs begin, wait for without being held, and take over from."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from analemma import App, Flow, Run
from analemma.errors import Conflict
from analemma.testing import failpoints
from tests.api.flows.runs import HOUR, die, take
from tests.raw_rows import change
from tests.stores import Store

DEEPEST = 10
PLACE: dict[str, Any] = {"workflow_id": "order-1", "owner_id": "me"}


def shipping(fails: list[str] | None = None) -> Flow:
    flow = Flow("shipping", checkpoints="node")

    @flow.step(reads=["address"], writes=["label"])
    def label(state: Any, ctx: Any) -> dict[str, str]:
        return {"label": f"to {state['address']}"}

    @flow.step(reads=["label"], writes=["result"])
    def send(state: Any, ctx: Any) -> dict[str, Any]:
        if fails:
            raise RuntimeError(fails.pop())
        ctx.emit({"type": "Sent"})
        return {"result": {"parcel": f"{state['label']}!"}}

    return flow


def order(child: Flow, **more: Any) -> Flow:
    flow = Flow("order")

    @flow.step(reads=["order"], writes=["order"])
    def check(state: Any, ctx: Any) -> None:
        state["order"]["checked"] = True

    flow.subflow("ship", child, inputs={"address": "/order/address"}, outputs={"parcel": "/result/parcel"}, **more)

    @flow.step(reads=["parcel"], writes=["said"])
    def say(state: Any, ctx: Any) -> dict[str, str]:
        return {"said": state["parcel"].upper()}

    return flow


INPUT = {"order": {"address": "oslo"}}


def child_of(app: App, run: Run) -> Run:
    (found,) = [each for each in app.flows.runs() if each.parent == run.execution_id]
    return found


def test_a_subflow_is_run_here_and_its_outputs_are_copied(store: Store) -> None:
    with store.open() as app:
        run = app.flows.run(order(shipping()), INPUT, **PLACE)
        assert (run.status, run.error) == ("COMPLETED", None)
        assert run.state == {"order": {"address": "oslo", "checked": True}, "parcel": "to oslo!", "said": "TO OSLO!"}
        assert [(each.segment_id, each.status, each.attempts) for each in run.segments] == [
            ("check", "CONTINUE", 1),
            ("ship", "CONTINUE", 1),
            ("say", "COMPLETE", 1),
        ]
        child = child_of(app, run)
        assert (child.status, child.name, child.owner_id) == ("COMPLETED", "shipping", "me")
        assert child.idempotency_key == child.workflow_id == f"{run.execution_id}/ship/0"
        assert child.state["address"] == "oslo" and "order" not in child.state
        assert app.outbox.status().pending == 1


def test_nobody_holds_a_run_that_waits_and_the_childs_end_wakes_it_at_once(store: Store) -> None:
    seen: list[Any] = []
    child = Flow("shipping")
    with store.open(run_lease_s=600) as app:

        @child.step(writes=["result"])
        def send(state: Any, ctx: Any) -> dict[str, Any]:
            waits = app.flows.get(run.execution_id)
            seen.append((waits.status, waits.holder, waits.segments[-1].status))
            assert waits.waiting is not None
            assert (waits.waiting.kind, waits.waiting.child) == ("subflow", ctx.execution_id)
            assert waits.waiting.until is None
            # The child alone is due; when it is over, the parent is.
            assert app.run_worker(1).drain().runs == 0
            return {"result": {"parcel": "x"}}

        flow = order(child)
        app.flows.register(flow)
        run = app.flows.start(flow, INPUT, **PLACE)
        assert app.run_worker(1).drain().runs == 3
        assert seen == [("RUNNING", None, "PAUSED")]
        assert app.flows.get(run.execution_id).state["said"] == "X"


def test_workers_side_by_side_run_children_and_parents_once_each(store: Store) -> None:
    flow = order(shipping())
    with store.open() as app, store.open() as other:
        for each in (app, other):
            each.handlers.add_all(flow)
        runs = [app.flows.start(flow, INPUT, workflow_id=f"o-{number}", owner_id="me") for number in range(8)]
        workers = [app.run_worker(3), other.run_worker(3)]
        threads = [threading.Thread(target=worker.drain) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # One may have found nothing while the other had the last in its hands.
        app.run_worker(1).drain()
        assert [app.flows.get(run.execution_id).status for run in runs] == ["COMPLETED"] * 8
        assert len(app.flows.runs()) == 16 and app.outbox.status().pending == 8


def test_a_childs_failure_fails_the_parent_and_resuming_the_parent_goes_on_with_the_child(store: Store) -> None:
    flow = order(shipping(["no stamps"]))
    with store.open() as app:
        run = app.flows.run(flow, INPUT, **PLACE)
        child = child_of(app, run)
        assert (run.status, child.status) == ("FAILED", "FAILED")
        assert run.error is not None and run.error.node == "ship"
        assert "no stamps" in run.error.message and child.execution_id in run.error.message
        assert run.segments[-1].status == "FAILED"
        run = app.flows.resume(run.execution_id)
        assert (run.status, run.state["parcel"]) == ("COMPLETED", "to oslo!")
        # What the child had done was not done again.
        assert [each.segment_id for each in child_of(app, run).segments] == ["label", "send"]


def test_a_childs_failure_reaches_a_parent_that_workers_run(store: Store) -> None:
    flow = order(shipping(["no stamps", "no glue"]))
    with store.open() as app:
        app.handlers.add_all(flow)
        run = app.flows.start(flow, INPUT, **PLACE)
        app.run_worker(2).drain()
        assert app.flows.get(run.execution_id).status == "FAILED"
        app.flows.resume(run.execution_id, wait=False)
        app.run_worker(2).drain()
        failed = app.flows.get(run.execution_id)
        assert failed.error is not None and "no stamps" in failed.error.message
        app.flows.resume(run.execution_id, wait=False)
        app.run_worker(2).drain()
        assert app.flows.get(run.execution_id).status == "COMPLETED"


def test_a_subflow_with_retries_is_tried_again(store: Store) -> None:
    flow = order(shipping(["one", "two"]), retries={"times": 2, "delay_s": 0.01})
    with store.open() as app:
        run = app.flows.run(flow, INPUT, **PLACE)
        assert (run.status, run.segments[1].attempts) == ("COMPLETED", 3)


def test_a_child_that_was_cancelled_fails_the_parent_and_a_rerun_begins_another(store: Store) -> None:
    child = Flow("asks")
    child.human("ask", choices=["yes"])
    flow = Flow("parent")
    flow.subflow("ask", child, outputs={"said": "/ask/choice"})
    with store.open() as app:
        run = app.flows.run(flow, **PLACE)
        assert run.status == "RUNNING" and run.waiting is not None and run.waiting.child is not None
        first = run.waiting.child
        app.flows.cancel(first)
        run = app.flows.resume(run.execution_id)
        assert run.error is not None and (run.status, run.error.kind) == ("FAILED", "conflict")
        run = app.flows.rerun(run.execution_id, from_segment="ask")
        assert run.waiting is not None and run.waiting.child not in (None, first)
        second = app.flows.get(run.waiting.child or "")
        assert second.idempotency_key == f"{run.execution_id}.2/ask/0"
        # Whoever decides for the child goes on with the parent, too.
        assert app.flows.approve(second.execution_id, "yes", "me").status == "COMPLETED"
        assert app.flows.get(run.execution_id).state == {"said": "yes"}


def test_cancelling_the_parent_cancels_what_it_waits_for_down_to_the_last(store: Store) -> None:
    last = Flow("last")
    last.human("ask", choices=["yes"])
    middle = Flow("middle")
    middle.subflow("go", last)
    first = Flow("first")
    first.subflow("go", middle)
    with store.open() as app:
        run = app.flows.run(first, **PLACE)
        assert sorted(each.status for each in app.flows.runs()) == ["RUNNING", "RUNNING", "WAITING_HUMAN"]
        app.flows.cancel(run.execution_id)
        assert [each.status for each in app.flows.runs()] == ["CANCELLED"] * 3
        with pytest.raises(Conflict):
            app.flows.approve(app.flows.runs()[0].execution_id, "yes", "me")
        assert app.run_worker(1).drain().runs == 0


def test_a_loop_begins_one_child_per_iteration(store: Store) -> None:
    child = Flow("double")

    @child.step(reads=["n"], writes=["n"])
    def double(state: Any, ctx: Any) -> None:
        state["n"] *= 2

    flow = Flow("looping")
    flow.subflow("twice", child, inputs={"n": "n"}, outputs={"n": "n"})
    flow.loop("again", ["twice"], times=3)
    with store.open() as app:
        run = app.flows.run(flow, {"n": 1}, **PLACE)
        assert (run.status, run.state) == ("COMPLETED", {"n": 8})
        keys = sorted(each.idempotency_key or "" for each in app.flows.runs() if each.parent)
        assert keys == [f"{run.execution_id}/twice/{count}" for count in (1, 2, 3)]


def test_a_document_that_is_not_here_fails_the_run_which_goes_on_once_it_is(store: Store) -> None:
    flow = Flow("order")
    flow.subflow("ship", "shipping", inputs={"address": "address"}, outputs={"parcel": "/result/parcel"})
    with store.open() as app:
        run = app.flows.run(flow, {"address": "oslo"}, **PLACE)
        assert run.error is not None and (run.error.kind, run.error.node) == ("not_found", "ship")
        assert "shipping" in run.error.message and app.flows.runs() == [app.flows.get(run.execution_id)]
        app.flows.register(shipping())
        assert app.flows.resume(run.execution_id).state["parcel"] == "to oslo!"


def test_a_pinned_document_is_the_only_one_that_is_run(store: Store) -> None:
    child = shipping()
    flow = order(child, document="0" * 64)
    with store.open() as app:
        run = app.flows.run(flow, INPUT, **PLACE)
        assert run.error is not None and run.error.kind == "not_found" and "000000000000" in run.error.message
        pinned = order(child, document=child.workflow().hash)
        assert app.flows.run(pinned, INPUT, **PLACE).status == "COMPLETED"


def test_workflows_that_run_each_other_come_to_an_end(store: Store) -> None:
    one, other = Flow("one"), Flow("other")
    one.subflow("go", other)
    other.subflow("go", one)
    with store.open() as app:
        run = app.flows.run(one, **PLACE)
        assert run.error is not None and (run.status, run.error.kind) == ("FAILED", "limit")
        assert len(app.flows.runs()) == DEEPEST + 1


def test_paths_that_lead_nowhere_are_named(memory: App) -> None:
    cases: list[tuple[dict[str, str], dict[str, str], str]] = [
        ({"address": "/order/street"}, {}, "nothing at /order/street"),
        ({"address": "/order/address"}, {"parcel": "/result/price"}, "ended without /result/price"),
    ]
    for number, (inputs, outputs, said) in enumerate(cases):
        flow = Flow("order")
        flow.subflow("ship", shipping(), inputs=inputs, outputs=outputs)
        run = memory.flows.run(flow, INPUT, workflow_id=f"nowhere-{number}", owner_id="me")
        assert run.error is not None and (run.status, run.error.kind) == ("FAILED", "not_found")
        assert said in run.error.message


def test_a_subflow_inside_of_a_group_is_refused_and_begins_nothing(store: Store) -> None:
    flow = Flow("grouped")
    flow.subflow("ship", shipping())
    flow.for_each("all", over="items", steps=["ship"])
    with store.open() as app:
        run = app.flows.run(flow, {"items": [1, 2]}, **PLACE)
        assert run.error is not None and (run.status, run.error.kind) == ("FAILED", "denied")
        assert "inside of a group" in run.error.message and len(app.flows.runs()) == 1


def test_a_subflow_that_takes_too_long_is_cancelled(store: Store) -> None:
    child = Flow("asks")
    child.human("ask", choices=["yes"])
    flow = Flow("parent")
    flow.subflow("ask", child, timeout_s=3600)
    with store.open() as app:
        app.handlers.add_all(flow)
        run = app.flows.start(flow, **PLACE)
        app.run_worker(1).drain()
        change(store, "UPDATE run SET begun_at = begun_at - ?, due_at = due_at - ?", [HOUR, HOUR])
        app.run_worker(1).drain()
        late = app.flows.get(run.execution_id)
        assert late.error is not None and (late.status, late.error.kind) == ("FAILED", "timeout")
        assert child_of(app, run).status == "CANCELLED"


def test_a_child_is_not_forgotten_while_its_parent_may_go_on(store: Store) -> None:
    with store.open() as app:
        run = app.flows.run(order(shipping(["no stamps"])), INPUT, **PLACE)
        assert run.status == "FAILED"
        long_ago = "UPDATE run SET ended_at = ended_at - 1000000000 WHERE parent IS NOT NULL"
        change(store, long_ago)
        assert app.flows.forget(500) == 0
        assert app.flows.resume(run.execution_id).status == "COMPLETED"
        change(store, long_ago)
        assert app.flows.forget(500) == 1
        assert [each.execution_id for each in app.flows.runs()] == [run.execution_id]


def meanwhile(app: App, point: str, does: Callable[[], object]) -> None:
    """Let a worker work, and something else happen at a failpoint, the first time that it is passed."""
    with failpoints.call(point, does):
        app.run_worker(1).drain()


def test_nothing_is_born_to_a_parent_that_was_cancelled(store: Store) -> None:
    flow = order(shipping())
    with store.open() as app:
        app.handlers.add_all(flow)
        run = app.flows.start(flow, INPUT, **PLACE)
        meanwhile(app, "subflow.before_begin", lambda: app.flows.cancel(run.execution_id))
        assert [each.status for each in app.flows.runs()] == ["CANCELLED"]


def test_a_parent_that_is_cancelled_before_it_waits_takes_its_child_along(store: Store) -> None:
    flow = order(shipping())
    with store.open() as app:
        app.handlers.add_all(flow)
        run = app.flows.start(flow, INPUT, **PLACE)
        meanwhile(app, "subflow.after_begin", lambda: app.flows.cancel(run.execution_id))
        assert [each.status for each in app.flows.runs()] == ["CANCELLED", "CANCELLED"]


def test_a_child_that_ends_before_its_parent_waits_is_not_waited_for(store: Store) -> None:
    flow = order(shipping())
    with store.open() as app, store.open() as other:
        for each in (app, other):
            each.handlers.add_all(flow)
        run = app.flows.start(flow, INPUT, **PLACE)
        seen: list[str] = []

        def end_it() -> None:
            other.run_worker(1).drain()
            seen.append(child_of(app, run).status)

        meanwhile(app, "subflow.after_begin", end_it)
        assert seen == ["COMPLETED"]
        assert app.flows.get(run.execution_id).state["said"] == "TO OSLO!"


def test_a_rerun_leaves_the_child_that_its_next_incarnation_began_alone(store: Store) -> None:
    child = Flow("asks")
    child.human("ask", choices=["yes"])
    flow = Flow("parent", limits={"timeout_s": 60})
    flow.subflow("ask", child, outputs={"said": "/ask/choice"})
    with store.open() as app, store.open() as other:
        for each in (app, other):
            each.handlers.add_all(flow)
        run = app.flows.start(flow, **PLACE)
        app.run_worker(1).drain()
        change(store, "UPDATE run SET deadline = 1, due_at = 1 WHERE name = 'parent'")
        app.run_worker(1).drain()
        old = child_of(app, run)
        assert (app.flows.get(run.execution_id).status, old.status) == ("FAILED", "WAITING_HUMAN")
        # Between the rollback and the end of the child of before, somebody begins that of the next incarnation.
        with failpoints.call("run.before_move", lambda: other.run_worker(1).drain()):
            app.flows.rerun(run.execution_id, from_segment="ask", wait=False)
        assert app.flows.get(old.execution_id).status == "CANCELLED"
        waits = app.flows.get(run.execution_id)
        assert waits.waiting is not None and waits.waiting.child not in (None, old.execution_id)
        app.flows.approve(waits.waiting.child or "", "yes", "me")
        assert app.flows.get(run.execution_id).state == {"said": "yes"}


def test_a_parent_that_was_cancelled_tries_no_child_again(store: Store) -> None:
    flow = order(shipping(["once"]), retries={"times": 3, "delay_s": 0.001})
    with store.open() as app:
        app.handlers.add_all(flow)
        run = app.flows.start(flow, INPUT, **PLACE)
        meanwhile(app, "subflow.before_resume", lambda: app.flows.cancel(run.execution_id))
        assert [each.status for each in app.flows.runs()] == ["FAILED", "CANCELLED"]
        assert app.run_worker(1).drain().runs == 0


def test_a_child_that_somebody_else_resumes_is_followed(store: Store) -> None:
    flow = order(shipping(["once"]), retries={"times": 1, "delay_s": 0.001})
    with store.open() as app:
        app.handlers.add_all(flow)
        run = app.flows.start(flow, INPUT, **PLACE)
        resume = lambda: app.flows.resume(child_of(app, run).execution_id, wait=False)  # noqa: E731
        meanwhile(app, "subflow.before_resume", resume)
        assert app.flows.get(run.execution_id).state["said"] == "TO OSLO!"


@pytest.mark.parametrize("ends", [False, True], ids=["claimed", "ended"])
def test_a_child_that_moves_while_its_time_runs_out(ends: bool, store: Store) -> None:
    flow = order(shipping(), timeout_s=60)
    with store.open() as app, store.open() as other:
        for each in (app, other):
            each.handlers.add_all(flow)
        run = app.flows.start(flow, INPUT, **PLACE)
        # A worker lets the parent wait, takes the child, and dies with it.
        with failpoints.call("run.after_claim", die, time=2):
            app.run_worker(1).drain()
        assert child_of(app, run).holder is not None
        change(store, "UPDATE run SET begun_at = begun_at - ?, due_at = 1", [HOUR])
        change(store, "UPDATE run SET due_at = 0 WHERE name = 'order'")
        act = (lambda: other.run_worker(1).drain()) if ends else (lambda: take(other, store))
        meanwhile(app, "run.before_move", act)
        found = app.flows.get(run.execution_id)
        if ends:
            assert (found.status, found.state["said"]) == ("COMPLETED", "TO OSLO!")
        else:
            assert found.error is not None and (found.status, found.error.kind) == ("FAILED", "timeout")
            assert child_of(app, run).status == "CANCELLED"


def test_a_parent_whose_time_is_over_does_not_wait_any_longer(store: Store) -> None:
    child = Flow("asks")
    child.human("ask", choices=["yes"])
    flow = Flow("parent", limits={"timeout_s": 3600})
    flow.subflow("ask", child, outputs={"said": "/ask/choice"})
    with store.open() as app:
        app.handlers.add_all(flow)
        run = app.flows.start(flow, **PLACE)
        app.run_worker(1).drain()
        assert app.flows.get(run.execution_id).status == "RUNNING"
        change(store, "UPDATE run SET deadline = deadline - ?, due_at = due_at - ?", [HOUR, HOUR])
        app.run_worker(1).drain()
        late = app.flows.get(run.execution_id)
        assert late.error is not None and (late.status, late.error.kind) == ("FAILED", "timeout")
        # The child was left alone; with time of its own again, the parent takes over what it came to.
        waits = child_of(app, run)
        assert waits.status == "WAITING_HUMAN"
        app.flows.approve(waits.execution_id, "yes", "me")
        assert app.flows.resume(run.execution_id).state == {"said": "yes"}


def test_a_parent_says_which_run_is_to_be_told_what_was_found_out(store: Store) -> None:
    child = Flow("paying")

    @child.step(writes=["receipt"])
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        def charge(key: str) -> None:
            raise TimeoutError("no answer")

        return {"receipt": ctx.once("charge", charge, on_unknown="fail")}

    parent = Flow("parent")
    parent.subflow("sub", child, inputs={}, outputs={"receipt": "receipt"})
    with store.open() as app:
        run = app.flows.run(parent, {}, **PLACE)
        (below,) = [each for each in app.flows.runs() if each.parent == run.execution_id]
        assert run.error is not None and (run.status, run.error.effect) == ("FAILED", None)
        assert f"resume {below.execution_id} with unknown='happened'" in (run.error.hint or "")
        assert app.flows.resume(below.execution_id, unknown="happened", result="ok").status == "COMPLETED"
        assert app.flows.resume(run.execution_id).state["receipt"] == "ok"
