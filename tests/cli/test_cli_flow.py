"""The commands on workflow documents: they need files, and no store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analemma import load_workflow
from tests.cli.command_line import CommandLine, Done
from tests.core.flows.workflows import TRIAGE, read

LINE = CommandLine(Path.cwd(), {})
SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "workflow.schema.json"


def flow(*arguments: str | Path, given: str | None = None) -> Done:
    return LINE.run("flow", *map(str, arguments), given=given)


def answer(*arguments: str | Path) -> Any:
    return LINE.answer("flow", *map(str, arguments))


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    file = tmp_path / "broken.yaml"
    text = read(TRIAGE).replace("timeout_s: 3600", "timeout_s: never").replace("ring: 3", "ring: 4")
    file.write_text(text.replace("over: questions", "ovr: questions"), encoding="utf-8")
    return file


def test_a_valid_workflow_is_told_so() -> None:
    known = load_workflow(TRIAGE)
    done = LINE.process("flow", "validate", str(TRIAGE))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"triage is valid, document {known.hash}\n"
    assert answer("validate", TRIAGE) == {
        "workflow": "triage",
        "document": known.hash,
        "nodes": len(known.nodes),
        "total_segments": 13,
        "warnings": [],
    }


def test_every_problem_is_a_line_with_its_place_and_node(broken: Path) -> None:
    lines = broken.read_text(encoding="utf-8").splitlines()
    places = [number for number, line in enumerate(lines, 1) if "ovr: " in line or "never" in line]
    answered = next(number for number, line in enumerate(lines, 1) if line.strip() == "- id: answer")
    done = flow("validate", broken)
    assert done.stdout.splitlines() == [
        f"{broken}:{answered}: node answer: the key over is missing in for_each",
        f"{broken}:{places[0]}: node answer: unknown key ovr in for_each (did you mean over?)",
        f"{broken}:{places[1]}: node approve_urgent: timeout_s is 'never', not a number",
    ]
    assert (done.returncode, done.stderr) == (2, "error: there are 3 problems\n")
    failed = flow("validate", broken, "--json")
    problems = json.loads(failed.stderr)["error"]["problems"]
    assert failed.returncode == 2
    assert [(each["line"], each["node"]) for each in problems] == [
        (answered, "answer"),
        (places[0], "answer"),
        (places[1], "approve_urgent"),
    ]
    assert flow("show", broken).returncode == 2


def test_segments_are_drawn_with_where_they_lead() -> None:
    lines = LINE.text("flow", "show", str(TRIAGE)).splitlines()
    assert lines[0] == "triage: 15 nodes in 13 segments, at most 100 executions"
    assert [line.split()[1] for line in lines[2:-1]] == [
        *("steps", "parallel", "merge", "for_each", "branch", "human", "steps"),
        *("human", "merge", "loop", "llm", "steps", "steps"),
    ]
    assert lines[6].split("  ")[-1] == (
        "label equals 'refund' -> approve; /ticket/priority at least 3 -> approve_urgent; else -> polish.join"
    )
    assert lines[-2].endswith("-> end") and lines[-1] == "input: ticket"


def test_the_segments_of_a_manifest_are_shown_as_json() -> None:
    found = answer("show", TRIAGE)
    assert found["total_segments"] == len(found["segments"]) == 13
    drawn = LINE.text("flow", "show", str(TRIAGE)).splitlines()[2:-1]
    assert [each["id"] for each in found["segments"]] == [line.split()[2].strip(",") for line in drawn]
    assert found["workflow"] == load_workflow(TRIAGE).to_document()
    assert all(len(each["hash"]) == 64 for each in found["segments"])


def test_a_workflow_may_come_from_standard_input() -> None:
    done = flow("validate", "-", given='{"workflow": "w", "nodes": [{"id": "a", "type": "human"}]}')
    assert done.returncode == 2
    assert done.stdout == "standard input:1: node a: the key choices is missing in human\n"


def test_warnings_do_not_fail(tmp_path: Path) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text("workflow: w\nnodes:\n  - {id: a, type: human, choices: [x], timeout_s: 1}\n", encoding="utf-8")
    done = flow("validate", file)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == (
        f"{file}:3: warning: node a: without a default, the run fails when nobody decides in time"
    )


def test_the_schema_is_printed() -> None:
    assert json.loads(LINE.text("flow", "schema")) == answer("schema") == json.loads(SCHEMA.read_text())


def test_a_flow_of_a_module_is_shown_as_a_document_is() -> None:
    name = "tests.cli.order_program:flow"
    assert flow("validate", name).stdout.startswith("order is valid, document ")
    shown = answer("show", name)
    assert [node["id"] for node in shown["workflow"]["nodes"]] == ["add_up", "approve", "pay"]
    assert LINE.error("not_found", "flow", "show", "no_such_program:flow").startswith("no_such_program cannot be")


def test_a_flow_that_a_module_does_not_have_is_told_with_those_that_it_has() -> None:
    missing = flow("show", "tests.cli.order_program:order")
    assert missing.stderr.splitlines() == [
        "error: tests.cli.order_program has no flow order",
        "hint: it has tests.cli.order_program:flow",
    ]
