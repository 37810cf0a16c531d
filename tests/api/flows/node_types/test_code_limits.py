"""Code that takes too much: of time, memory, processes, files and output."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from analemma.flows.node_types.code_running import CodeRunner
from tests.api.flows.node_types.code_runners import closed, nothing_is_left, run, runner

__all__ = ["closed", "nothing_is_left", "runner"]


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
