"""The real command line on a real store: init, migrate, status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STATS = {"blocks", "logical_bytes", "stored_bytes", "manifests", "heads", "uploads", "tenants"}


def analemma(*arguments: str, cwd: Path, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANALEMMA_")}
    done = subprocess.run(
        [Path(sys.executable).with_name("analemma"), *arguments],
        cwd=cwd,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def answer(*arguments: str, cwd: Path, **variables: str) -> Any:
    return json.loads(analemma(*arguments, "--json", cwd=cwd, **variables))


def test_init_makes_a_store_that_status_describes(tmp_path: Path) -> None:
    made = answer("init", "store", cwd=tmp_path)
    assert made["store"]["backend"] == "sqlite"
    shown = answer("status", "store", cwd=tmp_path)
    assert shown["store"] == made["store"]
    assert set(shown["stats"]) == STATS
    assert shown["stats"]["blocks"] == shown["stats"]["heads"] == 0
    assert shown["store"]["schema_version"] >= 1


def test_init_again_changes_nothing(tmp_path: Path) -> None:
    assert answer("init", "store", cwd=tmp_path) == answer("init", "store", cwd=tmp_path)


def test_migrate_has_nothing_to_do_on_a_new_store(tmp_path: Path) -> None:
    analemma("init", "store", cwd=tmp_path)
    assert answer("migrate", "store", cwd=tmp_path)["applied"] == []
    assert "nothing to do" in analemma("migrate", "store", cwd=tmp_path)


def test_status_for_people_names_backend_and_sizes(tmp_path: Path) -> None:
    analemma("init", "store", cwd=tmp_path)
    shown = analemma("status", "store", cwd=tmp_path)
    assert "sqlite" in shown
    assert "schema version" in shown
    assert "0 bytes" in shown


@pytest.mark.parametrize("way", ["argument", "option", "short option", "variable", "file"])
def test_the_store_can_be_named_in_every_way(way: str, tmp_path: Path) -> None:
    store = str(tmp_path / "somewhere")
    analemma("init", store, cwd=tmp_path)
    expected = answer("status", store, cwd=tmp_path)
    if way == "file":
        (tmp_path / "analemma.toml").write_text(f"url = {json.dumps(store)}\n")
    arguments = {"argument": [store], "option": ["--url", store], "short option": ["-u", store]}.get(way, [])
    variables = {"ANALEMMA_URL": store} if way == "variable" else {}
    assert answer("status", *arguments, cwd=tmp_path, **variables) == expected


def test_objects_can_be_put_elsewhere(tmp_path: Path) -> None:
    made = answer("init", "store", "--objects", str(tmp_path / "objects"), cwd=tmp_path)
    assert "objects" in str(made["store"]["objects"])
    assert (tmp_path / "store").is_dir()
