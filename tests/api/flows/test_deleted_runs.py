"""Runs of workflows that are deleted: one that goes on refuses it, or is cancelled; those that are over stay known."""

from __future__ import annotations

import pytest

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


def test_a_run_that_is_over_refuses_nothing(store: Store) -> None:
    with store.open() as app:
        run = app.flows.run(asking(), {"n": 1}, **PLACE)
        app.flows.approve(run.execution_id, "yes", "eve")
        app.kernel.delete(**PLACE)
        assert app.flows.get(run.execution_id).status == "COMPLETED"
        again = app.flows.run(asking(), {"n": 2}, **PLACE)
        assert app.flows.approve(again.execution_id, "no", "eve").status == "COMPLETED"
        assert app.kernel.verify(**PLACE).problems == []
