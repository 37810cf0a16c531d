"""The command line on a real store: init, migrate, status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.command_line import CommandLine

STATS = {"blocks", "logical_bytes", "stored_bytes", "manifests", "heads", "uploads", "tenants"}


@pytest.fixture
def here(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, {})


def test_init_makes_a_store_that_status_describes(here: CommandLine) -> None:
    made = here.answer("init", "store")
    assert made["store"]["backend"] == "sqlite"
    shown = here.answer("status", "store")
    assert shown["store"] == made["store"]
    assert set(shown["stats"]) == STATS
    assert shown["stats"]["blocks"] == shown["stats"]["heads"] == 0
    assert shown["store"]["schema_version"] >= 1


def test_a_file_is_no_place_for_a_store(here: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    assert here.error("invalid", "init", "notes") == "notes is a file, and no directory"
    here.error("not_found", "status", "notes")
    assert (tmp_path / "notes").read_text() == "mine"


def test_init_again_changes_nothing(here: CommandLine) -> None:
    assert here.answer("init", "store") == here.answer("init", "store")


def test_migrate_has_nothing_to_do_on_a_new_store(here: CommandLine) -> None:
    here.text("init", "store")
    assert here.answer("migrate", "store")["applied"] == []
    assert "nothing to do" in here.text("migrate", "store")


def test_status_for_people_names_backend_and_sizes(here: CommandLine) -> None:
    here.text("init", "store")
    shown = here.text("status", "store")
    assert "sqlite" in shown
    assert "schema version" in shown
    assert "0 bytes" in shown


@pytest.mark.parametrize("way", ["argument", "option", "short option", "variable", "file"])
def test_the_store_can_be_named_in_every_way(way: str, here: CommandLine, tmp_path: Path) -> None:
    store = str(tmp_path / "somewhere")
    here.text("init", store)
    expected = here.answer("status", store)
    if way == "file":
        (tmp_path / "analemma.toml").write_text(f"url = {json.dumps(store)}\n")
    arguments = {"argument": [store], "option": ["--url", store], "short option": ["-u", store]}.get(way, [])
    variables = {"ANALEMMA_URL": store} if way == "variable" else {}
    assert here.answer("status", *arguments, **variables) == expected


def test_objects_can_be_put_elsewhere(here: CommandLine, tmp_path: Path) -> None:
    made = here.answer("init", "store", "--objects", str(tmp_path / "objects"))
    assert "objects" in str(made["store"]["objects"])
    assert (tmp_path / "store").is_dir()
