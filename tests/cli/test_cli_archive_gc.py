"""The commands that collect archives: `analemma gc archives`, and `analemma worker`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.archives.collections import superseded, units
from tests.api.gc.collections import script
from tests.cli.command_line import CommandLine, at
from tests.stores import Store


@pytest.fixture
def here(store: Store, tmp_path: Path) -> CommandLine:
    with store.open() as app:
        superseded(app, tmp_path, "ws1")
    user = at(store, tmp_path)
    # Objects go when their archives do, also those that are not in a store's own directory.
    return CommandLine(user.directory, {**user.variables, "ANALEMMA_GC_OBJECT_DELAY_S": "0"})


def test_a_plan_tells_what_runs_then_do(here: CommandLine, store: Store) -> None:
    plan = here.answer("gc", "archives", "plan", "--delay", "0")["plan"]
    assert (plan["to_mark"], plan["to_delete"], plan["counts"]["units"]) == (1, 0, 2)
    report = here.answer("gc", "archives", "run", "--delay", "0")["report"]
    assert (report["marked"], report["deleted"], report["ok"]) == (1, 0, True)
    shown = here.text("gc", "archives", "run", "--delay", "0", "--dry-run")
    assert "1 archives would be deleted" in shown and "ws1/" in shown
    assert here.answer("gc", "archives", "run", "--delay", "0", "--dry-run")["plan"]["to_delete"] == 1
    assert "1 marked ones would wait for 604800 s to pass" in here.text("gc", "archives", "plan")
    assert "deleted 1 archives (2 objects" in here.text("gc", "archives", "run", "--delay", "0")
    with store.open() as app:
        assert len(units(app)) == 1
        app.archives.restore("ws1")


def test_a_brake_shows_in_the_exit_code_and_says_why(here: CommandLine, store: Store) -> None:
    with store.open() as app:
        script(app, "DELETE FROM workspace; DELETE FROM archive_unit")
    stopped = here.run("gc", "archives", "run")
    assert stopped.returncode == 9 and "heard of none of them" in stopped.stdout
    assert here.run("gc", "archives", "run", "--force").returncode == 0


def test_a_worker_collects_archives(here: CommandLine, store: Store) -> None:
    for _ in range(2):
        done = here.run("worker", "--once", ANALEMMA_ARCHIVE_GC_DELAY_S="0")
        assert done.returncode == 0, done.stderr
    assert "archives: tenant default" in done.stdout and "deleted 1 archives" in done.stdout
    with store.open() as app:
        assert len(units(app)) == 1
