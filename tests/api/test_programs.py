"""That a forked program is a process as one that was started is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analemma.testing import failpoints
from tests import programs

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "tests.program_example"]
TEXT: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60}


def test_it_has_its_own_arguments_input_directory_and_environment(tmp_path: Path) -> None:
    done = programs.run(
        [*COMMAND, "tell", "a", "ß"], input="some\nlines", cwd=tmp_path, env={**os.environ, "TOLD": "so"}, **TEXT
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told.pop("parent") == os.getpid()
    assert told == {
        "arguments": ["a", "ß"],
        "directory": str(tmp_path),
        "variable": "so",
        "input": "some\nlines",
        "name": "__main__",
    }


@pytest.mark.parametrize("code", [0, 3])
def test_its_exit_code_is_known(code: int) -> None:
    assert programs.run([*COMMAND, str(code)], **TEXT).returncode == code


def test_what_it_raises_is_said_as_python_says_it() -> None:
    done = programs.run([*COMMAND, "fail"], **TEXT)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ValueError: as it was told")


def test_it_dies_at_its_own_failpoint_and_the_next_does_not() -> None:
    armed = {**os.environ, failpoints.VARIABLE: "commit.before_transaction"}
    assert programs.run([*COMMAND, "pass"], env=armed, **TEXT).returncode == -signal.SIGKILL
    done = programs.run([*COMMAND, "pass"], **TEXT)
    assert (done.returncode, done.stdout) == (0, "passed\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_can_be_killed_and_waited_for(number: signal.Signals) -> None:
    with programs.Program([*COMMAND, "wait"], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        assert program.poll() is None
        program.send_signal(number)
        assert program.wait(30) == -number
    with pytest.raises(ProcessLookupError):
        os.kill(program.pid, 0)


def test_one_that_takes_too_long_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        programs.run([*COMMAND, "wait"], capture_output=True, timeout=0.5)


def test_what_is_not_ours_is_started() -> None:
    done = programs.run([sys.executable, "-c", "print(__name__)"], check=True, **TEXT)
    assert done.stdout == "__main__\n"
