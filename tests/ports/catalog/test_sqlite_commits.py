"""A COMMIT of SQLite that fails, or that many threads share: what is known is said, and what can be settled is."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma import App
from analemma.errors import HeadMoved, OutcomeUnknown, Unavailable
from analemma.testing import failpoints
from tests.actors import Actor
from tests.depth import count
from tests.stores import Store

AT: dict[str, Any] = {"workflow_id": "w", "owner_id": "ann"}
THREADS = 6
FULL = 2


class Disk:
    """Makes COMMIT fail as a failing disk does; `applies` says whether the record is found nevertheless."""

    def __init__(self) -> None:
        self.failures = 0
        self.applies = False
        self.code = sqlite3.SQLITE_IOERR_FSYNC
        self.meanwhile: Callable[[], object] = lambda: None
        self.levels: list[int] = []
        """How each COMMIT with a record of the journal waits for the disk."""

    def connection_class(self) -> type[sqlite3.Connection]:
        disk = self

        class Connection(sqlite3.Connection):
            journal = False

            def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
                self.journal = self.journal or "INTO journal" in sql
                if sql != "COMMIT":
                    return super().execute(sql, parameters)
                if self.journal:
                    disk.levels.append(super().execute("PRAGMA synchronous").fetchone()[0])
                self.journal = False
                if not disk.failures:
                    return super().execute(sql, parameters)
                disk.failures -= 1
                super().execute("COMMIT" if disk.applies else "ROLLBACK")
                disk.meanwhile()
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = disk.code
                raise error

            def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
                self.journal = self.journal or "INTO journal" in sql
                return super().executemany(sql, parameters)

        return Connection


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=disk.connection_class()))
    return disk


@pytest.fixture
def store(migrated_directory: Path) -> Store:
    return Store(str(migrated_directory))


@pytest.fixture
def app(disk: Disk, store: Store) -> Iterator[App]:
    with store.open() as app:
        yield app


def save(app: App, n: int, **place: Any) -> int:
    return app.kernel.save_state_delta({"n": n}, **{**AT, **place}).version


def saved(app: App, workflow: str = "w") -> list[Any]:
    """What each version says, the first one first."""
    versions = list(app.kernel.history(workflow_id=workflow, owner_id="ann"))[::-1]
    return [app.kernel.load_state(each.manifest_id, owner_id="ann")["n"] for each in versions]


@contextmanager
def held(store: Store) -> Iterator[None]:
    """Another process has the file's lock: who wants to write waits, and those who come later wait behind it."""
    lock = os.open(Path(store.url) / "catalog.db.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def at_once(store: Store, works: list[Callable[[], Any]]) -> list[Future[Any]]:
    """Have all of them wait for the file, so that most share a commit."""
    ready = threading.Barrier(len(works) + 1)

    def begin(work: Callable[[], Any]) -> Any:
        ready.wait(60)
        return work()

    with ThreadPoolExecutor(len(works)) as pool, held(store):
        futures = [pool.submit(begin, work) for work in works]
        ready.wait(60)
        # More of them share it if they are given time; nothing else depends on it.
        time.sleep(0.2)
    return futures


@pytest.mark.parametrize("applies", [True, False])
def test_a_commit_in_doubt_is_settled(disk: Disk, app: App, applies: bool) -> None:
    assert save(app, 1) == 1
    disk.failures, disk.applies = 1, applies
    assert save(app, 2) == 2
    assert disk.failures == 0
    assert saved(app) == [1, 2]


def test_a_commit_that_stays_in_doubt_says_so(disk: Disk, app: App) -> None:
    save(app, 1)
    disk.failures = 2
    with pytest.raises(OutcomeUnknown, match="read back"):
        save(app, 2)
    assert disk.failures == 0
    assert save(app, 3) == 2
    assert saved(app) == [1, 3]


def test_a_commit_whose_record_was_not_written_changed_nothing(disk: Disk, app: App) -> None:
    save(app, 1)
    disk.failures, disk.code = 1, sqlite3.SQLITE_IOERR_WRITE
    with pytest.raises(Unavailable) as caught:
        save(app, 2)
    assert caught.value.kind == "unavailable"
    assert save(app, 3) == 2 and saved(app) == [1, 3]


def enter(url: str) -> None:
    with Store(url).open() as app:
        app.kernel.checkpoint_async({"n": 7}, **AT)


def test_a_refusal_for_what_is_pending_does_not_say_that_the_lost_commit_will_not_happen(
    disk: Disk, store: Store, app: App
) -> None:
    """The head is where the lost commit expects it: told that it moved, the save would be made twice."""
    save(app, 1)
    actors: list[Actor] = []

    def wait_in_line() -> None:
        actors.append(Actor(enter, store.url, at="ledger.after_insert"))
        while not is_taken(Path(store.url) / "catalog.db.turn.lock"):
            time.sleep(0.002)

    disk.failures, disk.meanwhile = 1, wait_in_line
    try:
        with pytest.raises(OutcomeUnknown):
            save(app, 2)
        actors[0].wait_until_stopped()
        assert saved(app) == [1]
    finally:
        for actor in actors:
            actor.__exit__()


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


def test_those_that_are_refused_take_nobody_along(store: Store, app: App) -> None:
    save(app, 0)
    head = next(iter(app.kernel.history(**AT))).manifest_id
    rivals = [partial(save, app, n, previous_manifest_id=head) for n in range(1, 4)]
    others = [partial(save, app, n, workflow_id=f"w{n}") for n in range(THREADS)]
    futures = at_once(store, [rivals[0], *others[:3], rivals[1], *others[3:], rivals[2]])
    errors = [each.exception() for each in futures]
    assert [type(each) for each in errors if each is not None] == [HeadMoved, HeadMoved]
    assert len(saved(app)) == 2
    assert [saved(app, f"w{n}") for n in range(THREADS)] == [[n] for n in range(THREADS)]


def test_a_commit_that_fails_fails_everyone_in_it_and_nobody_else(disk: Disk, store: Store, app: App) -> None:
    disk.failures, disk.code = 1, sqlite3.SQLITE_IOERR_WRITE
    futures = at_once(store, [partial(save, app, n, workflow_id=f"w{n}") for n in range(THREADS)])
    errors = [each.exception() for each in futures]
    assert any(errors) and all(isinstance(each, Unavailable) for each in errors if each is not None)
    stored = {each.workflow_id for each in app.kernel.list_workflows(owner_id="ann").items}
    assert stored == {f"w{n}" for n, error in enumerate(errors) if error is None}


def test_a_thread_that_is_interrupted_while_others_share_its_commit_tells_them(store: Store, app: App) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with failpoints.call("commit.before_commit", interrupt):
        futures = at_once(store, [partial(save, app, n, workflow_id=f"w{n}") for n in range(THREADS)])
    errors = [each.exception() for each in futures]
    assert sum(isinstance(each, KeyboardInterrupt) for each in errors) == 1
    assert all(isinstance(each, KeyboardInterrupt | Unavailable) for each in errors if each is not None)
    stored = {each.workflow_id for each in app.kernel.list_workflows(owner_id="ann").items}
    assert stored == {f"w{n}" for n, error in enumerate(errors) if error is None}
    assert save(app, 1) == 1


def test_checkpoints_that_are_entered_together_and_fail_are_all_told_and_none_is_there(
    disk: Disk, store: Store, app: App
) -> None:
    save(app, 0)
    disk.failures, disk.code = 1, sqlite3.SQLITE_IOERR_WRITE

    def checkpoint(n: int) -> Any:
        return app.kernel.checkpoint_async({f"key {n}": n}, **AT)

    futures = at_once(store, [partial(checkpoint, n) for n in range(THREADS)])
    errors = [each.exception() for each in futures]
    assert any(errors) and all(isinstance(each, Unavailable) for each in errors if each is not None)
    for each in futures:
        if each.exception() is None:
            app.kernel.wait_for(each.result())
    state = app.kernel.load_latest_state(**AT)
    assert {n for n in range(THREADS) if f"key {n}" in state} == {n for n, error in enumerate(errors) if error is None}


def test_a_save_waits_for_the_disk_though_it_comes_while_the_collector_writes(
    disk: Disk, store: Store, app: App
) -> None:
    """What the collector writes may be lost with the power, and whoever shares its commit would be lost, too."""
    app.kernel.set_retention(owner_id="ann", keep_last=1)
    for n in range(3):
        save(app, n)
    app.kernel.expire(**AT)
    disk.levels.clear()
    with ThreadPoolExecutor(2) as pool:
        with failpoints.paused("gc.before_doom", lambda: app.gc.run(grace_s=0)) as collecting:
            futures = [pool.submit(save, app, n, workflow_id=f"w{n}") for n in range(2)]
            # The longer they wait, the likelier they would share its commit.
            time.sleep(0.2)
            collecting.go_on()
        assert [each.result(60) for each in futures] == [1, 1]
    assert disk.levels and set(disk.levels) == {FULL}


def close_beside_readers() -> None:
    """There is one connection, and a statement that runs while it is closed takes the whole process with it."""
    for _ in range(count(4, deep=20)):
        app = analemma.open("sqlite:///:memory:")
        save(app, 1)
        reading = threading.Barrier(4)
        with ThreadPoolExecutor(3) as pool:
            told = [pool.submit(read_until_closed, app, reading) for _ in range(3)]
            reading.wait(60)
            app.close()
        print([each.result() for each in told].count(True), flush=True)


def read_until_closed(app: App, reading: threading.Barrier) -> bool:
    """Whether it is told that the store is closed."""
    reading.wait(60)
    try:
        while True:
            list(app.kernel.history(**AT))
    except Unavailable as exc:
        return "closed" in str(exc)


def test_closing_waits_for_whoever_reads_from_memory_and_then_nobody_reads() -> None:
    with Actor(close_beside_readers) as actor:
        assert actor.wait() == 0, actor.errors
        assert actor.output.split() == ["3"] * count(4, deep=20)
