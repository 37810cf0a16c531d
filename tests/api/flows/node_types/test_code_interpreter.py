"""`code_interpreter`: what code gets and gives, and how the node that runs it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analemma import App
from tests.api.flows.node_types.code_runners import answer, closed, failure, flow, nothing_is_left, runner
from tests.api.flows.runs import place
from tests.stores import local

__all__ = ["closed", "nothing_is_left", "runner"]


def test_code_gets_fields_and_gives_a_result(runner: App) -> None:
    text = "print('working')\nresult = {'sum': sum(state['n']), 'é': state['t']}"
    found = answer(runner, text, state={"n": [1, 2], "t": "ü"})
    assert found == {"ok": True, "result": {"sum": 3, "é": "ü"}, "output": "working\n", "error": None}


def test_the_standard_library_is_there_and_what_is_installed_here_is_not(closed: App) -> None:
    found = answer(closed, "import json, hashlib, decimal, sqlite3, zoneinfo, subprocess\nresult = json.dumps(1)")
    assert (found["ok"], found["result"]) == (True, "1")
    assert failure(closed, "import orjson").startswith("ModuleNotFoundError")


def test_an_error_is_told_with_its_lines(runner: App) -> None:
    error = answer(runner, "x = 1\nresult = 1 / 0")["error"]
    assert error["type"] == "ZeroDivisionError"
    assert 'File "<code>", line 2' in error["traceback"]
    assert error["traceback"].count("File ") == 1


def test_a_result_that_cannot_be_stored_is_an_error(runner: App) -> None:
    for text in ("result = {1, 2}", "result = float('nan')", "result = b'x'"):
        assert "no JSON" in failure(runner, text), text
    for text in (
        "result = '\\ud800'",
        "import os\nfor n in range(3, 30):\n  try: os.write(n, b'junk')\n  except OSError: pass",
    ):
        assert "no JSON that can be stored" in failure(runner, text), text


def test_code_that_just_ends_has_no_result_and_any_signal_is_told(runner: App) -> None:
    for text, said in (
        ("import os; os._exit(0)", "it ended without a result"),
        ("import os; os._exit(200)", "it ended without a result"),
        ("import os; os.kill(os.getpid(), 11)", "it was killed by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 35)", "it was killed by signal 35"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ):
        assert said in failure(runner, text), text


def test_code_of_the_document_makes_a_field(closed: App) -> None:
    run = flow(closed, {"n": [1, 2], "hidden": 1}, code="result = [sorted(state), sum(state['n'])]", reads=["n"])
    assert run.error is None and run.state["calc"] == [["n"], 3]


def test_a_large_result_is_found_again(closed: App) -> None:
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

    closed.flows.handlers.add("look", look)
    document = {
        "workflow": "w",
        "nodes": [node, {"id": "look", "type": "python", "function": "look", "reads": ["calc"]}],
    }
    run = closed.flows.run(document, **place())
    assert run.status == "FAILED"
    assert closed.flows.resume(run.execution_id).state["calc"] == seen[0] == seen[1]


def test_code_of_the_document_that_fails_fails_the_node(closed: App) -> None:
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("1 / 0", "invalid", {}),
        ("x = 'a' * 10**9", "limit", {}),
        ("while True: pass", "timeout", {"timeout_s": 1}),
        ("result = 'x' * 5_000_000", "limit", {}),
    ]
    for text, kind, more in cases:
        run = flow(closed, code=text, **more)
        assert run.error is not None and run.error.kind == kind, text


def test_code_of_the_state_is_told_how_it_failed(closed: App) -> None:
    found = answer(closed, "print('hm')\nresult = state['x'] / 0", state={"x": 1})
    assert (found["ok"], found["result"], found["output"]) == (False, None, "hm\n")
    assert found["error"]["type"] == "ZeroDivisionError"


def test_code_is_not_run_where_it_is_refused(tmp_path: Path) -> None:
    with local(tmp_path).open(code_isolation="refuse") as app:
        run = flow(app, code="result = 1")
    assert run.error is not None and run.error.kind == "denied"


def test_the_network_is_the_operators_to_give(memory: App) -> None:
    run = flow(memory, code="result = 1", network=True)
    assert run.error is not None and run.error.kind == "denied" and "code_network" in str(run.error.hint)


REFUSING = """#!/usr/bin/python3
import ctypes, runpy, sys

class Refusing(ctypes.CDLL):
    def __getattr__(self, name):
        if name != "unshare":
            return super().__getattr__(name)
        def unshare(*flags):
            ctypes.set_errno(1)
            return -1
        return unshare

ctypes.CDLL = Refusing
sys.argv = [each for each in sys.argv[1:] if not each.startswith("-")]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_where_nothing_can_be_isolated_nothing_is_run(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(REFUSING)
    python.chmod(0o755)
    with local(tmp_path).open(code_isolation="namespaces", code_python=str(python)) as app:
        run = flow(app, code="result = 1")
    assert run.error is not None and run.error.kind == "denied"
    assert "cannot be isolated here: unshare" in run.error.message


def test_what_a_state_cannot_hold_is_the_failure_of_the_code(closed: App) -> None:
    wrong = []
    for text, ok in (
        ("result = [2**64 - 1, -2**63]", True),
        ("result = 2**64", False),
        ("result = {'a': [-2**63 - 1]}", False),
        ("result = []\nfor n in range(99): result = [result]", True),
        ("result = []\nfor n in range(110): result = [result]", False),
        ("result = []\nfor n in range(900): result = [result]", False),
    ):
        found = answer(closed, text)
        if found["ok"] is not ok or not (ok or "can be stored" in found["error"]["message"]):
            wrong.append((text, found))
    assert wrong == []
