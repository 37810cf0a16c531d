"""Decisions by the command line, each command as if in a program of its own: before the first segment, in the middle,
and behind the last; and what happens when nobody decides in time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import CommandLine, at
from tests.stores import Store, local

PROGRAM = "tests.cli.order_program"
ADD_UP = {"id": "add_up", "type": "python", "function": "order.add_up", "reads": ["prices"], "writes": ["total"]}
PAY = {"id": "pay", "type": "python", "function": "order.pay", "reads": ["total", "broken"], "writes": ["paid"]}
PLACE = ("-o", "ann", "-w", "o-1")
ORDERS = {
    "first": lambda human: [human, ADD_UP, PAY],
    "middle": lambda human: [ADD_UP, human, PAY],
    "last": lambda human: [ADD_UP, PAY, human],
}


def begin(here: CommandLine, where: str, **human: Any) -> str:
    """A run that waits for somebody; its execution."""
    node = {"id": "approve", "type": "human", "choices": ["yes", "no"], **human}
    (here.directory / "order.json").write_text(json.dumps({"workflow": "order", "nodes": ORDERS[where](node)}))
    run = here.answer("run", "order.json", "--module", PROGRAM, "--set", "prices=[1, 2]", *PLACE)
    assert (run["status"], run["segment_id"]) == ("WAITING_HUMAN", "approve")
    execution: str = run["execution_id"]
    return execution


@pytest.fixture
def here(store: Store, tmp_path: Path) -> CommandLine:
    with store.open():
        pass
    return at(store, tmp_path)


def test_who_only_decides_is_told_who_goes_on(tmp_path: Path) -> None:
    here = at(local(tmp_path), tmp_path)
    execution = begin(here, "middle")
    decided = here.text("approve", execution, "yes", "--actor", "ann")
    assert f"it goes on with analemma worker --module MODULE, or resume {execution} --module MODULE" in decided
    assert "goes on with" not in here.text("runs", execution)


@pytest.mark.parametrize("module", [(), ("--module", PROGRAM)], ids=["only-decides", "goes-on"])
@pytest.mark.parametrize("where", ORDERS)
def test_a_decision_counts_wherever_it_is_asked_for(tmp_path: Path, where: str, module: tuple[str, ...]) -> None:
    here = at(local(tmp_path), tmp_path)
    execution = begin(here, where)
    decided = here.answer("approve", execution, "yes", "--actor", "ann", *module)
    over = where == "last" or bool(module)
    assert decided["status"] == ("COMPLETED" if over else "RUNNING")
    assert here.run("approve", execution, "no", "--actor", "ann").returncode == 4
    if not over:
        assert "went on 1 times" in here.text("worker", "--drain", "--module", PROGRAM)
    done = here.answer("runs", execution)
    assert done["status"] == "COMPLETED"
    wanted = {"first": ["approve", "add_up"], "middle": ["add_up", "approve", "pay"], "last": ["add_up", "approve"]}
    assert [each["segment_id"] for each in done["segments"]] == wanted[where]
    state = here.answer("load", *PLACE)["state"]
    assert (state["paid"], state["approve"]) == (3, {"choice": "yes", "actor": "ann"})


@pytest.mark.parametrize("where", ORDERS)
def test_a_worker_decides_what_nobody_decided_in_time(here: CommandLine, where: str) -> None:
    execution = begin(here, where, timeout_s=0.05, default="no")
    time.sleep(0.06)
    here.text("worker", "--drain", "--module", PROGRAM)
    done = here.answer("runs", execution)
    assert (done["status"], done["executed"]) == ("COMPLETED", len(done["segments"]))
    state = here.answer("load", *PLACE)["state"]
    assert (state["paid"], state["approve"]) == (3, {"choice": "no", "actor": None})
    assert here.run("approve", execution, "yes", "--actor", "ann").returncode == 4
