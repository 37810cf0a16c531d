"""What a store promises of work that runs in other processes: it comes to the same as on threads."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tests.api.pipeline.backfill_shop import BOOKS, TENANT, book, fill, upgraded
from tests.api.pipeline.tables import query
from tests.depth import count
from tests.group_program import PLACE, failing, killing, merged, squares
from tests.ports.entry_points.executors import CallExecutor
from tests.stores import Store

ENTITIES = count(60, deep=300)
ITEMS = count(200, deep=1000)
DAMAGE = "UPDATE block SET body = ? WHERE id = (SELECT root FROM slice WHERE type = 'CORE' ORDER BY entity LIMIT 1)"


class WorkElsewhere:
    """A subclass supplies the fixture `executor`."""

    @pytest.fixture(autouse=True)
    def quiet(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.CRITICAL, logger="analemma.flows")

    def test_a_backfill_does_what_it_does_here(self, store: Store, executor: CallExecutor, tmp_path: Path) -> None:
        with store.open() as app:
            fill(app, ENTITIES)
            done = app.backfill(TENANT, executor=executor, page=25)
            assert (done.state, done.total) == ("DONE", ENTITIES + 5)
            counts = done.counts
            assert (counts.done, counts.changed, counts.requested) == (ENTITIES + 5, ENTITIES + 5, ENTITIES)
            assert counts.slices == ENTITIES * 4 + 10
            assert query(store, "SELECT count(*), max(revision) FROM compile") == [(ENTITIES + 5, 1)]
            assert app.backfills.verify(TENANT, executor=executor).ok
            app.contracts.load(upgraded(tmp_path))
            plan = app.backfill({**BOOKS, "stale": True}, dry_run=True, executor=executor)
            again = app.backfill({**BOOKS, "stale": True}, executor=executor)
            assert (again.total, again.counts) == (ENTITIES, plan.changes)
            app.tenant("shop").ingest("BOOK", "b00001", book(1, price=5))
            query(store, DAMAGE, b"not what it was")
            report = app.backfills.verify(TENANT, executor=executor)
            assert (report.uncompiled, report.corrupt) == (1, 1)
            full = app.backfill(BOOKS, kind="full", executor=executor)
            assert full.counts.requested == ENTITIES

    def test_groups_of_runs_come_to_the_same_as_on_threads(self, store: Store, executor: CallExecutor) -> None:
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

    def test_what_fails_there_fails_the_run_with_its_own_error(self, store: Store, executor: CallExecutor) -> None:
        with store.open() as app:
            run = app.flows.run(failing, {"numbers": [1, 0, 2]}, **PLACE, executor=executor)
            assert run.error is not None
            assert (run.status, run.error.type, run.error.node) == ("FAILED", "ZeroDivisionError", "divide")
            again = app.flows.rerun(run.execution_id, from_segment="each", executor=executor)
            assert again.status == "FAILED"
            good = app.flows.run(failing, {"numbers": [1, 2]}, workflow_id="t-2", owner_id="me", executor=executor)
            assert all(answer["answer"][1] != os.getpid() for answer in good.state["each"])

    def test_a_worker_that_dies_in_a_task_is_replaced_and_the_state_is_the_same(
        self, store: Store, executor: CallExecutor, tmp_path: Path
    ) -> None:
        with store.open() as app:
            given = {"numbers": list(range(40)), "once": str(tmp_path / "died")}
            run = app.flows.run(killing, given, **PLACE, executor=executor)
            assert run.status == "COMPLETED", run.error
            assert run.state["each"] == list(range(1, 41))
            assert (tmp_path / "died").exists()
