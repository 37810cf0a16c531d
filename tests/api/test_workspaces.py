"""What workspaces promise: how long a deleted one comes back, and what stands in the way of a new one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import analemma
from analemma.errors import Conflict
from tests.programs import run
from tests.raw_rows import change
from tests.stores import Store

WEEK = timedelta(days=7)
DAY_US = 86_400 * 1_000_000


def home(app: analemma.App, folder: Path) -> analemma.App:
    app.archives.create("ws1", owner_id="ann", volume=folder / "home")
    (folder / "home" / "notes").write_text("kept")
    return app


def test_deleting_a_workspace_says_until_when_it_can_be_undeleted(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        home(app, tmp_path)
        deleted = app.archives.delete("ws1")
        assert deleted.deleted_at is not None and deleted.undelete_until == deleted.deleted_at + WEEK
        assert app.archives.get("ws1").undelete_until == deleted.undelete_until
        back = app.archives.undelete("ws1")
        assert back.undelete_until is None


def test_the_command_that_deletes_says_until_when_that_can_be_undone(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        home(app, tmp_path)
    objects = [] if store.objects is None else ["--objects", store.objects]
    command = [sys.executable, "-m", "analemma", "workspace", "delete", "ws1", "--url", store.url, *objects, "--json"]
    found = json.loads(run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)["workspace"]
    assert datetime.fromisoformat(found["undelete_until"]) == datetime.fromisoformat(found["deleted_at"]) + WEEK


def test_the_settings_decide_how_long_a_deleted_workspace_comes_back(store: Store, tmp_path: Path) -> None:
    with store.open(archive_gc_delay_s=60) as app:
        deleted = home(app, tmp_path).archives.delete("ws1")
        assert deleted.deleted_at is not None and deleted.undelete_until == deleted.deleted_at + timedelta(seconds=60)


def test_a_workspace_that_was_discarded_says_nothing_of_undeleting(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        deleted = home(app, tmp_path).archives.delete("ws1", discard=True)
        assert deleted.status == "DELETED" and deleted.undelete_until is None


def test_a_workspace_that_was_deleted_six_days_ago_comes_back_with_its_files(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        home(app, tmp_path).archives.delete("ws1")
        app.archives.gc_run()
        assert (
            change(store, "UPDATE archive_mark SET first_orphan_detected = first_orphan_detected - ?", [6 * DAY_US])
            == 1
        )
        assert change(store, "UPDATE workspace SET deleted_at = deleted_at - ?", [6 * DAY_US]) == 1
        assert app.archives.gc_run().deleted == 0
        app.archives.undelete("ws1")
        app.archives.restore("ws1")
        assert (tmp_path / "home" / "notes").read_text() == "kept"


def test_what_an_earlier_store_left_beside_a_volume_is_named(store: Store, tmp_path: Path) -> None:
    with analemma.open(str(tmp_path / "earlier")) as app:
        home(app, tmp_path)
    shutil.rmtree(tmp_path / "home")
    left = tmp_path / ".analemma-home"
    with store.open() as app:
        with pytest.raises(Conflict) as refused:
            app.archives.create("ws1", owner_id="ann", volume=tmp_path / "home")
        told = json.dumps([str(refused.value), refused.value.hint])
        assert str(left) in told and "remove" in told
        shutil.rmtree(left)
        assert app.archives.create("ws1", owner_id="ann", volume=tmp_path / "home").status == "WARM"


def test_a_leftover_above_a_volume_is_named(store: Store, tmp_path: Path) -> None:
    with analemma.open(str(tmp_path / "earlier")) as app:
        home(app, tmp_path)
    with store.open() as app, pytest.raises(Conflict) as refused:
        app.archives.create("ws1", owner_id="ann", volume=tmp_path / "home" / "inner")
    assert str(tmp_path / ".analemma-home") in str(refused.value) + (refused.value.hint or "")
