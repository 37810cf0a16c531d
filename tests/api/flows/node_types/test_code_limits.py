"""Code that takes too much: of time, memory, processes, files and output."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from analemma import App
from tests.api.flows.node_types.code_runners import answer, closed, failure, flow, nothing_is_left, runner
from tests.depth import some

__all__ = ["closed", "nothing_is_left", "runner"]

ENDLESS = {
    "busy": "while True: pass",
    "asleep": "import time; time.sleep(100)",
    "deaf": "import signal, time\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\nwhile True: time.sleep(1)",
    "silent": "import os; os.close(1); os.close(2)\nwhile True: pass",
}


@pytest.mark.parametrize("how", some(list(ENDLESS), test=["deaf"]))
def test_code_without_end_is_ended(runner: App, how: str) -> None:
    run = flow(runner, code=ENDLESS[how], timeout_s=0.7)
    assert run.error is not None and run.error.kind == "timeout"


def test_code_that_takes_too_much_of_a_processor_is_ended(runner: App) -> None:
    assert "it took more than 1 s of a processor" in failure(runner, "while True: pass", cpu_s=1)


HUNGRY = {
    "at once": "x = 'a' * 10**9",
    "bit by bit": "x = []\nwhile True: x.append('y' * 100000)",
    "mapped": "import mmap; mmap.mmap(-1, 10**9)[0] = 1",
}


@pytest.mark.parametrize("how", some(list(HUNGRY), test=["bit by bit"]))
def test_code_that_takes_too_much_memory_gets_none(runner: App, how: str) -> None:
    assert "memory" in failure(runner, HUNGRY[how]).lower()


def test_code_cannot_fork_for_ever(runner: App) -> None:
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
    assert 0 < answer(runner, text)["result"] < 16


def running(mark: str) -> bool:
    """Whether a process of this name is there."""
    return mark in subprocess.run(["ps", "-eo", "comm="], capture_output=True, text=True, check=True).stdout


def test_a_bomb_of_forks_goes_off_inside(runner: App) -> None:
    mark = f"bomb{os.getpid()}{time.monotonic_ns()}"[:15]
    text = f"""
import os
if os.path.exists("/proc/self/comm"):
    open("/proc/self/comm", "w").write("{mark}")
while True:
    try: os.fork()
    except OSError: pass
"""
    run = flow(runner, code=text, timeout_s=1.0)
    assert run.error is not None and run.error.kind == "timeout"
    end = time.monotonic() + 60
    while running(mark) and time.monotonic() < end:
        time.sleep(0.02)
    assert not running(mark)


def test_what_code_leaves_behind_is_killed(runner: App) -> None:
    mark = f"mark{os.getpid()}{time.monotonic_ns()}"[:15]
    text = f"""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        if os.path.exists("/proc/self/comm"):
            open("/proc/self/comm", "w").write("{mark}")
        while True: time.sleep(0.1)
    os._exit(0)
os.wait()
for _ in range(5):
    if os.fork() == 0: os._exit(0)   # Nobody buries these.
time.sleep(0.1)
result = "gone"
"""
    assert answer(runner, text)["result"] == "gone"
    assert not running(mark)


def test_code_that_prints_for_ever_is_ended(runner: App) -> None:
    found = answer(runner, "while True: print('x' * 10000)")
    assert "it printed more than" in found["error"]["message"] and len(found["output"]) == 64 << 10


def test_much_output_is_cut(runner: App) -> None:
    found = answer(runner, "print('x' * 1_000_000); result = 1")
    assert (found["ok"], found["result"], len(found["output"])) == (True, 1, 64 << 10)


def test_a_result_that_is_too_large_is_none(runner: App) -> None:
    assert "its result takes more than" in failure(runner, "result = 'x' * 5_000_000")


def test_files_are_limited_in_size_and_number(closed: App) -> None:
    assert failure(closed, "f = open('big', 'wb')\nfor _ in range(100): f.write(b'x' * 100_000)").startswith("OSError")
    assert "space" in failure(closed, "for n in range(100):\n    open(f'f{n}', 'wb').write(b'x' * 1_000_000)")
    assert "space" in failure(closed, "for n in range(5000): open(f'f{n}', 'wb').close()")
    assert "open files" in failure(closed, "x = [open('/dev/null') for _ in range(200)]")
    assert "Read-only" in failure(closed, "open('x', 'w')", disk_mb=0)
