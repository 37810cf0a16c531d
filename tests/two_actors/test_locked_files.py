"""A SQLite file that somebody else has locked: whoever wants to write is told so soon, and by whom."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from analemma.errors import Timeout, Unavailable
from tests.actors import Actor
from tests.stores import Store

AT: dict[str, Any] = {"workflow_id": "w", "owner_id": "ann"}


@pytest.fixture
def store(migrated_directory: Path) -> Store:
    return Store(str(migrated_directory))


def save(url: str) -> None:
    with Store(url).open() as app:
        app.kernel.save_state_delta({"n": 1}, **AT)


def hold(url: str) -> None:
    database = sqlite3.connect(Path(url) / "catalog.db", isolation_level=None)
    database.execute("BEGIN IMMEDIATE")
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_write_beside_a_stopped_process_says_soon_which_one_has_the_file(store: Store) -> None:
    with (
        store.open(sqlite_lock_timeout_s=0.2) as app,
        Actor(save, store.url, at="commit.before_commit") as actor,
    ):
        actor.wait_until_stopped()
        for _ in range(2):
            with pytest.raises(Timeout, match=rf"process {actor.pid} has kept .*catalog.db.lock") as caught:
                app.kernel.save_state_delta({"n": 7}, **AT)
            assert f"`ps {actor.pid}`" in str(caught.value) and "sqlite_lock_timeout_s" in str(caught.value)
        actor.thaw()
        assert actor.wait() == 0
        assert app.kernel.save_state_delta({"n": 7}, **AT).version == 2


def test_a_write_beside_another_program_says_soon_that_it_has_the_file(store: Store) -> None:
    with store.open(sqlite_lock_timeout_s=0.2) as app, Actor(hold, store.url) as actor:
        actor.wait_until_stopped()
        with pytest.raises(Unavailable, match="locked by another program") as caught:
            app.kernel.save_state_delta({"n": 7}, **AT)
        assert "sqlite_lock_timeout_s" in str(caught.value)
        if sys.platform == "linux":
            assert f"process {actor.pid}" in str(caught.value)
