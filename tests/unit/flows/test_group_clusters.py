"""Groups on processes, on a Dask cluster of two workers and on a local Ray: the same state as on threads."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analemma.executors.port import CallExecutor
from analemma.executors.resolving import resolve_executor
from analemma.flows.building import Flow
from tests.group_program import PLACE, failing, killing, merged, squares
from tests.stores import Store

ITEMS = 1000


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")


@pytest.fixture(scope="module")
def processes() -> Iterator[CallExecutor]:
    with resolve_executor("processes:2") as executor:
        yield executor


@pytest.fixture(scope="module")
def dask() -> Iterator[CallExecutor]:
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'analemma[dask]'")
    with resolve_executor("dask:2") as executor:
        yield executor


@pytest.fixture(scope="module")
def ray() -> Iterator[CallExecutor]:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'analemma[ray]'")
    with resolve_executor("ray:2") as executor:
        yield executor


@pytest.fixture(params=["processes", "dask", "ray"])
def executor(request: pytest.FixtureRequest) -> CallExecutor:
    found: CallExecutor = request.getfixturevalue(request.param)
    return found


def test_workers_elsewhere_come_to_the_same_as_threads(store: Store, executor: CallExecutor) -> None:
    given = {"numbers": [{"n": number} for number in range(ITEMS)], "factor": 3}
    with store.open() as app:
        for flow, its_input in ((squares, given), (merged, {"text": "one two three four"})):
            roots = set()
            for number, where in enumerate(("threads:2", executor)):
                place: dict[str, Any] = {"workflow_id": f"{flow.name}-{number}", "owner_id": "me"}
                run = app.flows.run(flow, its_input, **place, executor=where)
                assert run.status == "COMPLETED", run.error
                roots.add(app.kernel.history(**place)[0].root_hash)
            assert len(roots) == 1
        assert app.outbox.status().pending == 2


def test_what_fails_elsewhere_fails_the_run_with_its_own_error(store: Store, executor: CallExecutor) -> None:
    with store.open() as app:
        run = app.flows.run(failing, {"numbers": [1, 0, 2]}, **PLACE, executor=executor)
        assert run.error is not None
        assert (run.status, run.error.type, run.error.node) == ("FAILED", "ZeroDivisionError", "divide")
        # Tasks ran in other processes.
        app.flows.rerun(run.execution_id, from_segment="each", executor=executor)
        good = app.flows.run(failing, {"numbers": [1, 2]}, workflow_id="t-2", owner_id="me", executor=executor)
        assert all(answer["answer"][1] != os.getpid() for answer in good.state["each"])


def test_a_worker_that_dies_in_a_task_is_replaced_and_the_state_is_the_same(
    store: Store, executor: CallExecutor, tmp_path: Path
) -> None:
    with store.open() as app:
        given = {"numbers": list(range(40)), "once": str(tmp_path / "died")}
        run = app.flows.run(killing, given, **PLACE, executor=executor)
        assert run.status == "COMPLETED", run.error
        assert run.state["each"] == list(range(1, 41))
        assert (tmp_path / "died").exists()


def test_a_function_that_other_processes_cannot_find_is_refused(store: Store, processes: CallExecutor) -> None:
    flow = Flow("local")

    @flow.step(reads=["item"], writes=["x"])
    def work(state: Any, ctx: Any) -> dict[str, Any]:
        return {"x": 1}

    flow.for_each("each", over="n", step=work)
    with store.open() as app:
        run = app.flows.run(flow, {"n": [1]}, **PLACE, executor=processes)
        assert run.error is not None and (run.status, run.error.kind) == ("FAILED", "invalid")
        assert "cannot be found by other processes" in run.error.message
        assert app.flows.resume(run.execution_id, executor="threads:1").status == "COMPLETED"
