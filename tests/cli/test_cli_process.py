"""The real program as processes: each of its command modules once, and what it loads when it starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import CODES, OK, CommandLine, at
from tests.depth import some
from tests.stores import Store

NEEDS_NO_SAVE = {"obstore", "psycopg", "redis", "rich"}
"""Packages that neither saving nor reading an embedded store needs."""
NEEDS_NO_STORE = NEEDS_NO_SAVE | {"libipld", "orjson", "sqlite3", "zstandard"}
"""Packages that no command line needs to find its command and to read its options."""


@pytest.fixture
def here(tmp_path: Path) -> CommandLine:
    line = at(Store(str(tmp_path / "store")), tmp_path)
    line.save("n=1")
    return line


ANSWERS = [
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
]


@pytest.mark.parametrize(
    ("arguments", "code"),
    some(ANSWERS, test=[ANSWERS[0], ANSWERS[3], ANSWERS[11], ANSWERS[14]]),
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
    assert here.answer("load", "-w", "trip")["state"] == {"n": 1}


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


def commands(*lines: list[str]) -> str:
    """A program that calls what users start, once with each of these arguments."""
    return f"""
import sys
from importlib.metadata import entry_points
(program,) = entry_points(group="console_scripts", name="analemma")
for arguments in {lines!r}:
    sys.argv = ["analemma", *arguments]
    try:
        program.load()()
    except SystemExit as ended:
        assert not ended.code, ended.code
"""


def test_the_command_line_starts_without_what_it_may_not_need(tmp_path: Path) -> None:
    assert not NEEDS_NO_STORE & loaded_by(commands(["--version"]), tmp_path)


def test_saving_and_reading_load_only_what_they_use(tmp_path: Path) -> None:
    store = ("-u", str(tmp_path / "store"), "-o", "ann", "-w", "trip")
    saving = commands(
        ["init", store[1]], ["save", *store, "-s", "n=1"], ["load", *store], ["log", *store], ["show", "1", *store]
    )
    assert not NEEDS_NO_SAVE & loaded_by(saving, tmp_path)


def test_importing_the_library_loads_no_package_of_other_stores(tmp_path: Path) -> None:
    assert not NEEDS_NO_SAVE & loaded_by("import analemma; analemma.open", tmp_path)
