"""`code_interpreter`: what code can do, and what it cannot."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analemma.app import App
from analemma.clock import SystemClock
from analemma.errors import Denied
from analemma.flows.node_types.code_running import Code, CodeRunner, Outcome
from analemma.flows.runs import Run
from tests.stores import local

SYSTEM_PYTHON = "/usr/bin/python3"


def why_not(isolation: str, python: str | None = None) -> str | None:
    """Why code cannot be run so on this machine, if it cannot."""
    try:
        CodeRunner(isolation=isolation, python=python, clock=SystemClock()).run(code(""), lambda: False)  # type: ignore[arg-type]
    except Denied as exc:
        return exc.message
    return None


def code(text: str, *, state: dict[str, Any] | None = None, **more: Any) -> Code:
    made: dict[str, Any] = {
        "memory_mb": 64, "cpu_s": 20, "disk_mb": 4, "wall_s": 20, "network": False, **more
    }  # fmt: skip
    return Code(text, state or {}, **made)


REFUSED = why_not("namespaces")
isolated = pytest.mark.skipif(REFUSED is not None, reason=f"{REFUSED}")
HAS_LIMITS = os.path.exists(SYSTEM_PYTHON) and why_not("limits", SYSTEM_PYTHON) is None


@pytest.fixture(autouse=True)
def nothing_is_left(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No process and no directory outlives the code."""
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")
    yield
    until = time.monotonic() + 5
    while (left := _children()) and time.monotonic() < until:
        time.sleep(0.02)
    assert left == []


def _children() -> list[str]:
    found = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True, check=False
    )
    return [line for line in found.stdout.splitlines() if "code_child" in line]


@pytest.fixture(params=["namespaces", "limits"])
def runner(request: pytest.FixtureRequest) -> CodeRunner:
    if request.param == "namespaces" and REFUSED is not None:
        pytest.skip(REFUSED)
    if request.param == "limits" and not HAS_LIMITS:
        pytest.skip("no interpreter that others can read")
    return CodeRunner(
        isolation=request.param, python=None if request.param == "namespaces" else SYSTEM_PYTHON, clock=SystemClock()
    )


@pytest.fixture
def closed() -> CodeRunner:
    """In namespaces of its own."""
    if REFUSED is not None:
        pytest.skip(REFUSED)
    return CodeRunner(isolation="namespaces", python=None, clock=SystemClock())


def run(runner: CodeRunner, text: str, **more: Any) -> Outcome:
    outcome = runner.run(code(text, **more), lambda: False)
    assert outcome is not None
    return outcome


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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("while True: pass", "time"),
        ("import time; time.sleep(100)", "time"),
        (
            "import signal, time\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\nwhile True: time.sleep(1)",
            "time",
        ),
        ("import os; os.close(1); os.close(2)\nwhile True: pass", "time"),
    ],
    ids=["busy", "asleep", "deaf", "silent"],
)
def test_code_without_end_is_ended(runner: CodeRunner, text: str, reason: str) -> None:
    began = time.monotonic()
    assert run(runner, text, wall_s=0.7).reason == reason
    assert time.monotonic() - began < 6


def test_code_that_takes_too_much_of_a_processor_is_ended(runner: CodeRunner) -> None:
    assert run(runner, "while True: pass", cpu_s=1, wall_s=60).reason == "cpu"


@pytest.mark.parametrize(
    "text",
    ["x = 'a' * 10**9", "x = []\nwhile True: x.append('y' * 100000)", "import mmap; mmap.mmap(-1, 10**9)[0] = 1"],
    ids=["at once", "bit by bit", "mapped"],
)
def test_code_that_takes_too_much_memory_gets_none(runner: CodeRunner, text: str) -> None:
    outcome = run(runner, text)
    assert not outcome.ok and outcome.error is not None
    assert outcome.reason == "memory" or "memory" in outcome.error["message"].lower(), outcome


def test_code_cannot_fork_for_ever(runner: CodeRunner) -> None:
    text = """
import os, time
result = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(60)
    except OSError:
        break
    result += 1
"""
    outcome = run(runner, text)
    assert outcome.ok and 0 < outcome.result < 16


