"""`code_interpreter`: what code gets and gives, and how the node that runs it fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analemma import App, Run
from analemma.clock import SystemClock
from analemma.errors import Denied
from analemma.flows.node_types.code_running import CodeRunner, Outcome
from tests.api.flows.node_types.code_runners import closed, code, isolated, nothing_is_left, run, runner
from tests.stores import local

__all__ = ["closed", "nothing_is_left", "runner"]


def test_code_gets_fields_and_gives_a_result(runner: CodeRunner) -> None:
    outcome = run(
        runner, "print('working')\nresult = {'sum': sum(state['n']), 'é': state['t']}", state={"n": [1, 2], "t": "ü"}
    )
    assert outcome == Outcome(True, {"sum": 3, "é": "ü"}, "working\n")


def test_the_standard_library_is_there(closed: CodeRunner) -> None:
    outcome = run(closed, "import json, hashlib, decimal, sqlite3, zoneinfo, subprocess\nresult = json.dumps(1)")
    assert (outcome.ok, outcome.result, outcome.error) == (True, "1", None)


def test_what_is_installed_here_is_not_there(closed: CodeRunner) -> None:
    outcome = run(closed, "import orjson")
    assert outcome.error is not None and outcome.error["type"] == "ModuleNotFoundError"


def test_an_error_is_told_with_its_lines(runner: CodeRunner) -> None:
    outcome = run(runner, "x = 1\nresult = 1 / 0")
    assert outcome.error is not None and not outcome.ok
    assert outcome.error["type"] == "ZeroDivisionError"
    assert 'File "<code>", line 2' in outcome.error["traceback"]
    assert "code_child" not in outcome.error["traceback"]


@pytest.mark.parametrize("text", ["result = {1, 2}", "result = float('nan')", "result = b'x'"], ids=str)
def test_a_result_that_is_no_json_is_an_error(runner: CodeRunner, text: str) -> None:
    outcome = run(runner, text)
    assert outcome.error is not None and "no JSON" in outcome.error["message"]


def test_a_result_that_cannot_be_stored_is_an_error(runner: CodeRunner) -> None:
    assert run(runner, "result = '\\ud800'").reason == "result"
    assert (
        run(runner, "import os\nfor n in range(3, 30):\n  try: os.write(n, b'junk')\n  except OSError: pass").reason
        == "result"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import os; os._exit(0)", "nothing"),
        ("import os; os.kill(os.getpid(), 11)", "killed"),
        ("raise SystemExit(3)", None),
    ],
    ids=["exits", "crashes", "gives up"],
)
def test_code_that_just_ends_has_no_result(runner: CodeRunner, text: str, reason: str | None) -> None:
    outcome = run(runner, text)
    assert not outcome.ok and outcome.reason == reason


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with local(tmp_path).open() as app:
        yield app


def flow(app: App, state: dict[str, Any] | None = None, **more: Any) -> Run:
    node = {"id": "calc", "type": "code_interpreter", **more}
    return app.flows.run({"workflow": "w", "nodes": [node]}, state, workflow_id="t-1", owner_id="me")


@isolated
def test_code_of_the_document_makes_a_field(app: App) -> None:
    run = flow(app, {"n": [1, 2], "hidden": 1}, code="result = [sorted(state), sum(state['n'])]", reads=["n"])
    assert run.error is None and run.state["calc"] == [["n"], 3]


@isolated
def test_a_large_result_is_found_again(app: App) -> None:
    node = {
        "id": "calc",
        "type": "code_interpreter",
        "code": "import random; result = [random.random() for _ in range(9999)]",
    }
    seen: list[Any] = []

    def look(state: Any, ctx: Any) -> None:
        seen.append(list(state["calc"]))
        if len(seen) == 1:
            raise OSError("behind it")

    app.flows.handlers.add("look", look)
    document = {
        "workflow": "w",
        "nodes": [node, {"id": "look", "type": "python", "function": "look", "reads": ["calc"]}],
    }
    run = app.flows.run(document, workflow_id="t-1", owner_id="me")
    assert run.status == "FAILED"
    assert app.flows.resume(run.execution_id).state["calc"] == seen[0] == seen[1]


@isolated
@pytest.mark.parametrize(
    ("text", "kind", "more"),
    [
        ("1 / 0", "invalid", {}),
        ("x = 'a' * 10**9", "limit", {}),
        ("while True: pass", "timeout", {"timeout_s": 1}),
        ("result = 'x' * 5_000_000", "limit", {}),
    ],
    ids=["error", "memory", "time", "size"],
)
def test_code_of_the_document_that_fails_fails_the_node(app: App, text: str, kind: str, more: Any) -> None:
    run = flow(app, code=text, **more)
    assert run.error is not None and run.error.kind == kind


@isolated
def test_code_of_the_state_is_told_how_it_failed(app: App) -> None:
    run = flow(app, {"program": "print('hm')\nresult = state['x'] / 0", "x": 1}, code_path="program", reads=["x"])
    assert run.status == "COMPLETED"
    answer = run.state["calc"]
    assert (answer["ok"], answer["result"], answer["output"]) == (False, None, "hm\n")
    assert answer["error"]["type"] == "ZeroDivisionError"


def test_code_is_not_run_where_it_is_refused(tmp_path: Path) -> None:
    with local(tmp_path).open(code_isolation="refuse") as app:
        run = flow(app, code="result = 1")
    assert run.error is not None and run.error.kind == "denied"


def test_the_network_is_the_operators_to_give(app: App) -> None:
    run = flow(app, code="result = 1", network=True)
    assert run.error is not None and run.error.kind == "denied" and "code_network" in str(run.error.hint)


def test_where_nothing_can_be_isolated_nothing_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    source = Path(sys.modules[CodeRunner.__module__].__dict__["CHILD"]).read_text()
    child.write_text(source.replace('call("unshare", ', 'call("unshare", 1 | '))
    monkeypatch.setattr("analemma.flows.node_types.code_running.CHILD", child)
    with pytest.raises(Denied, match="cannot be isolated here: unshare"):
        CodeRunner(isolation="namespaces", python=None, clock=SystemClock()).run(code("result = 1"), lambda: False)


@pytest.mark.parametrize("number", [129, 200, 255], ids=str)
def test_any_exit_is_an_exit(runner: CodeRunner, number: int) -> None:
    assert run(runner, f"import os; os._exit({number})").reason == "nothing"


@pytest.mark.parametrize(("number", "name"), [(11, "SIGSEGV"), (35, "signal 35")], ids=str)
def test_any_signal_is_told(runner: CodeRunner, number: int, name: str) -> None:
    outcome = run(runner, f"import os; os.kill(os.getpid(), {number})")
    assert outcome.reason == "killed" and outcome.error is not None
    assert outcome.error["message"] == f"it was killed by {name}"


@pytest.mark.parametrize(
    ("text", "ok"),
    [
        ("result = 2**64 - 1", True),
        ("result = [-2**63]", True),
        ("result = 2**64", False),
        ("result = {'a': [-2**63 - 1]}", False),
        ("result = []\nfor n in range(99): result = [result]", True),
        ("result = []\nfor n in range(110): result = [result]", False),
        ("result = []\nfor n in range(900): result = [result]", False),
    ],
    ids=str,
)
@isolated
def test_what_a_state_cannot_hold_is_the_failure_of_the_code(app: App, text: str, ok: bool) -> None:
    run = flow(app, {"program": text}, code_path="program")
    assert run.error is None
    assert run.state["calc"]["ok"] is ok
    assert ok or "can be stored" in run.state["calc"]["error"]["message"]
