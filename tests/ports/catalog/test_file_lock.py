"""The lock between processes: bounded, and asked for only by those who write."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from analemma.catalog.file_lock import FileLock
from analemma.catalog.migrations import migrate
from analemma.catalog.opening import FILE_NAME, open_catalog
from analemma.catalog.sqlite import SqliteEngine
from analemma.errors import Timeout, Unavailable


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """A store whose lock a process holds that does not go on."""
    open_catalog(tmp_path).close()
    fd = os.open(tmp_path / f"{FILE_NAME}.lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield tmp_path
    os.close(fd)


def test_a_write_does_not_wait_for_ever_for_a_stopped_process(held: Path) -> None:
    engine = SqliteEngine(held / FILE_NAME, lock_timeout_s=0.1)
    with pytest.raises(Timeout, match=r"catalog\.db\.lock.*(fuser|ps)"):
        engine.execute("add_tenant", name="one")
    engine.close()


def test_opening_and_reading_do_not_wait_at_all(held: Path) -> None:
    done = threading.Event()

    def look() -> None:
        catalog = open_catalog(held)
        catalog.stats()
        catalog.close()
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


def test_the_lock_goes_to_whoever_waited_not_back_to_its_last_holder(tmp_path: Path) -> None:
    first, second = FileLock(str(tmp_path / "db")), FileLock(str(tmp_path / "db"))
    first.acquire()
    order = []

    def wait() -> None:
        second.acquire()
        order.append("second")
        second.release()

    thread = threading.Thread(target=wait)
    thread.start()
    while not is_taken(tmp_path / "db.turn.lock"):
        time.sleep(0.001)
    first.release()
    first.acquire()
    order.append("first")
    first.release()
    thread.join(30)
    assert order == ["second", "first"]
    first.close()
    second.close()


def test_a_wait_that_was_given_up_keeps_nobody_out(tmp_path: Path) -> None:
    first, second, third = (FileLock(str(tmp_path / "db"), timeout_s=0.05) for _ in range(3))
    first.acquire()
    with pytest.raises(Timeout):
        second.acquire()
    first.release()
    third.acquire()
    for lock in (first, second, third):
        lock.close()
        lock.close()
        lock.release()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SqliteEngine(tmp_path / FILE_NAME)
    migrate(engine, now_us=0)
    flock = fcntl.flock

    def without_locks(fd: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX:
            raise OSError(37, "No locks available")
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", without_locks)
    with pytest.raises(Unavailable, match="No locks available"):
        engine.execute("add_tenant", name="one")
    monkeypatch.undo()
    assert engine.execute("add_tenant", name="one") == 1
    engine.close()


def test_a_forgotten_lock_gives_its_descriptors_back(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    lock = FileLock(str(tmp_path / "db"))
    assert len(os.listdir("/proc/self/fd")) == before + 2
    del lock
    assert len(os.listdir("/proc/self/fd")) == before
