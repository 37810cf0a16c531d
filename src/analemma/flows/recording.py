"""What models and hosts answered earlier runs: every answer is recorded with its effect, so nothing has to be asked for
beforehand."""

from __future__ import annotations

import json
from itertools import starmap
from typing import Any, Final

from analemma.catalog.runs.effects import RunRecords
from analemma.catalog.runs.runs import LAST, RunRow
from analemma.errors import NotFound
from analemma.flows.effects import read_result
from analemma.flows.held_runs import RunnerParts
from analemma.flows.node_types.mocking import answers_in, read_mock

PAGE: Final = 100


def recorded_answers(parts: RunnerParts, row: RunRow) -> dict[str, Any]:
    """The answers that a run got, by their places."""
    rows = RunRecords(parts.engine, parts.tenant, row)
    done = {key: each for key, each in rows.effects("").items() if each.state == "done"}
    return answers_in({key: read_result(parts.kernel.trees, each) for key, each in done.items()})


def recorded_mock(parts: RunnerParts, owner: str, name: str) -> bool | dict[str, Any]:
    """The answers of an owner's newest run of a workflow that was completed and no mock itself; NotFound if there is
    none."""
    mocks = False
    chosen = {"tenant": parts.tenant, "status": "COMPLETED", "workflow": "", "owner": owner, "name": name}
    for page in parts.engine.pages("runs", {"before": LAST}, limit=PAGE, **chosen):
        for row in starmap(RunRow, page):
            if not json.loads(row.options).get("mock"):
                return read_mock(recorded_answers(parts, row))
            mocks = True
    raise NotFound(
        f"no run of {name} was completed, so nothing is recorded" + (" (mocks are left out)" if mocks else ""),
        hint="run it once without mock, or pass answers by node",
        workflow=name,
    )
