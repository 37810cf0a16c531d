"""The command line on a real store: init, migrate, status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine
from tests.servers import PostgresServer

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


def test_init_says_whose_the_objects_are_and_how_long_they_stay(
    here: CommandLine, tmp_path: Path, migrated_url: str
) -> None:
    objects = str(tmp_path / "objects")
    for _ in range(2):
        shown = here.text("init", migrated_url, "--objects", objects)
        assert "this catalog's, generation 1" in shown and "7 days after nothing names them" in shown
    made = here.answer("init", migrated_url, "--objects", objects)
    assert made["objects_owner"]["state"] == "owner" and made["gc_object_delay_s"] == 7 * 86_400
    assert here.answer("status", migrated_url, "--objects", objects)["objects_owner"]["generation"] == 1
    assert here.answer("init", str(tmp_path / "store"))["objects_owner"]["state"] == "own"


def test_a_copy_is_told_by_status_and_adopts_when_asked_to(
    here: CommandLine, tmp_path: Path, migrated_url: str, postgres_server: PostgresServer
) -> None:
    objects = str(tmp_path / "objects")
    here.text("init", migrated_url, "--objects", objects)
    copy = postgres_server.create_database(migrated_url)
    try:
        assert here.answer("status", copy, "--objects", objects)["objects_owner"]["state"] == "other"
        assert "objects adopt" in here.text("status", copy, "--objects", objects)
        here.error("denied", "gc", "run", "-u", copy, "--objects", objects)
        assert "nobody to ask" in here.error("invalid", "objects", "adopt", "-u", copy, "--objects", objects)
        assert (
            here.answer("objects", "adopt", "-u", copy, "--objects", objects, "--yes")["objects_owner"]["state"]
            == "owner"
        )
        here.text("gc", "run", "-u", copy, "--objects", objects)
        assert here.answer("status", migrated_url, "--objects", objects)["objects_owner"]["state"] == "other"
    finally:
        postgres_server.drop_database(copy)