def test_a_bomb_of_forks_goes_off_inside(runner: CodeRunner) -> None:
    mark = f"bomb{os.getpid()}{time.monotonic_ns()}"[:15]
    text = f"""
import os
if os.path.exists("/proc/self/comm"):
    open("/proc/self/comm", "w").write("{mark}")
while True:
    try: os.fork()
    except OSError: pass
"""
    assert run(runner, text, wall_s=1.0).reason in ("time", "cpu")
    assert mark not in subprocess.run(["ps", "-eo", "comm="], capture_output=True, text=True, check=True).stdout


def test_what_code_leaves_behind_is_killed(runner: CodeRunner, tmp_path: Path) -> None:
    mark = f"mark{os.getpid()}{time.monotonic_ns()}"
    text = f"""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        if os.path.exists("/proc/self/comm"):
            open("/proc/self/comm", "w").write("{mark[:15]}")
        while True: time.sleep(0.1)
    os._exit(0)
os.wait()
for _ in range(5):
    if os.fork() == 0: os._exit(0)   # Nobody buries these.
time.sleep(0.1)
result = "gone"
"""
    outcome = run(runner, text)
    assert outcome.result == "gone"
    assert mark[:15] not in subprocess.run(["ps", "-eo", "comm="], capture_output=True, text=True, check=True).stdout


def test_code_that_prints_for_ever_is_ended(runner: CodeRunner) -> None:
    outcome = run(runner, "while True: print('x' * 10000)")
    assert outcome.reason == "output" and len(outcome.output) == 64 << 10


def test_much_output_is_cut(runner: CodeRunner) -> None:
    outcome = run(runner, "print('x' * 1_000_000); result = 1")
    assert outcome.ok and outcome.result == 1 and len(outcome.output) == 64 << 10


def test_a_result_that_is_too_large_is_none(runner: CodeRunner) -> None:
    assert run(runner, "result = 'x' * 5_000_000").reason == "result"


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


def test_files_are_limited_in_size_and_number(closed: CodeRunner) -> None:
    big = run(closed, "f = open('big', 'wb')\nfor _ in range(100): f.write(b'x' * 100_000)")
    assert big.error is not None and big.error["type"] == "OSError"
    many = run(closed, "for n in range(100):\n    open(f'f{n}', 'wb').write(b'x' * 1_000_000)")
    assert many.error is not None and "space" in many.error["message"]
    names = run(closed, "for n in range(5000): open(f'f{n}', 'wb').close()")
    assert names.error is not None and "space" in names.error["message"]
    opened = run(closed, "x = [open('/dev/null') for _ in range(200)]")
    assert opened.error is not None and "open files" in opened.error["message"]
    none = run(closed, "open('x', 'w')", disk_mb=0)
    assert none.error is not None and "Read-only" in none.error["message"]


def test_nothing_outside_is_written_or_read(closed: CodeRunner, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o666)
    for place in (tmp_path, *tmp_path.parents[:-2]):
        place.chmod(place.stat().st_mode | 0o055)
    for text in (
        f"result = open({str(secret)!r}).read()",
        f"open({str(secret)!r}, 'w')",
        "open('/etc/passwd').read()",
        "import os; os.mkdir('/x')",
        "import sys; open(sys.modules['os'].__file__, 'a')",
        "import os; os.chroot('.')",
    ):
        outcome = run(closed, text)
        assert not outcome.ok and outcome.error is not None, text
        assert outcome.error["type"] in ("FileNotFoundError", "PermissionError", "OSError"), outcome


def test_there_is_no_network(closed: CodeRunner) -> None:
    outcome = run(closed, "import socket; socket.create_connection(('127.0.0.1', 1), 5)")
    assert outcome.error is not None and "unreachable" in outcome.error["message"]
    outcome = run(closed, "import socket; socket.create_connection(('8.8.8.8', 53), 5)")
    assert outcome.error is not None and "unreachable" in outcome.error["message"]


def test_the_environment_and_other_processes_are_not_seen(closed: CodeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "nobody-may-see-it")
    text = """
import glob, os
seen = [dict(os.environ)]
for path in glob.glob("/proc/*/environ") + glob.glob("/proc/*/cmdline"):
    try: seen.append(open(path, "rb").read().decode())
    except OSError: pass
result = [str(seen), sorted(int(each) for each in os.listdir("/proc") if each.isdigit()), os.listdir("/proc/self/fd")]
"""
    outcome = run(closed, text)
    assert outcome.ok, outcome
    seen, processes, files = outcome.result
    assert "nobody-may-see-it" not in seen and "A_SECRET" not in seen
    assert processes == [1, 2]
    # Input, output, errors, the result, and the list itself.
    assert len(files) == 5


