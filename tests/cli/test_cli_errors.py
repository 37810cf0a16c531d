"""The real command line: how it fails, in text and in JSON, and with which exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from analemma import errors
from analemma.cli.command_modules import MODULES, PANELS
from analemma.cli.exit_codes import BROKEN_PIPE, CODES, MEANINGS, exit_code, exit_codes_page
from analemma.errors import AnalemmaError

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md"


def analemma(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANALEMMA_")}
    return subprocess.run(
        [Path(sys.executable).with_name("analemma"), *arguments],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_a_command_it_lists_the_commands() -> None:
    shown = analemma()
    assert shown.returncode == 0
    for command in ("init", "migrate", "status", "demo", "version"):
        assert command in shown.stdout


def test_help_has_every_command_under_a_heading() -> None:
    shown = analemma("--help").stdout
    assert [panel for panel in PANELS if panel not in shown] == [] and "─ Commands ─" not in shown
    assert set(MODULES) == {name for names in PANELS.values() for name in names}


def test_a_wrong_option_leads_to_the_help_of_its_command() -> None:
    assert analemma("retention", "set", "--nope").stderr.endswith(
        "hint: analemma retention set --help says what there is\n"
    )


def test_version_is_an_option_too() -> None:
    shown = analemma("--version")
    assert (shown.returncode, shown.stdout) == (0, analemma("version").stdout)


def test_version() -> None:
    assert analemma("version").stdout.startswith("analemma ")
    assert json.loads(analemma("version", "--json").stdout)["version"]


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
    failed = analemma(*arguments)
    assert failed.returncode == 2
    assert failed.stdout == ""
    error, hint = failed.stderr.splitlines()
    assert error.startswith("error: ")
    assert message is None or error == f"error: {message}"
    assert hint.startswith("hint: ")


def test_with_json_an_error_is_json() -> None:
    failed = analemma("status", "here", "--url", "there", "--json")
    assert (failed.returncode, failed.stdout) == (2, "")
    error = json.loads(failed.stderr)["error"]
    assert error["kind"] == "invalid"
    assert error["message"] == "the store is named twice, as WHERE and by --url"
    assert error["hint"]


def test_a_bad_setting_is_one_line_that_names_it() -> None:
    failed = analemma("status", ANALEMMA_POSTGRES_POOL_MAX="many")
    assert failed.returncode == 2
    assert failed.stderr == "error: ANALEMMA_POSTGRES_POOL_MAX: expected an integer from 1 to 1000, got 'many'\n"


def test_the_traceback_shows_only_when_asked_for() -> None:
    assert "Traceback" not in analemma("status", "here", "--url", "there").stderr
    shown = analemma("status", "here", "--url", "there", ANALEMMA_DEBUG="1")
    assert shown.returncode == 2
    assert "Traceback" in shown.stderr
    assert shown.stderr.splitlines()[-2].startswith("error: ")


def test_a_store_that_cannot_be_made_is_unavailable_or_invalid(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    failed = analemma("init", str(tmp_path / "file" / "store"))
    assert failed.returncode in (CODES["unavailable"], CODES["invalid"])
    assert failed.stderr.startswith("error: ")


def test_a_reader_that_goes_away_is_no_defect() -> None:
    command = [str(Path(sys.executable).with_name("analemma")), "version"]
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (BROKEN_PIPE, b"")


def kinds_of_errors() -> set[type[AnalemmaError]]:
    classes = {value for value in vars(errors).values() if isinstance(value, type)}
    return {cls for cls in classes if issubclass(cls, AnalemmaError)}


def test_every_kind_of_error_has_an_exit_code_with_a_meaning() -> None:
    assert {cls.kind for cls in kinds_of_errors()} == set(CODES)
    assert set(CODES.values()) < set(MEANINGS)


def test_a_kind_without_a_code_of_its_own_has_that_of_the_kind_above() -> None:
    class TooManyCooks(errors.Limit):
        kind = "too_many_cooks"

    assert exit_code(TooManyCooks("no")) == CODES["limit"]


def test_the_page_and_the_table_agree() -> None:
    current = PAGE.read_text(encoding="utf-8") == exit_codes_page()
    assert current, "run python -m analemma.cli.exit_codes docs/reference/exit-codes.md"
