"""What is named that there is not, or cannot be used: the command line says what to do next."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_line import CODES, CommandLine, at
from tests.stores import Store


@pytest.fixture
def here(tmp_path: Path) -> CommandLine:
    line = at(Store(str(tmp_path / "store")), tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "latin").write_bytes(b'{"name": "caf\xe9"}')
    line.save("a=1")
    return line


def hint(line: CommandLine, kind: str, *arguments: str) -> str:
    """What a command that must fail with this kind says behind its error."""
    done = line.run(*arguments)
    assert done.returncode == CODES[kind], done.stderr or done.stdout
    error, said = done.stderr.splitlines()
    assert error.startswith("error: ")
    return said.removeprefix("hint: ")


UNKNOWN = [
    ["workspace", "archive", "ws9"],
    ["archive", "ws9"],
    ["restore", "ws9"],
    *(["workspace", verb, "ws9"] for verb in ("show", "restore", "start", "stop", "recover", "delete", "undelete")),
    ["workspace", "purge", "ws9", "--yes"],
]
UNUSABLE = [
    ("invalid", ["workspace", "create", "ws1", "--volume", "file"], "move it away, or use another directory"),
    ("invalid", ["workspace", "create", "ws1", "--volume", ".analemma-x"], "use another directory"),
    ("not_found", ["load", "-w", "trip", "--field", "b"], "leave out --field to see what it has"),
    ("not_found", ["load", "-w", "trip", "--execution", "x"], "or leave out --execution"),
    ("invalid", ["save", "-w", "trip", "--file", "latin"], "save it as UTF-8"),
]


def test_an_unknown_workspace_is_told_where_those_are_that_there_are(here: CommandLine) -> None:
    said = {" ".join(command): hint(here, "not_found", *command) for command in UNKNOWN}
    assert said == dict.fromkeys(said, "analemma workspace list lists them")


def test_what_cannot_be_used_is_told_what_to_do(here: CommandLine) -> None:
    said = {" ".join(command): (hint(here, kind, *command), expected) for kind, command, expected in UNUSABLE}
    assert {name: found for name, (found, expected) in said.items() if expected not in found} == {}
