"""kill -9 of a rerun, between the rollback and the end of the subflows that the run waited for before: whoever takes up
the run ends them, and nobody works on what nobody waits for."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from analemma import App
from analemma.testing import failpoints
from tests import programs
from tests.crash.rerun_worker import make_flow
from tests.depth import some
from tests.raw_rows import change
from tests.stores import Store

ROOT = Path(__file__).parents[2]
PLACE: dict[str, Any] = {"workflow_id": "order-1", "owner_id": "me"}


def failed_parent(store: Store, app: App) -> str:
    """A run that failed because its time was over, while what it waited for goes on; its id."""
    run = app.flows.run(make_flow(), **PLACE)
    run = app.flows.approve(run.execution_id, "on", "me")
    change(store, "UPDATE run SET deadline = 1, due_at = 1 WHERE name = 'parent'")
    app.run_worker(1).drain()
    return run.execution_id


def statuses(app: App) -> list[tuple[str, str]]:
    """Of all runs, oldest first."""
    return [(run.name, run.status) for run in reversed(app.flows.runs())]


def rerun_killed_at(point: str, store: Store, execution: str, segment: str) -> None:
    done = programs.run(
        [sys.executable, "-m", "tests.crash.rerun_worker", store.url, store.objects or "", execution, segment],
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")


WAYS = [("go", "worker"), ("go", "resume"), ("wait", "worker"), ("wait", "resume")]
OLD = [("hands-on", "RUNNING"), ("asks", "WAITING_HUMAN")]
ENDED = [("hands-on", "CANCELLED"), ("asks", "CANCELLED")]
ANEW = {"go": [("parent", "WAITING_HUMAN"), *ENDED], "wait": [("parent", "RUNNING"), *ENDED, *OLD]}
"""Where the run begins again: before it would begin another subflow, or with that."""


@pytest.mark.parametrize(("segment", "who"), some(WAYS, test=[("go", "worker"), ("wait", "resume")]))
def test_subflows_of_a_rerun_that_was_killed_are_ended_by_whoever_goes_on(store: Store, segment: str, who: str) -> None:
    with store.open() as app:
        app.flows.register(make_flow())
        execution = failed_parent(store, app)
        assert statuses(app) == [("parent", "FAILED"), *OLD]
        rerun_killed_at("run.before_move", store, execution, segment)
        assert statuses(app) == [("parent", "RUNNING"), *OLD]
        if who == "worker":
            app.run_worker(1).drain()
        else:
            app.flows.resume(execution)
        assert statuses(app) == ANEW[segment]
        if segment == "go":
            app.flows.approve(execution, "on", "me")
        # What the next incarnation began stays, however often somebody takes up the run.
        change(store, "UPDATE run SET due_at = 1 WHERE name = 'parent'")
        app.run_worker(1).drain()
        assert statuses(app) == [("parent", "RUNNING"), *ENDED, *OLD]
        app.flows.approve(app.flows.runs()[0].execution_id, "yes", "me")
        assert app.flows.get(execution).state["said"] == "yes"


def test_a_rerun_that_was_killed_and_is_cancelled_takes_its_subflows_along(store: Store) -> None:
    with store.open() as app:
        app.flows.register(make_flow())
        execution = failed_parent(store, app)
        rerun_killed_at("run.before_move", store, execution, "go")
        app.flows.cancel(execution)
        assert statuses(app) == [("parent", "CANCELLED"), *ENDED]


def test_a_rerun_that_was_killed_behind_it_has_ended_them_itself(store: Store) -> None:
    with store.open() as app:
        app.flows.register(make_flow())
        execution = failed_parent(store, app)
        rerun_killed_at("run.after_move", store, execution, "go")
        assert statuses(app) == [("parent", "RUNNING"), *ENDED]
