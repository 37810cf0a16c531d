"""The real program as processes: each of its command modules once, and what it loads when it starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from analemma.cli.application import application
from analemma.cli.command_modules import MODULES
from analemma.cli.exit_codes import CODES, OK
from analemma.cli.reference import every_command
from tests.cli.command_line import CommandLine, at
from tests.stores import Store

NEEDS_NO_STORE = {"analemma.app", "libipld", "obstore", "orjson", "psycopg", "pydantic", "sqlite3", "zstandard"}
"""What no command line needs to find its command and to read its options."""
NEEDS_NO_SAVE = {
    "analemma.bag.handlers",
    "analemma.bag.payloads",
    "analemma.catalog.collecting",
    "analemma.catalog.packing",
    "analemma.catalog.postgres",
    "analemma.gc",
    "obstore",
    "psycopg",
    "redis",
    "rich",
}
"""What neither saving nor reading an embedded store needs."""


@pytest.fixture
def here(tmp_path: Path) -> CommandLine:
    line = at(Store(str(tmp_path / "store")), tmp_path)
    line.save("n=1")
    return line


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["init", "other"], OK),
        (["status"], OK),
        (["version"], OK),
        (["load", "-w", "trip"], OK),
        (["log", "-w", "trip"], OK),
        (["branches", "-w", "trip"], OK),
        (["tag", "-w", "trip"], OK),
        (["workflow", "list"], OK),
        (["segments", "show", "-w", "trip"], OK),
        (["retention", "show", "-w", "trip"], OK),
        (["gc", "status"], OK),
        (["worker", "--once"], OK),
        (["pack", "--dry-run"], OK),
        (["export", "lifecycle", "--bucket", "shop"], OK),
        (["load", "-w", "nothing"], CODES["not_found"]),
        (["gc", "nonsense"], CODES["invalid"]),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else str(value),
)
def test_a_process_says_what_the_command_says(arguments: list[str], code: int, here: CommandLine) -> None:
    done = here.process(*arguments, "--json")
    assert done.returncode == code, done.stderr
    if code == OK:
        assert isinstance(json.loads(done.stdout), dict) and done.stderr == ""
    else:
        assert "error" in json.loads(done.stderr) and done.stdout == ""


def test_what_one_process_saves_from_its_input_another_reads(here: CommandLine) -> None:
    saved = here.process("save", "-w", "trip", "--file", "-", "--json", given='{"goal": "Seoul"}')
    assert (saved.returncode, json.loads(saved.stdout)["commit"]["version"]) == (OK, 2)
    assert json.loads(here.process("load", "-w", "trip").stdout) == {"n": 1, "goal": "Seoul"}
    assert here.process("rollback", "1", "-w", "trip", given="yes\n").stdout.startswith("remove  /goal\n")
    assert here.process("load", "-w", "trip").stdout == here.text("load", "-w", "trip")


def test_the_command_is_there_as_a_module_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "analemma", "gc", "nonsense"], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (CODES["invalid"], "")
    assert done.stderr.startswith("error: No such command 'nonsense'.\n")


def loaded_by(program: str, directory: Path) -> set[str]:
    """The modules that a new interpreter has after a program, and the packages that they are in."""
    code = f"{program}\nimport sys\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=directory, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_the_command_line_starts_without_what_it_may_not_need(tmp_path: Path) -> None:
    loaded = loaded_by("import analemma.cli.running", tmp_path)
    assert not (NEEDS_NO_STORE | NEEDS_NO_SAVE | set(MODULES.values())) & loaded


def test_saving_and_reading_load_only_what_they_use(tmp_path: Path) -> None:
    store = ("-u", str(tmp_path / "store"), "-o", "ann", "-w", "trip")
    commands = (
        ["init", store[1]],
        ["save", *store, "-s", "n=1"],
        ["load", *store],
        ["log", *store],
        ["show", "1", *store],
    )
    program = f"from analemma.cli.running import run\nassert not any(map(run, {commands!r}))"
    loaded = loaded_by(program, tmp_path)
    assert not NEEDS_NO_SAVE & loaded
    modules = {MODULES[name] for name in ("save", "load", "log", "show")}
    assert set(MODULES.values()) & loaded == modules


def test_importing_the_library_loads_no_collector_and_no_payloads(tmp_path: Path) -> None:
    assert not NEEDS_NO_SAVE & loaded_by("import analemma; analemma.open", tmp_path)


def test_every_command_is_found_in_the_module_that_is_said_to_have_it() -> None:
    files = Path(__file__).parents[2] / "src" / "analemma" / "cli"
    assert set(MODULES.values()) == {f"analemma.cli.{path.stem}" for path in files.glob("*_commands.py")}
    own = {command.name or command.callback.__name__ for command in application.registered_commands if command.callback}
    assert {name.split()[1] for name, _ in every_command()} == own | MODULES.keys()
    for name, command in every_command():
        first, last = name.split()[1], name.split()[-1]
        # One command may stand in two places; then it is that of the module which has its name.
        places = {MODULES.get(first, "analemma.cli.application"), MODULES.get(last)}
        assert command.callback.__module__ in places, name
