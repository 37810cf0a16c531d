"""The second of two actors: a function in a process of its own, stopped or killed at a failpoint.

`python -m tests.actors FILE FUNCTION ARGUMENTS` is that process; the arguments are a list in JSON."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

from analemma.testing import failpoints
from tests.programs import Program

LONGEST_S = 60


class Actor:
    """A function in another process: `with Actor(function, argument, at="commit.before_transaction") as actor`.

    The function stands at the top level of its module and takes what JSON has. What it prints is `output` in the
    end."""

    def __init__(
        self,
        function: Callable[..., object],
        *arguments: Any,
        at: str | None = None,
        turn: int = 1,
        then: Literal["kill", "stop"] = "stop",
    ) -> None:
        file = inspect.getsourcefile(function)
        assert file is not None
        self._program = Program(
            [sys.executable, "-m", "tests.actors", file, function.__name__, json.dumps(arguments)],
            env={**os.environ, **({} if at is None else failpoints.variable(at, time=turn, then=then))},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._program.pid
        self._ended: int | None = None
        self.output = ""
        self.errors = ""

    def __enter__(self) -> Actor:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ended is None and self._program.poll() is None:
            self._program.kill()
            os.kill(self.pid, signal.SIGCONT)
        self._program.communicate()

    def wait_until_stopped(self) -> None:
        """Come back when it stands at its failpoint."""
        end = time.monotonic() + LONGEST_S
        while time.monotonic() < end:
            found, status = os.waitpid(self.pid, os.WUNTRACED | os.WNOHANG)
            if found and os.WIFSTOPPED(status):
                return
            if found:
                self._program.returncode = os.waitstatus_to_exitcode(status)
                raise AssertionError(f"it ended before it stopped: {self._program.communicate()}")
            time.sleep(0.002)
        raise AssertionError("it did not stop")

    def freeze(self) -> None:
        """Stop it wherever it is."""
        os.kill(self.pid, signal.SIGSTOP)
        self.wait_until_stopped()

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def wait(self) -> int:
        """Come back when it has ended; its exit status, negative for a signal."""
        self.output, self.errors = self._program.communicate(timeout=LONGEST_S)
        self._ended = self._program.returncode
        return self._ended


def _main() -> None:
    file, name, arguments = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("actor", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["actor"] = module
    spec.loader.exec_module(module)
    getattr(module, name)(*json.loads(arguments))


if __name__ == "__main__":
    _main()
