"""What a worker does for workspaces: it finishes what was interrupted on its machine, and knows when to collect."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from analemma import App
from analemma.testing import failpoints
from tests.api.archives.collections import DELAY_S, HOUR_S, cold, let_pass, superseded, units, warm
from tests.cli.command_line import at
from tests.stores import Store


class Died(BaseException):
    pass


def interrupt(app: App, name: str) -> None:
    """Begin to archive, and die."""

    def die() -> None:
        raise Died

    with failpoints.call("workspace.after_begin", die), pytest.raises(Died):
        app.archives.archive(name)


def test_archives_are_collected_when_that_is_due(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        _, new = superseded(app, tmp_path, "ws1")
        assert app.archives.gc_is_due(HOUR_S)
        said = app.archives.gc_run().describe()
        assert "2 archives in 4 objects, 1 of them needed" in said and "marked 1" in said
        assert not app.archives.gc_is_due(HOUR_S)
        let_pass(store, HOUR_S - 60)
        assert not app.archives.gc_is_due(HOUR_S)
        let_pass(store, DELAY_S)
        assert app.archives.gc_is_due(HOUR_S)
        assert "deleted 1 archives" in app.archives.gc_run().describe()
        assert units(app) == {f"ws1/{new}"}


def test_what_was_interrupted_is_finished(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        warm(app, tmp_path, "ws1")
        interrupt(app, "ws1")
        assert app.archives.reconcile(only_here=True) == ()  # Its lease has not ended.
        let_pass(store, 120)
        (done,) = app.archives.reconcile(only_here=True)
        assert (done.operation, done.workspace, done.status, done.error) == ("ARCHIVING", "ws1", "COLD", None)
        assert app.archives.get("ws1").status == "COLD"
        assert app.archives.reconcile(only_here=True) == ()


def test_what_was_begun_on_another_machine_is_left_to_it(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        warm(app, tmp_path, "ws1")
        interrupt(app, "ws1")
        let_pass(store, 120)
        volumes, elsewhere = tmp_path / "volumes", tmp_path / "elsewhere"
        shutil.move(volumes, elsewhere)
        assert app.archives.reconcile(only_here=True) == ()
        volumes.mkdir()
        assert app.archives.reconcile(only_here=True) == ()
        assert list(volumes.iterdir()) == []
        assert app.archives.get("ws1").operation == "ARCHIVING"
        volumes.rmdir()
        shutil.move(elsewhere, volumes)
        let_pass(store, 120)
        assert len(app.archives.reconcile(only_here=True)) == 1
        assert app.archives.get("ws1").status == "COLD"


def test_a_tenant_that_cannot_be_collected_keeps_no_other_from_it(store: Store, tmp_path: Path) -> None:
    """Nor does one in which another collects."""
    with store.open() as app, store.open(tenant="second") as second:
        for tenant in ("default", "first"):
            app.tenant(tenant).kernel.list_workflows(owner_id="ann")
        cold(second, tmp_path, "ws1")
        # A listing follows no links, wherever they lead.
        folder = Path(store.objects or f"{store.url}/objects") / "tenants"
        (folder / "default").mkdir()
        (folder / "default" / "archives").symlink_to(folder / "second" / "archives")
        with failpoints.paused("archive_gc.after_lease", app.tenant("first").archives.gc_run) as held:
            done = at(store, tmp_path).run("worker", "--once")
            assert held.go_on().ok
        assert not second.archives.gc_is_due(HOUR_S)
    said = done.stdout + done.stderr
    assert "archives: failed: tenant default: failed: " in said and done.returncode != 0
    assert "tenant first: left to another: " in said
    assert "tenant second: 1 archives in 2 objects, 1 of them needed" in said
