"""Starts the process that runs foreign code, reads what it says within bounds, and ends it when nobody waits any more.

docs/explanation/what-nodes-may-do.md says what is isolated, and what is not."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from analemma.canon.canonical_json import parse_json
from analemma.clock import Clock
from analemma.errors import Denied, Internal, Invalid, Unavailable

Isolation = Literal["namespaces", "limits", "refuse"]

LARGEST_RESULT: Final = 4 << 20
DEEPEST_RESULT: Final = 100
"""States nest 128 deep, and a result is a part of one."""
LARGEST_REPORT: Final = 64 << 10
LARGEST_OUTPUT: Final = 64 << 10
"""So much of what code prints is kept."""
MOST_OUTPUT: Final = 16 << 20
"""Code that prints more is ended."""
SPARE_S: Final = 30.0
"""Longer than its own clock the guard is not waited for."""
LOOK_S: Final = 0.1
FIRST_USER: Final = 1_500_000_000
"""Numbers of users that nobody has, for code that is started by root."""
CHILD: Final = Path(__file__).with_name("code_child.py")


@dataclass(frozen=True, slots=True)
class Code:
    """What is run, on what, and how much of the machine it may use."""

    text: str
    state: dict[str, Any]
    memory_mb: int
    cpu_s: float
    disk_mb: int
    wall_s: float
    network: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What code came to. `reason` says why it did not end by itself: time, cpu, memory, output, result, killed."""

    ok: bool
    result: Any = None
    output: str = ""
    error: dict[str, str] | None = None
    reason: str | None = None


@dataclass(slots=True)
class _Heard:
    """What came out of the pipes so far."""

    result: bytearray = field(default_factory=bytearray)
    report: bytearray = field(default_factory=bytearray)
    output: bytearray = field(default_factory=bytearray)
    printed: int = 0
    exceeded: str | None = None

    def take(self, name: str, data: bytes) -> bool:
        """One piece of a pipe; False at its end."""
        if name == "output":
            self.printed += len(data)
            self.output += data[: max(0, LARGEST_OUTPUT - len(self.output))]
            if self.printed > MOST_OUTPUT:
                self.exceeded = self.exceeded or "output"
        elif name == "result":
            if len(self.result) + len(data) > LARGEST_RESULT:
                self.exceeded = self.exceeded or "result"
            else:
                self.result += data
        else:
            self.report += data[: LARGEST_REPORT - len(self.report)]
        return bool(data)


