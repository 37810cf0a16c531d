"""The command line itself: its help, how it fails, in text and in JSON, and with which exit codes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from analemma import errors
from analemma.errors import AnalemmaError
from tests.cli.command_help import help_of
from tests.cli.command_line import BROKEN_PIPE, CODES, PROGRAM, CommandLine

LINE = CommandLine(Path.cwd(), {})


def test_without_a_command_it_lists_the_commands() -> None:
    shown = LINE.text()
    for command in ("init", "migrate", "status", "demo", "version"):
        assert command in shown


def test_help_has_every_command_under_a_heading_of_its_own() -> None:
    found = help_of()
    assert len(found.panels) > 4 and "Commands" not in found.panels
    assert len(found.commands) == len(set(found.commands))


def test_a_wrong_option_leads_to_the_help_of_its_command() -> None:
    assert LINE.run("retention", "set", "--nope").stderr.endswith(
        "hint: analemma retention set --help says what there is\n"
    )


def test_version_is_a_command_and_an_option() -> None:
    assert LINE.text("version").startswith("analemma ")
    assert LINE.text("--version") == LINE.text("version")
    assert LINE.answer("version")["version"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "No such command 'nonsense'."),
        (["status", "--nonsense"], "No such option: --nonsense"),
        (["status", "here", "--url", "there"], "the store is named twice, as WHERE and by --url"),
        (["status", "mysql://host/db"], None),
    ],
)
def test_a_wrong_command_line_is_one_line_and_a_hint(arguments: list[str], message: str | None) -> None:
    failed = LINE.run(*arguments)
    assert failed.returncode == 2
    assert failed.stdout == ""
    error, hint = failed.stderr.splitlines()
    assert error.startswith("error: ")
    assert message is None or error == f"error: {message}"
    assert hint.startswith("hint: ")


def test_with_json_an_error_is_json() -> None:
    failed = LINE.run("status", "here", "--url", "there", "--json")
    assert (failed.returncode, failed.stdout) == (2, "")
    error = json.loads(failed.stderr)["error"]
    assert error["kind"] == "invalid"
    assert error["message"] == "the store is named twice, as WHERE and by --url"
    assert error["hint"]


def test_a_bad_setting_is_one_line_that_names_it() -> None:
    failed = LINE.run("status", ANALEMMA_POSTGRES_POOL_MAX="many")
    assert failed.returncode == 2
    assert failed.stderr == "error: ANALEMMA_POSTGRES_POOL_MAX: expected an integer from 1 to 1000, got 'many'\n"


def test_the_traceback_shows_only_when_asked_for() -> None:
    assert "Traceback" not in LINE.run("status", "here", "--url", "there").stderr
    shown = LINE.process("status", "here", "--url", "there", ANALEMMA_DEBUG="1")
    assert shown.returncode == 2
    assert "Traceback" in shown.stderr
    assert shown.stderr.splitlines()[-2].startswith("error: ")


def test_a_store_that_cannot_be_made_is_unavailable_or_invalid(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    failed = LINE.run("init", str(tmp_path / "file" / "store"))
    assert failed.returncode in (CODES["unavailable"], CODES["invalid"])
    assert failed.stderr.startswith("error: ")


def test_a_reader_that_goes_away_is_no_defect() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run([PROGRAM, "version"], stdout=write_end, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (BROKEN_PIPE, b"")


def test_every_kind_of_error_has_an_exit_code() -> None:
    """Those that this file's neighbours expect by number, and no others."""
    classes = [found for found in vars(errors).values() if isinstance(found, type)]
    assert {found.kind for found in classes if issubclass(found, AnalemmaError)} == set(CODES)
