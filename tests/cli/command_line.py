"""The command line as one user has it: run in this process, which takes a few milliseconds, or as a process of its own,
which takes a hundred times that and is for what only a process shows."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

import pytest

from tests.stores import Store

PROGRAM = str(Path(sys.executable).with_name("analemma"))
OK = 0
BROKEN_PIPE = 141
CODES = {
    "error": 1,
    "internal": 1,
    "invalid": 2,
    "not_found": 3,
    "conflict": 4,
    "head_moved": 4,
    "expired": 5,
    "corrupt": 6,
    "unavailable": 7,
    "outcome_unknown": 7,
    "denied": 8,
    "limit": 9,
    "timeout": 10,
    "data_lost": 11,
    "consistency": 12,
}
"""The exit code of each kind of error. Scripts rely on them: a kind may be added, none may change."""

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class CommandLine:
    """One user in one directory."""

    directory: Path
    variables: dict[str, str]

    def run(self, *arguments: str, given: str | None = None, **variables: str) -> Done:
        """What a command does that is run in this process: exit code and output are those of the process."""
        output, errors = _text(), _text()
        with ExitStack() as meanwhile:
            meanwhile.enter_context(chdir(self.directory))
            meanwhile.enter_context(_environment(self._environment(variables)))
            meanwhile.enter_context(_standard_input(given or ""))
            meanwhile.enter_context(redirect_stdout(output))
            meanwhile.enter_context(redirect_stderr(errors))
            meanwhile.enter_context(_arguments(arguments))
            code = _exit_code()
        return Done([PROGRAM, *arguments], code, _written(output), _written(errors))

    def process(self, *arguments: str, given: str | None = None, **variables: str) -> Done:
        """The same in a process of its own, through the program that users start."""
        return subprocess.run(
            [PROGRAM, *arguments],
            cwd=self.directory,
            env=self._environment(variables),
            input=given or "",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def text(self, *arguments: str, given: str | None = None, **variables: str) -> str:
        """What a command prints that must work."""
        done = self.run(*arguments, given=given, **variables)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def answer(self, *arguments: str, given: str | None = None, **variables: str) -> Any:
        """The same as JSON."""
        return json.loads(self.text(*arguments, "--json", given=given, **variables))

    def save(self, *assignments: str, workflow: str = "trip") -> Any:
        options = [part for assignment in assignments for part in ("--set", assignment)]
        return self.answer("save", "--workflow", workflow, *options)["commit"]

    def error(self, kind: str, *arguments: str, given: str | None = None, **variables: str) -> str:
        """The error line of a command that must fail with this kind, and with at most a hint besides."""
        done = self.run(*arguments, given=given, **variables)
        assert done.returncode == CODES[kind], (arguments, done.stderr or done.stdout)
        lines = done.stderr.splitlines()
        assert lines[0].startswith("error: "), arguments
        assert [line[:6] for line in lines[1:]] in ([], ["hint: "]), arguments
        return lines[0].removeprefix("error: ")

    def _environment(self, variables: dict[str, str]) -> dict[str, str]:
        others = {name: value for name, value in os.environ.items() if not name.startswith("ANALEMMA_")}
        return others | self.variables | variables


def at(store: Store, directory: Path) -> CommandLine:
    """A user of a new store."""
    line = user_of(store, directory)
    line.text("init")
    return line


def user_of(store: Store, directory: Path | None = None) -> CommandLine:
    """A user of a store that there is."""
    variables = {"ANALEMMA_URL": store.url, "ANALEMMA_OWNER": "ann"}
    if store.objects is not None:
        variables["ANALEMMA_OBJECTS"] = store.objects
    return CommandLine(directory or Path.cwd(), variables)


@cache
def _program() -> Callable[[], object]:
    (program,) = entry_points(group="console_scripts", name="analemma")
    return cast(Callable[[], object], program.load())


def _exit_code() -> int:
    """What the installed program exits with that is called here."""
    with pytest.raises(SystemExit) as ended:
        _program()()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def _text() -> io.TextIOWrapper:
    # As the streams of a process are: text over bytes, and what is no text cannot be written to it.
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8")


def _written(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _arguments(arguments: Sequence[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = [PROGRAM, *arguments]
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _standard_input(given: str) -> Iterator[None]:
    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(given.encode()), encoding="utf-8")
    try:
        yield
    finally:
        sys.stdin = before
