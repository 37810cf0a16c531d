"""Programs in processes of their own, forked from one that has imported the package already.

Starting Python and importing the package takes most of a second; a fork takes a few milliseconds. What is forked is a
process as any other: it can be killed, stopped and waited for, has its own environment, output and failpoint, and ends
as Python ends. `Program` and `run` take what `subprocess.Popen` and `subprocess.run` take.

`python -m tests.programs NUMBER` is the process that forks; it is asked over the socket of that number."""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import inspect
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import walk_packages
from typing import IO, Any

import analemma
from analemma.testing import failpoints

ROOT = Path(__file__).parents[1]
LONGEST_REQUEST = 1 << 17
STANDARD = 3
"""Input, output and errors."""

SET_CHILD_SUBREAPER = 36
"""Of prctl(2)."""

LEFT_OUT = ("analemma.__main__", "analemma.testing", "analemma.executors")
"""Modules that are programs, or need packages that take long to import and are hardly ever wanted."""


class Program(subprocess.Popen[Any]):
    """A program: `[sys.executable, "-m", MODULE, ...]` is forked if the module is ours, anything else is started."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        given = inspect.signature(subprocess.Popen._execute_child).bind(self, args, *rest).arguments  # type: ignore[attr-defined]
        if not _forkable(args):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        request = {
            "arguments": [os.fspath(argument) for argument in args[2:]],
            "directory": os.fspath(given["cwd"] or os.getcwd()),
            "environment": dict(os.environ if given["env"] is None else given["env"]),
            "session": bool(given["start_new_session"]),
        }
        ours = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        self.pid = _forks().fork(request, [number if end == -1 else end for number, end in enumerate(ours)])
        self._child_created = True
        pipes = [given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _forkable(command: Sequence[Any]) -> bool:
    module = command[2] if list(command[:2]) == [sys.executable, "-m"] else ""
    return sys.platform.startswith("linux") and (module == "analemma" or module.startswith("tests."))


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    capture_output: bool = False,
    timeout: float | None = None,
    input: Any = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a program to its end, as `subprocess.run` does."""
    if capture_output:
        options.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Program(command, **options) as program:
        try:
            out, errors = program.communicate(input, timeout=timeout)
        except BaseException:
            program.kill()
            raise
    done = subprocess.CompletedProcess(program.args, program.returncode, out, errors)
    if check:
        done.check_returncode()
    return done


class _Forks:
    """The process that forks, seen from the one that asks."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.programs", str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        atexit.register(self._end)

    def _end(self) -> None:
        """It ends when nobody can ask it any more."""
        if os.getpid() == self.owner:
            self._socket.close()
            self._process.wait()

    def fork(self, request: Mapping[str, Any], standard: Sequence[int]) -> int:
        """Run what is asked for, with this input and output; the number of its process, which is our child."""
        with self._lock:
            # The one that forks it leaves it at once, and we take it on: so it is waited for as any other child.
            _adopt(True)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], list(standard))
                answer = self._socket.recv(LONGEST_REQUEST)
            finally:
                _adopt(False)
        if not answer:
            raise RuntimeError(f"the process that forks programs ended with {self._process.wait()}")
        return int(answer)


_known: _Forks | None = None


def _forks() -> _Forks:
    global _known
    if _known is None or _known.owner != os.getpid():
        _known = _Forks()
    return _known


def _adopt(orphans: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; comes back in what was forked, with the request, and with nothing in the end."""
    while True:
        message, standard, _, _ = socket.recv_fds(requests, LONGEST_REQUEST, STANDARD)
        if not message:
            return None
        request: dict[str, Any] = json.loads(message)
        _prepare(request["arguments"][0])
        # Whatever a thread holds would stay held in what is forked.
        assert threading.active_count() == 1, threading.enumerate()
        reading, writing = os.pipe()
        if (between := os.fork()) == 0:
            if (program := os.fork()) == 0:
                for end in (reading, writing, requests.detach()):
                    os.close(end)
                _become(request, standard)
                return request
            os.write(writing, str(program).encode())
            os._exit(0)
        os.waitpid(between, 0)
        requests.send(os.read(reading, 32))
        for end in (reading, writing, *standard):
            os.close(end)


def _import_package() -> None:
    """All of it: much is imported only when it is used, which would be in each of the programs again."""
    for module in walk_packages(analemma.__path__, "analemma."):
        if not module.name.startswith(LEFT_OUT):
            importlib.import_module(module.name)
    importlib.import_module("opentelemetry.trace.propagation.tracecontext")
    with tempfile.TemporaryDirectory() as directory:
        # What is read when a store is opened is read once, and kept.
        analemma.open(directory, migrate=True).close()
    # What there is by now stays: the programs need not look through it, nor copy it by doing so.
    gc.freeze()


def _prepare(module: str) -> None:
    """Import what the program imports: all of it but the module itself, which the program runs. What a `warm_up` of its
    does, programs need not do again."""
    if module in _prepared or not module.startswith("tests."):
        return
    _prepared.add(module)
    getattr(importlib.import_module(module), "warm_up", lambda: None)()
    del sys.modules[module]


_prepared: set[str] = set()


def _become(request: Mapping[str, Any], standard: Sequence[int]) -> None:
    for number, end in enumerate(standard):
        os.dup2(end, number, inheritable=True)
        os.close(end)
    if request["session"]:
        os.setsid()
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    failpoints.arm(os.environ.get(failpoints.VARIABLE))
    random.seed()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["", *request["arguments"][1:]]
    # A stream knows how to buffer from what it was opened on.
    sys.stdout = _stream(1, "w")
    sys.stdin = _stream(0, "r")


def _stream(number: int, mode: str) -> Any:
    opened: IO[str] = open(number, mode, closefd=False)  # noqa: SIM115
    return opened


def _main() -> None:
    _import_package()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        request = _serve(requests)
    if request is None:
        return
    try:
        runpy.run_module(request["arguments"][0], run_name="__main__", alter_sys=True)
    except SystemExit as exc:
        if not isinstance(exc.code, int | None):
            raise
        code = exc.code or 0
    else:
        code = 0
    _end(code)


def _end(code: int) -> None:
    """End as Python does, but leave what was imported as it is: clearing it away would first copy all of it, which
    takes longer than most programs."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    _main()
