"""The commands on workspaces: `analemma workspace`, `analemma archive` and `analemma restore`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.api.archives.volumes import fill, look
from tests.cli.command_line import CommandLine, at
from tests.raw_rows import change
from tests.stores import Store


@pytest.fixture
def here(store: Store, tmp_path: Path) -> CommandLine:
    fill(tmp_path / "home")
    line = at(store, tmp_path)
    line.text("workspace", "create", "ws1", "--volume", "home")
    return line


def test_a_workspace_goes_in_and_out(here: CommandLine, tmp_path: Path) -> None:
    before = look(tmp_path / "home")
    shown = here.answer("workspace", "show", "ws1")["workspace"]
    assert (shown["status"], shown["owner_id"], shown["volume"]) == ("WARM", "ann", str(tmp_path / "home"))
    unit = here.answer("workspace", "archive", "ws1")["archive"]
    assert unit["workspace"] == "ws1" and unit["format"] == 1 and unit["key"].endswith("/home.meta")
    assert not (tmp_path / "home").exists()
    assert here.text("workspace", "list").split()[:2] == ["ws1", "COLD"]
    here.text("workspace", "restore", "ws1", "--into", "copy")
    assert look(tmp_path / "copy") == before
    assert here.answer("workspace", "restore", "ws1")["workspace"]["status"] == "WARM"
    assert look(tmp_path / "home") == before


def test_the_short_forms_do_the_same(here: CommandLine, tmp_path: Path) -> None:
    assert here.answer("archive", "ws1", "--format", "blocks")["archive"]["format"] == 2
    assert "format     2" in here.text("archive", "ws1")
    assert "status" in here.text("restore", "ws1")
    assert here.answer("archive", "ws1", "--force", "--timeout", "60", "--format", "tar")["archive"]["format"] == 1
    here.error("invalid", "archive", "ws1", "--format", "zip")


def test_start_and_stop_run_a_command(here: CommandLine, tmp_path: Path) -> None:
    program = f'{sys.executable} -c \'import os; open(os.environ["ANALEMMA_VOLUME"] + "/started", "w")\''
    here.text("archive", "ws1")
    assert here.answer("workspace", "start", "ws1", "--run", program)["workspace"]["status"] == "RUNNING"
    assert (tmp_path / "home" / "started").exists()
    here.error("conflict", "archive", "ws1")
    here.error("unavailable", "workspace", "stop", "ws1", "--run", "false")
    assert here.answer("workspace", "show", "ws1")["workspace"]["status"] == "RUNNING"
    here.error("unavailable", "workspace", "stop", "ws1", "--run", "/no/such/program")
    here.error("invalid", "workspace", "stop", "ws1", "--run", "")
    assert here.answer("workspace", "stop", "ws1")["workspace"]["status"] == "WARM"


def test_delete_undelete_and_purge(here: CommandLine, tmp_path: Path) -> None:
    here.text("workspace", "delete", "ws1")
    assert here.text("workspace", "list") == ""
    assert "ws1  DELETED" in here.text("workspace", "list", "--deleted")
    assert len(here.answer("workspace", "list", "--status", "DELETED")["workspaces"]) == 1
    here.text("workspace", "undelete", "ws1")
    here.text("restore", "ws1")
    here.error("invalid", "workspace", "purge", "ws1")
    here.error("invalid", "workspace", "delete", "ws1", "--discard", given="no\n")
    assert (tmp_path / "home" / "zero").exists()
    assert here.text("workspace", "purge", "ws1", "--yes") == "purged ws1\n"
    here.error("not_found", "workspace", "show", "ws1")
    assert not (tmp_path / "home").exists()


def test_errors_are_told(here: CommandLine, tmp_path: Path) -> None:
    here.error("not_found", "archive", "nothing")
    here.error("not_found", "archive", "ws1", "--owner", "eve")
    here.error("invalid", "archive", "../ws1")
    here.error("conflict", "workspace", "create", "ws1", "--volume", "other")
    here.error("invalid", "workspace", "list", "--status", "LUKEWARM")
    here.error("conflict", "restore", "ws1")


def test_recover_finds_nothing_to_do(here: CommandLine) -> None:
    assert here.text("workspace", "recover") == ""
    assert here.answer("workspace", "recover")["recovered"] == []
    assert here.answer("workspace", "recover", "ws1")["workspace"]["status"] == "WARM"


def test_recover_goes_back_to_an_older_archive_only_where_that_is_said(
    here: CommandLine, store: Store, tmp_path: Path
) -> None:
    here.text("archive", "ws1")
    here.text("restore", "ws1")
    shutil.rmtree(tmp_path / "home")
    # As if a worker had begun this and died.
    begun = "UPDATE workspace SET operation = 'STARTING', intent = 'hook', fence = fence + 1, lease_until = 0"
    assert change(store, begun) == 1
    here.error("conflict", "workspace", "recover", "ws1")
    here.error("unavailable", "workspace", "recover", "ws1")
    here.error("invalid", "workspace", "recover", "--give-up-volume")
    assert here.answer("workspace", "recover", "ws1", "--give-up-volume")["workspace"]["status"] == "COLD"
    here.text("restore", "ws1")
    assert (tmp_path / "home" / "zero").exists()


def test_a_lost_archive_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    fill(tmp_path / "home")
    line = at(Store(str(tmp_path / "store")), tmp_path)
    line.text("workspace", "create", "ws1", "--volume", "home")
    line.text("archive", "ws1")
    for folder, _, files in os.walk(tmp_path / "store" / "objects"):
        for name in files:
            if name.endswith(".tar.zst"):
                os.unlink(os.path.join(folder, name))
    line.error("data_lost", "restore", "ws1")
    assert "ws1  ERROR" in line.text("workspace", "list")
    line.error("data_lost", "workspace", "recover", "ws1")
