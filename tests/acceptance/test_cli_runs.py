"""The commands on runs: `analemma run`, `resume`, `approve`, `cancel`, `rerun`, `runs`, and a worker that goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.command_line import CommandLine, at
from tests.stores import Store

PROGRAM = "tests.acceptance.order_program"
DOCUMENT = """
workflow: order
nodes:
  - {id: add_up, type: python, function: order.add_up, reads: [prices], writes: [total]}
  - {id: approve, type: human, choices: ["yes", "no"], prompt: "Pay {{total}}?"}
  - {id: pay, type: python, function: order.pay, reads: [total, broken], writes: [paid]}
"""
PLACE = ("-o", "ann", "-w", "o-1")


@pytest.fixture
def here(store: Store, tmp_path: Path) -> CommandLine:
    with store.open():
        pass
    (tmp_path / "order.yaml").write_text(DOCUMENT)
    return at(store, tmp_path)


def test_a_run_is_begun_approved_and_gone_on_with(here: CommandLine) -> None:
    shown = here.text("run", "order.yaml", "--module", PROGRAM, "--set", "prices=[1, 2]", *PLACE)
    assert "add_up: continue" in shown and "approve: paused" in shown and "Pay 3?" in shown
    (run,) = here.answer("runs", "--status", "WAITING_HUMAN")["runs"]
    assert run["waiting"]["choices"] == ["yes", "no"]
    execution = run["execution_id"]
    decided = here.answer("approve", execution, "yes", "--actor", "ann", "--payload", '{"note": 1}')
    assert (decided["status"], decided["segment_id"]) == ("RUNNING", "pay")
    assert here.run("approve", execution, "no", "--actor", "ann").returncode == 4
    done = here.answer("resume", execution, "--module", PROGRAM)
    assert done["status"] == "COMPLETED"
    assert [each["segment_id"] for each in done["segments"]] == ["add_up", "approve", "pay"]
    assert here.answer("load", *PLACE)["state"]["paid"] == 3
    assert "pay  complete" in here.text("runs", execution)
    assert f"{execution}  COMPLETED" in here.text("runs")


def test_a_run_that_fails_exits_with_the_code_of_its_error(here: CommandLine) -> None:
    failed = here.run("run", f"{PROGRAM}:flow", "--set", "prices=[1]", "--set", "broken=true", *PLACE)
    assert failed.returncode == 0, failed.stderr
    (run,) = here.answer("runs")["runs"]
    broken = here.run("approve", run["execution_id"], "yes", "--actor", "ann", "--module", PROGRAM)
    assert broken.returncode == 1 and "the till is closed" in broken.stdout
    missing = here.run("run", "order.yaml", "--set", "prices=[1]", "-o", "ann", "-w", "o-2")
    assert missing.returncode == 3 and "order.add_up" in missing.stdout


def test_a_worker_goes_on_and_runs_are_cancelled_and_run_again(here: CommandLine) -> None:
    for workflow in ("o-1", "o-2"):
        begun = here.answer("run", f"{PROGRAM}:flow", "--no-wait", "--set", "prices=[4]", "-o", "ann", "-w", workflow)
        assert begun["status"] == "PENDING"
    assert "runs: went on 2 times" in here.text("worker", "--drain", "--module", PROGRAM)
    one, other = [run["execution_id"] for run in here.answer("runs")["runs"]]
    assert here.answer("cancel", one)["status"] == "CANCELLED"
    assert here.run("resume", one, "--module", PROGRAM).returncode == 0
    here.answer("approve", other, "no", "--actor", "ann", "--module", PROGRAM)
    forked = here.answer("rerun", other, "--from-segment", "approve", "--fork", "--branch", "try", "--module", PROGRAM)
    assert (forked["branch"], forked["status"]) == ("try", "WAITING_HUMAN")
    again = here.answer("rerun", other, "--from-segment", "2", "--module", PROGRAM)
    assert (again["incarnation"], again["status"]) == (2, "COMPLETED")
    assert here.run("rerun", other, "--branch", "x", "--from-segment", "0").returncode == 2
    assert here.run("rerun", other).returncode == 2
    assert here.run("runs", "nobody").returncode == 3
    assert here.run("run", "nothing_there:flow", *PLACE).returncode == 3