class CodeRunner:
    """Runs code. Threads may share it."""

    def __init__(self, *, isolation: Isolation, python: str | None, clock: Clock) -> None:
        self._isolation = isolation
        self._python = python
        self._clock = clock

    def run(self, code: Code, is_cancelled: Callable[[], bool]) -> Outcome | None:
        """What came of it; None if nobody waits for it any more. Denied if it cannot be isolated as it should be."""
        if not sys.platform.startswith("linux"):
            raise Denied("code is run on Linux only", hint="run the workers of such workflows there")
        directory = tempfile.mkdtemp(prefix="analemma-code-")
        try:
            return self._run(code, directory, is_cancelled)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _run(self, code: Code, directory: str, is_cancelled: Callable[[], bool]) -> Outcome | None:
        given = self._given(code, directory)
        pipes = [os.pipe() for _ in range(3)]
        (result, result_write), (report, report_write), (life, life_write) = pipes
        passed = (result_write, report_write, life)
        # Whoever waits for the end of the guard's life must see it, also if this process dies: it holds this pipe.
        living = _Living(life_write)
        try:
            process = self._started(passed, directory)
        except BaseException:
            for each in (result, report):
                os.close(each)
            living.end()
            raise
        finally:
            for each in passed:
                os.close(each)
        try:
            heard = self._listen(
                process, given, {"result": result, "report": report}, code.wall_s, living, is_cancelled
            )
        finally:
            living.end()
            _reap(process)
            for each in (result, report):
                os.close(each)
        return None if heard is None else _outcome(heard, code)

    def _started(self, passed: tuple[int, ...], directory: str) -> subprocess.Popen[bytes]:
        command = self._command()
        try:
            return subprocess.Popen(
                [*command, str(CHILD), *map(str, passed)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=passed,
                cwd=directory,
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                start_new_session=True,
            )
        except OSError as exc:
            raise Unavailable(
                f"the interpreter {command[0]} cannot be started: {exc.strerror}", hint="see the setting code_python"
            ) from exc

    def _given(self, code: Code, directory: str) -> bytes:
        if self._isolation == "limits" and os.geteuid() == 0:
            # The code is another user there.
            os.chmod(directory, 0o777)
        return json.dumps(
            {
                "code": code.text,
                "state": code.state,
                "isolation": self._isolation,
                "network": code.network,
                "memory_mb": code.memory_mb,
                "cpu_s": code.cpu_s,
                "disk_mb": code.disk_mb,
                "wall_s": code.wall_s,
                "directory": directory,
                "user": FIRST_USER + int.from_bytes(os.urandom(3), "big"),
            }
        ).encode()

    def _command(self) -> list[str]:
        # Without packages: what is installed here is no business of foreign code. Another interpreter has its own.
        return [sys.executable, "-I", "-S", "-B"] if self._python is None else [self._python, "-I", "-B"]

    def _listen(
        self,
        process: subprocess.Popen[bytes],
        given: bytes,
        pipes: dict[str, int],
        wall_s: float,
        living: _Living,
        is_cancelled: Callable[[], bool],
    ) -> _Heard | None:
        """Hear it out; None if nobody waits for it any more."""
        assert process.stdin is not None and process.stdout is not None
        heard, cancelled = _Heard(), False
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(given)
        until = self._clock.monotonic() + wall_s + SPARE_S
        with selectors.DefaultSelector() as selector, process.stdout as stdout:
            for name, number in {**pipes, "output": stdout.fileno()}.items():
                os.set_blocking(number, False)
                selector.register(number, selectors.EVENT_READ, name)
            while selector.get_map():
                for key, _ in selector.select(LOOK_S):
                    if not heard.take(key.data, os.read(key.fd, 65_536)):
                        selector.unregister(key.fd)
                cancelled = cancelled or is_cancelled()
                if cancelled or heard.exceeded is not None:
                    living.end()
                if self._clock.monotonic() > until:
                    # The guard itself does not answer.
                    heard.exceeded = heard.exceeded or "time"
                    _kill(process)
                    break
        return None if cancelled else heard


class _Living:
    """The pipe whose end tells the guard to kill what it guards."""

    def __init__(self, number: int) -> None:
        self._number: int | None = number

    def end(self) -> None:
        number, self._number = self._number, None
        if number is not None:
            os.close(number)


def _outcome(heard: _Heard, code: Code) -> Outcome:
    try:
        report = json.loads(bytes(heard.report) or b"{}")
    except ValueError as exc:
        raise Internal("the guard of foreign code gave no report") from exc
    output = heard.output.decode("utf-8", "replace")
    if heard.exceeded is not None:
        return _failed(heard.exceeded, output, code)
    match report.get("reason"):
        case "refused":
            raise Denied(
                f"code cannot be isolated here: {report.get('why')}",
                hint="see code_isolation among the settings, and what each of its values means",
            )
        case "time":
            return _failed("time", output, code)
        case "ended" if report.get("signal") == signal.SIGXCPU:
            return _failed("cpu", output, code)
        case "ended" if "signal" in report:
            return _failed("killed", output, code, _signal_name(report["signal"]))
        case "ended" if heard.result:
            return _told(bytes(heard.result), output)
        case "ended":
            return _failed("nothing", output, code)
    raise Unavailable("the guard of foreign code was killed", hint="is there enough memory?")


def _told(data: bytes, output: str) -> Outcome:
    """What the code says it came to: foreign data, like everything of it."""
    try:
        told = parse_json(data)
        _check_storable(told.get("result") if isinstance(told, dict) else None)
    except Invalid as exc:
        return _unfit(exc.message[:300], output)
    if not isinstance(told, dict) or type(told.get("ok")) is not bool:
        return _unfit("it is none", output)
    if told["ok"]:
        return Outcome(True, told.get("result"), output)
    found = told.get("error")
    given = found if isinstance(found, dict) else {}
    error = {name: str(given.get(name, ""))[:4000] for name in ("type", "message", "traceback")}
    return Outcome(False, None, output, error, "memory" if error["type"] == "MemoryError" else None)


def _unfit(why: str, output: str) -> Outcome:
    message = f"the result is no JSON that can be stored: {why}"
    return Outcome(False, None, output, {"type": "ValueError", "message": message, "traceback": ""}, "result")


def _check_storable(value: Any) -> None:
    """Invalid if a result could not be a part of a state: said here, it is the code's failure and not the run's."""
    level, depth = [value], 0
    while level:
        if any(type(each) is int and not -(2**63) <= each < 2**64 for each in level):
            raise Invalid("an integer is outside of -2^63..2^64-1")
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [each for values in inner for each in values]
        depth += bool(inner)
        if depth > DEEPEST_RESULT:
            raise Invalid(f"it nests deeper than {DEEPEST_RESULT}")


def _signal_name(number: int) -> str:
    """Not all of them have one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _failed(reason: str, output: str, code: Code, detail: str = "") -> Outcome:
    messages = {
        "time": f"it took longer than {code.wall_s:g} s",
        "cpu": f"it took more than {code.cpu_s:g} s of a processor",
        "output": f"it printed more than {MOST_OUTPUT} bytes",
        "result": f"its result takes more than {LARGEST_RESULT} bytes",
        "killed": f"it was killed by {detail}",
        "nothing": "it ended without a result",
    }
    error = {"type": "Limit", "message": messages[reason], "traceback": ""}
    return Outcome(False, None, output, error, reason)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(timeout=SPARE_S)
    except subprocess.TimeoutExpired:
        _kill(process)
        process.wait()
