"""The lock between processes in front of a SQLite file: asked for only by those who write, and in their order."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from analemma import App
from analemma.errors import Timeout, Unavailable
from analemma.testing import failpoints
from tests.raw_rows import select
from tests.stores import Store

AT: dict[str, Any] = {"workflow_id": "w", "owner_id": "ann"}


def save(app: App, n: int, workflow: str = "w") -> int:
    return app.kernel.save_state_delta({"n": n}, workflow_id=workflow, owner_id="ann").version


@pytest.fixture
def store(migrated_directory: Path) -> Store:
    return Store(str(migrated_directory))


@pytest.fixture
def held(store: Store) -> Iterator[Store]:
    """A store whose lock a process holds that does not go on."""
    with store.open() as app:
        save(app, 1)
    fd = os.open(Path(store.url) / "catalog.db.lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield store
    os.close(fd)


def test_opening_and_reading_do_not_wait_at_all(held: Store) -> None:
    done = threading.Event()

    def look() -> None:
        with held.open() as app:
            assert app.kernel.load_latest_state(**AT) == {"n": 1}
            app.stats()
        done.set()

    threading.Thread(target=look, daemon=True).start()
    # The lock is not given back in this test: whoever waits for it is never done.
    assert done.wait(30)


def is_taken(path: Path) -> bool:
    """Whether somebody holds this lock right now."""
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def test_the_lock_goes_to_whoever_waited_not_back_to_its_last_holder(store: Store) -> None:
    # Each saves something of its own: who finds that the head has moved gets in line again.
    with store.open() as first, store.open() as second, ThreadPoolExecutor(1) as pool:
        with failpoints.paused("commit.before_commit", lambda: save(first, 1, "one")) as holding:
            waiting = pool.submit(save, second, 2, "two")
            while not is_taken(Path(store.url) / "catalog.db.turn.lock"):
                time.sleep(0.001)
            holding.go_on()
            save(first, 3, "three")
        waiting.result(60)
    written = select(store, "SELECT workflow FROM journal ORDER BY rowid")
    assert [workflow for (workflow,) in written] == ["one", "two", "three"]


def test_a_wait_that_was_given_up_keeps_nobody_out(held: Store) -> None:
    with held.open(sqlite_lock_timeout_s=0.1) as second, held.open() as third, ThreadPoolExecutor(1) as pool:
        with pytest.raises(Timeout):
            save(second, 2)
        late = pool.submit(save, third, 3)
        with pytest.raises(Timeout):
            save(second, 2)
        fcntl.flock(_only_lock(held), fcntl.LOCK_UN)
        assert late.result(60) == 2


def _only_lock(store: Store) -> int:
    """The descriptor by which this test holds the lock: the one that is no store's."""
    path = str(Path(store.url) / "catalog.db.lock")
    open_here = [int(fd) for fd in os.listdir("/proc/self/fd") if _target(fd) == path]
    return min(open_here)


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def test_a_file_system_without_locks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock

    def without_locks(fd: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX:
            raise OSError(37, "No locks available")
        flock(fd, operation)

    with store.open() as app:
        monkeypatch.setattr(fcntl, "flock", without_locks)
        with pytest.raises(Unavailable, match="No locks available"):
            save(app, 1)
        monkeypatch.undo()
        assert save(app, 1) == 1
