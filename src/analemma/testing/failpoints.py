"""Failpoints for tests: kill or stop a program at a named place, or do something else at that moment.

A guard against a second actor shows only if the second acts at the right moment. `call` runs a function in this process
when a place is passed; `paused` holds a call there in a thread of its own while the test goes on; `variable` is the
environment in which another program dies or stops there. The places are listed by `names`, and in the reference. Below
them are `VARIABLE`, `arm` and `hit`, for programs that choose their failpoint while they run.
"""

from __future__ import annotations

import importlib
import pkgutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Generic, Literal, TypeVar

import analemma
from analemma import failpoints
from analemma.catalog.engine.sql import SQLITE
from analemma.errors import Invalid, Timeout
from analemma.failpoints import VARIABLE as VARIABLE
from analemma.failpoints import arm as arm
from analemma.failpoints import hit as hit

T = TypeVar("T")

OPTIONAL = ("analemma.langgraph", "analemma.testing")
"""Packages with modules that cannot be imported without an extra."""


def names() -> dict[str, str]:
    """Every failpoint, and what has happened when it is passed.

    >>> names()["commit.after_commit"]
    'committed, but the caller does not know'
    """
    for module in pkgutil.walk_packages(analemma.__path__, "analemma."):
        if module.name == "analemma.__main__":
            continue
        try:
            importlib.import_module(module.name)
        except ImportError:
            if not module.name.startswith(OPTIONAL):
                raise
    SQLITE.every_procedure()
    return dict(sorted(failpoints.NAMES.items()))


def steps() -> dict[str, str]:
    """The failpoints inside of the store's transactions, before each of their statements: what follows. They are passed
    on SQLite only, and change with the statements."""
    SQLITE.every_procedure()
    return dict(sorted(failpoints.STEPS.items()))


def wait_at_steps(url: str) -> None:
    """Have the functions of a store on PostgreSQL wait before each of their statements, for an advisory lock that is
    called as the step: `SELECT pg_advisory_lock(hashtextextended('put_ref.2', 0))` holds whoever comes to that one.
    For databases of tests: nothing undoes it."""
    from analemma.catalog.engine.postgres.engine import PostgresEngine
    from analemma.catalog.engine.postgres.functions import functions

    with closing(PostgresEngine(url)) as engine:
        text = ";\n".join(function.create_waiting() for function in functions().values())
        engine.write(lambda tx: tx.script(text))


def variable(name: str, *, time: int = 1, then: Literal["kill", "stop"] = "kill") -> dict[str, str]:
    """What to add to a program's environment so that it is killed, or stopped, the so manieth time it passes there.

    A stopped program goes on after SIGCONT; `os.waitpid(pid, os.WUNTRACED)` waits until it has stopped.

    >>> variable("commit.after_commit", time=2)
    {'ANALEMMA_FAILPOINT': 'commit.after_commit:2:kill'}
    """
    return {failpoints.VARIABLE: f"{_known(name)}:{time}:{then}"}


@contextmanager
def call(name: str, function: Callable[[], object], *, time: int = 1) -> Iterator[None]:
    """While this lasts, call `function` the so manieth time that any thread of this process passes the place.

    It is called once, in the thread that passes; what it raises is raised there. One place at a time."""
    passed = False

    def act() -> None:
        nonlocal passed
        passed = True
        function()

    failpoints.arm(f"{_known(name)}:{time}", act)
    try:
        yield
    finally:
        failpoints.arm(None)
    if not passed:
        raise Invalid(f"{name} was not passed {time} times", hint="a test that waits for it would test nothing")


class Paused(Generic[T]):
    """A call that stands at a failpoint in a thread of its own."""

    def __init__(self, function: Callable[[], T], timeout_s: float) -> None:
        self._function = function
        self._timeout_s = timeout_s
        self._there = threading.Event()
        self._go_on = threading.Event()
        self._ended = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="paused", daemon=True)

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as exc:
            self._error = exc
        finally:
            self._ended.set()
            self._there.set()

    def _pause(self) -> None:
        self._there.set()
        if not self._go_on.wait(self._timeout_s):
            raise Timeout(f"nobody let the call go on within {self._timeout_s:g} s")

    def _start(self, name: str) -> None:
        self._thread.start()
        if not self._there.wait(self._timeout_s):
            raise Timeout(f"the call did not come to {name} within {self._timeout_s:g} s")
        if self._ended.is_set():
            if self._error is not None:
                raise self._error
            raise Invalid(f"the call ended without passing {name}", hint="a test that waits for it would test nothing")

    def go_on(self) -> T:
        """Let it go on to its end: its result, or what it raised."""
        self._go_on.set()
        if not self._ended.wait(self._timeout_s):
            raise Timeout(f"the call did not end within {self._timeout_s:g} s")
        self._thread.join(self._timeout_s)
        if self._error is not None:
            raise self._error
        result: T = self._result
        return result


@contextmanager
def paused(name: str, function: Callable[[], T], *, time: int = 1, timeout_s: float = 60) -> Iterator[Paused[T]]:
    """Call `function` in a thread, and hold it where it passes the place for the so manieth time.

    >>> with paused("commit.before_transaction", lambda: slow.save_state_delta(...)) as late:  # doctest: +SKIP
    ...     quick.save_state_delta(...)
    ...     late.go_on()
    Traceback (most recent call last):
    analemma.errors.HeadMoved: ...

    Whoever passes the place afterwards is not held. A call that was not asked to go on does so when this ends."""
    held = Paused(function, timeout_s)
    failpoints.arm(f"{_known(name)}:{time}", held._pause)
    try:
        held._start(name)
        yield held
    finally:
        failpoints.arm(None)
        held._go_on.set()
        held._thread.join(timeout_s)


def _known(name: str) -> str:
    if name not in failpoints.NAMES and name not in names() and name not in steps():
        raise Invalid(f"there is no failpoint {name}", hint="analemma.testing.failpoints.names() lists them")
    return name