def test_no_powers_can_be_had(closed: CodeRunner) -> None:
    text = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
status = open("/proc/self/status").read()
held = [line.split()[1] for line in status.splitlines() if line.startswith(("CapPrm", "CapEff", "NoNewPrivs"))]
result = [held, libc.unshare(0x10000000), libc.mount(b"x", b"/tmp", b"tmpfs", 0, None), libc.sethostname(b"x", 1)]
"""
    outcome = run(closed, text)
    assert outcome.result == [["0000000000000000", "0000000000000000", "1"], -1, -1, -1], outcome


def test_code_that_nobody_waits_for_is_ended(runner: CodeRunner) -> None:
    began = time.monotonic()
    asked = iter([False, False, True])
    assert runner.run(code("while True: pass"), lambda: next(asked, True)) is None
    assert time.monotonic() - began < 6


@isolated
def test_code_dies_with_the_program(tmp_path: Path) -> None:
    program = """
from analemma.clock import SystemClock
from analemma.flows.node_types.code_running import Code, CodeRunner
import os, threading
threading.Timer(1.5, lambda: os.kill(os.getpid(), 9)).start()
code = Code("import time; time.sleep(77.5)", {}, 64, 5, 1, 60, False)
CodeRunner(isolation="namespaces", python=None, clock=SystemClock()).run(code, lambda: False)
"""
    ended = subprocess.run([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert ended.returncode == -9
    until = time.monotonic() + 5
    while (left := _running(str(tmp_path))) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == []


def _running(directory: str) -> list[str]:
    """Processes of the code that was given this directory: their guard works in it."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{process}/cwd").startswith(directory):
                found.append(process)
        except OSError:
            continue
    return found


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


def test_a_program_with_many_open_files_runs_code(closed: CodeRunner) -> None:
    program = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
held = [os.open("/dev/null", 0) for _ in range(1100)]
from analemma.clock import SystemClock
from analemma.flows.node_types.code_running import Code, CodeRunner
code = Code("import os; result = len(os.listdir('/proc/self/fd'))", {}, 64, 5, 1, 20, False)
print(CodeRunner(isolation="namespaces", python=None, clock=SystemClock()).run(code, lambda: False).result)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == "5", done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_what_is_mounted_below_a_library_cannot_be_written_to(closed: CodeRunner) -> None:
    place = next(str(each) for each in sorted(Path("/usr/lib").iterdir()) if each.is_dir() and not each.is_symlink())
    tries = f"""
result = []
for name in ("{place}/x", "{place}/a b/x"):
    try: open(name, "w").write("x"); result.append("written")
    except OSError as exc: result.append(exc.strerror)
"""
    program = f"""
import os
from analemma.clock import SystemClock
from analemma.flows.node_types import code_child
from analemma.flows.node_types.code_running import Code, CodeRunner
code_child.call("unshare", code_child.CLONE_NEWNS)
code_child.mount("none", "/", None, code_child.MS_REC | code_child.MS_PRIVATE)
code_child.mount("tmpfs", {place!r}, "tmpfs", 0, "mode=1777,size=1m")
os.mkdir({place!r} + "/a b")
code_child.mount("tmpfs", {place!r} + "/a b", "tmpfs", 0, "mode=1777,size=1m")
code = Code({tries!r}, {{}}, 64, 5, 1, 20, False)
print(CodeRunner(isolation="namespaces", python=None, clock=SystemClock()).run(code, lambda: False))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.count("Read-only file system") == 2, (done.stdout, done.stderr)


@pytest.mark.skipif(os.geteuid() != 0, reason="not every kernel lets others change these")
def test_there_is_no_shared_memory_that_counts_for_nobody(closed: CodeRunner) -> None:
    text = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
result = [libc.shmget(0, ctypes.c_size_t(4096), 0o1600), libc.msgget(0, 0o1600), libc.semget(0, 1, 0o1600)]
"""
    assert run(closed, text).result == [-1, -1, -1]
