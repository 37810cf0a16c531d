"""The commands that collect archives: `analemma gc archives`, and `analemma worker`."""

from __future__ import annotations

from pathlib import Path

import pytest

from analemma import App
from tests.cli.command_line import CommandLine, at
from tests.raw_rows import change
from tests.stores import Store


def archives_of(app: App) -> set[str]:
    """What lies in the object store, as `workspace/op_id`."""
    assert app.objects is not None
    return {"/".join(info.key.split("/")[3:5]) for info in app.objects.list("tenants/default/archives")}


@pytest.fixture
def here(store: Store, tmp_path: Path) -> CommandLine:
    """A workspace that was archived twice: one of the archives is needed by nobody."""
    volume = tmp_path / "volume"
    volume.mkdir()
    with store.open() as app:
        app.archives.create("ws1", owner_id="ann", volume=volume)
        (volume / "file").write_text("content")
        app.archives.archive("ws1")
        app.archives.restore("ws1")
        (volume / "file").write_text("other")
        app.archives.archive("ws1")
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
        assert len(archives_of(app)) == 1
        app.archives.restore("ws1")


def test_a_brake_shows_in_the_exit_code_and_says_why(here: CommandLine, store: Store) -> None:
    for table in ("workspace", "archive_unit"):
        assert change(store, f"DELETE FROM {table}") > 0  # noqa: S608
    stopped = here.run("gc", "archives", "run")
    assert stopped.returncode == 9 and "heard of none of them" in stopped.stdout
    assert here.run("gc", "archives", "run", "--force").returncode == 0


def test_a_worker_collects_archives(here: CommandLine, store: Store) -> None:
    for _ in range(2):
        done = here.run("worker", "--once", ANALEMMA_ARCHIVE_GC_DELAY_S="0")
        assert done.returncode == 0, done.stderr
    assert "archives: tenant default" in done.stdout and "deleted 1 archives" in done.stdout
    with store.open() as app:
        assert len(archives_of(app)) == 1
