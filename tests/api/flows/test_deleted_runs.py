"""Runs of workflows that are deleted: one that goes on refuses it, or is cancelled; those that are over stay known."""

from __future__ import annotations

from typing import Any

import pytest

import analemma
from analemma import Flow
from analemma.errors import AnalemmaError, Conflict, NotFound
from tests.api.flows.runs import PLACE
from tests.stores import Store


def asking() -> Flow:
    flow = Flow("asking")
    flow.human("approve", choices=["yes", "no"])
    return flow


def test_a_run_that_goes_on_refuses_a_deletion_or_is_cancelled_by_it(store: Store) -> None:
    with store.open() as app:
        run = app.flows.run(asking(), {"n": 1}, **PLACE)
        for branch in (None, run.branch):
            with pytest.raises(Conflict, match="goes on"):
                app.kernel.delete(**PLACE, branch=branch)
        assert app.flows.get(run.execution_id).status == "WAITING_HUMAN"
        app.kernel.delete(**PLACE, force=True)
        assert app.flows.get(run.execution_id).status == "CANCELLED"
        with pytest.raises(AnalemmaError):
            app.flows.approve(run.execution_id, "yes", "eve")
        with pytest.raises(NotFound):
            app.kernel.load_latest_state(**PLACE)
        app.kernel.undelete(**PLACE)
        assert app.kernel.get_workflow(**PLACE).status == "FAILED"
        assert app.kernel.verify(**PLACE).problems == []


@pytest.mark.both_stores("runs are cancelled by a procedure, and those below them level by level")
def test_subflows_of_a_run_that_a_deletion_cancels_are_cancelled_with_it(store: Store) -> None:
    inner, outer = Flow("inner"), Flow("outer")
    inner.subflow("ask", asking(), outputs={"said": "/approve/choice"})
    outer.subflow("inner", inner, outputs={"said": "/said"})
    with store.open() as app:
        run = app.flows.run(outer, {"n": 1}, **PLACE)
        aside = app.flows.run(outer, {"n": 2}, workflow_id="aside", owner_id="me")
        app.run_worker(1).drain()
        found = {each.execution_id: each for each in app.flows.runs()}
        assert sorted(each.name for each in found.values()) == 2 * ["asking"] + 2 * ["inner"] + 2 * ["outer"]
        app.kernel.delete(**PLACE, force=True)
        ended = [each for each in app.flows.runs() if each.status == "CANCELLED"]
        assert {each.name for each in ended} == {"asking", "inner", "outer"} and len(ended) == 3
        assert run.execution_id in {each.execution_id for each in ended}
        assert app.flows.get(aside.execution_id).status == found[aside.execution_id].status
        for each in ended:
            if each.name != "outer":
                assert app.kernel.get_workflow(workflow_id=each.workflow_id, owner_id="me").status == "IDLE"
            if each.name == "asking":
                with pytest.raises(AnalemmaError):
                    app.flows.approve(each.execution_id, "yes", "eve")


def test_a_run_that_is_over_refuses_nothing(store: Store) -> None:
    with store.open() as app:
        run = app.flows.run(asking(), {"n": 1}, **PLACE)
        app.flows.approve(run.execution_id, "yes", "eve")
        app.kernel.delete(**PLACE)
        assert app.flows.get(run.execution_id).status == "COMPLETED"
        again = app.flows.run(asking(), {"n": 2}, **PLACE)
        assert app.flows.approve(again.execution_id, "no", "eve").status == "COMPLETED"
        assert app.kernel.verify(**PLACE).problems == []


def test_the_key_of_a_run_counts_though_its_workflow_is_deleted(store: Store) -> None:
    """What the run did elsewhere is not done again because its state is gone."""
    keyed: dict[str, Any] = {**PLACE, "idempotency_key": "req-1"}
    with store.open() as app:
        first = app.flows.run(asking(), {"n": 1}, **keyed)
        app.flows.approve(first.execution_id, "yes", "eve")
        app.kernel.delete(**PLACE)
        for grace in ({}, {"delete_grace_s": 0}):
            with store.open(**grace) as other:
                other.gc.run(grace_s=0, force=True)
            again = app.flows.run(asking(), {"n": 1}, **keyed)
            assert (again.execution_id, again.status) == (first.execution_id, "COMPLETED")
        assert app.flows.run(asking(), {"n": 1}, **PLACE).status == "WAITING_HUMAN"


class Failing:
    """A flow whose second step fails until it is told not to."""

    def __init__(self) -> None:
        self.fails = True
        self.flow = Flow("failing")
        self.flow.step(self.first)
        self.flow.step(self.second)

    def first(self, state: dict[str, Any], context: Any) -> dict[str, Any]:
        return {"first": 1}

    def second(self, state: dict[str, Any], context: Any) -> dict[str, Any]:
        if self.fails:
            raise RuntimeError("not yet")
        return {"second": 1}

    def run(self, app: analemma.Store) -> str:
        """A run that has failed in its second step."""
        run = app.flows.run(self.flow, {"n": 1}, **PLACE)
        assert run.status == "FAILED" and run.error is not None and run.error.node == "second"
        self.fails = False
        return str(run.execution_id)


@pytest.mark.both_stores("which rows a deletion gives to another owner is each database's procedure")
@pytest.mark.parametrize("forked", [False, True])
def test_a_run_of_a_deleted_workflow_does_not_go_on_in_another_of_its_name(store: Store, forked: bool) -> None:
    failing = Failing()
    with store.open() as app:
        run = failing.run(app)
        if forked:
            # Then all of its versions can be found by their ids.
            last = app.kernel.history(**PLACE)[0].manifest_id
            app.kernel.fork(last, owner_id="me", workflow_id="other")
        app.kernel.delete(**PLACE)
        app.kernel.save_state_delta({"fresh": 1}, **PLACE)
        with pytest.raises(NotFound, match="deleted"):
            app.flows.resume(run)
        with pytest.raises(NotFound, match="deleted" if forked else "manifest"):
            app.flows.rerun(run, from_segment=0)
        assert app.flows.get(run).status == "FAILED"
        assert app.kernel.load_latest_state(**PLACE) == {"fresh": 1}
        app.kernel.delete(**PLACE)
        app.kernel.undelete(**PLACE)
        assert app.kernel.load_latest_state(**PLACE) == {"fresh": 1}


def test_a_run_goes_on_when_its_workflow_is_back(store: Store) -> None:
    failing = Failing()
    with store.open() as app:
        run = failing.run(app)
        app.kernel.delete(**PLACE)
        with pytest.raises(NotFound):
            app.flows.resume(run)
        app.kernel.undelete(**PLACE)
        app.kernel.save_state_delta({"beside": 1}, **PLACE)
        after = app.flows.resume(run)
        assert after.status == "COMPLETED", after.error
        assert app.kernel.load_latest_state(**PLACE) == {"n": 1, "first": 1, "beside": 1, "second": 1}
