"""State sources by their commands, the example that uses them, and the demo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import PROGRAM, CommandLine, at
from tests.stores import Store

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "agent_runs"
SOURCE = "source.agent_run"


@pytest.fixture
def agents(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setenv("AGENT_RUNS_OUT", str(tmp_path / "out"))
    return at(store, tmp_path)


def save(line: CommandLine, run: str, **fields: Any) -> None:
    given = json.dumps({"runId": run, **fields})
    line.text("save", "--owner", "ann", "--workflow", f"runs/{run}", "--file", "-", given=given)


def test_states_that_were_there_are_counted_and_taken(agents: CommandLine) -> None:
    for run in "123":
        save(agents, run, status="RUNNING")
    save(agents, "4", goal="no status")
    loaded = agents.text("contracts", "load", str(EXAMPLE / "contracts.yaml")).splitlines()
    assert loaded[-1] == (
        f"{SOURCE} matches 4 states that tenant default has already: "
        f"`analemma sources backfill {SOURCE} --tenant default` ingests them"
    )
    assert agents.text("contracts", "load", str(EXAMPLE / "contracts.yaml")).splitlines()[-1].startswith("0 changed")

    assert agents.answer("sources", "backfill", "--dry-run")["backfill"] == {"matched": 4, "dry_run": True}
    done = agents.run("sources", "backfill", SOURCE)
    assert done.returncode == 0
    assert dict(line.split() for line in done.stdout.splitlines()) == {
        "matched": "4",
        "ingested": "3",
        "unchanged": "0",
        "refused": "1",
    }
    assert "ann/runs/4@main: the payload is no RUN" in done.stderr
    assert agents.text("sources", "list").split() == [*f"{SOURCE} -> RUN follows 4, 1 with a problem".split()]
    (problem,) = agents.answer("sources", "problems", SOURCE)["problems"]
    assert (problem["workflow"], problem["version"]) == ("runs/4", 1)

    save(agents, "4", status="FAILED")
    agents.text("worker", "--drain")
    assert agents.text("sources", "problems").strip() == "every state that was taken is an entity"
    found = agents.answer("view", "search", "view.run.v1", "--index", "status", "--value", "FAILED")
    assert "ann-4" in json.dumps(found)
    shipped = (agents.directory / "out" / "runs-default.jsonl").read_text(encoding="utf-8").splitlines()
    assert {json.loads(line)["docId"] for line in shipped} == {f"default__ann-{run}" for run in "1234"}


def test_without_sources_there_is_nothing_to_list(agents: CommandLine) -> None:
    save(agents, "1", status="RUNNING")
    error = json.loads(agents.run("sources", "list", "--json").stderr)["error"]
    assert error["kind"] == "not_found"
    agents.text("contracts", "load", str(ROOT / "examples" / "bookshop"))
    assert agents.text("sources", "list").strip() == "no state source is loaded"
    error = json.loads(agents.run("sources", "backfill", SOURCE, "--json").stderr)["error"]
    assert error["message"] == f"there is no ACTIVE state source '{SOURCE}'"


def run_alone(arguments: list[str], folder: Path) -> str:
    """Run it where it may leave nothing behind."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(
        arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(folder.iterdir()) == []
    return done.stdout


def test_the_example_says_what_it_did(tmp_path: Path) -> None:
    told = run_alone([sys.executable, str(EXAMPLE / "agent_runs.py")], tmp_path).splitlines()
    assert told[:2] == ["COMPLETED: ann-1, ann-3", "FAILED: ann-2"]
    assert told[-2:] == ["rolled back: RUNNING", "the file has 3 documents; agents__ann-2 is RUNNING"]
    assert "s3cret" not in "".join(told)


@pytest.mark.deep("a story of several seconds")
def test_the_demo_ends_by_itself_and_leaves_nothing(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    told = " ".join(run_alone([PROGRAM, "demo"], folder).split())
    assert "leaves the version before" in told
    for said in ("killed with kill -9 (exit -9)", "plan is not run again", "roll back to version 5", "sent twice"):
        assert said in told
    assert "of 8 answers are found again" in told and "The two differ in decide, letter, receipt" in told
    assert "The author is renamed." in told and "rows of CORE and PRICE that were written: 0." in told
    assert "200 of 200 documents have the new name" in told
    assert told.endswith("the sink's guard answers: stale.")
