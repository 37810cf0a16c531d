"""What a forked child may do with SQLite, and that nothing it commits is lost when its parent goes."""

from __future__ import annotations

import gc
import os
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from analemma.catalog.engine import Transaction
from analemma.catalog.migrations import migrate
from analemma.catalog.sqlite import SqliteEngine
from analemma.errors import Unavailable

# A test runner has threads of its own; the child touches nothing of theirs.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def add(name: str) -> Callable[[Transaction], int]:
    return lambda tx: tx.execute("add_tenant", name=name)


def has(engine: SqliteEngine, *names: str) -> bool:
    return all(engine.one("find_tenant", name=name) is not None for name in names)


def fork(work: Callable[[], object]) -> int:
    """Run it in a child; the child's process id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def wait(child: int) -> None:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def refused(work: Callable[[], object]) -> None:
    """The work must be Unavailable, and say how to do better."""
    with pytest.raises(Unavailable, match=r"forked.*spawn"):
        work()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(tmp_path / "catalog.db")
    migrate(engine, now_us=0)
    has(engine, "nobody")  # so that a reading connection is idle
    yield engine
    engine.close()


def test_what_a_child_commits_outlives_the_close_of_its_parent(engine: SqliteEngine) -> None:
    (committed, tell), (closed, go_on) = os.pipe(), os.pipe()

    def work() -> None:
        engine.write(add("before"))
        os.write(tell, b"x")
        os.read(closed, 1)
        engine.write(add("after"))
        assert has(engine, "before", "after")

    child = fork(work)
    os.read(committed, 1)
    engine.close()
    os.write(go_on, b"x")
    wait(child)
    again = SqliteEngine(engine.path)
    assert has(again, "before", "after")
    again.close()
    for fd in (committed, tell, closed, go_on):
        os.close(fd)


def test_a_child_that_is_killed_takes_nothing_along(engine: SqliteEngine) -> None:
    (committed, tell) = os.pipe()

    def work() -> None:
        engine.write(add("child"))
        os.write(tell, b"x")
        time.sleep(60)

    child = fork(work)
    os.read(committed, 1)
    engine.close()
    os.kill(child, 9)
    os.waitpid(child, 0)
    again = SqliteEngine(engine.path)
    assert has(again, "child")
    again.close()
    os.close(committed)
    os.close(tell)


def test_two_engines_on_one_file_cross_a_fork_together(engine: SqliteEngine) -> None:
    other = SqliteEngine(engine.path)

    def work() -> None:
        engine.write(add("one"))
        other.write(add("two"))
        engine.close()
        other.write(add("three"))

    child = fork(work)
    other.close()
    wait(child)
    assert has(engine, "one", "two", "three")


def test_a_grandchild_opens_its_own_connections(engine: SqliteEngine) -> None:
    wait(fork(lambda: wait(fork(lambda: engine.write(add("grandchild"))))))
    assert has(engine, "grandchild")


def test_a_closed_engine_stays_closed_in_a_child(engine: SqliteEngine) -> None:
    engine.close()

    def work() -> None:
        with pytest.raises(Unavailable, match="closed"):
            engine.one("probe")

    wait(fork(work))


def test_a_fork_waits_for_the_transactions_of_other_threads(engine: SqliteEngine) -> None:
    inside = threading.Barrier(3)

    def write() -> None:
        with engine.transaction(write=True) as tx:
            tx.execute("add_tenant", name="parent")
            inside.wait(10)
            time.sleep(0.2)

    def read() -> None:
        with engine.transaction() as tx:
            tx.one("find_tenant", name="parent")
            inside.wait(10)
            time.sleep(0.2)
            # A thread that is reading may read on while the fork waits for it.
            assert not has(engine, "nobody")

    threads = [threading.Thread(target=write), threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    inside.wait(10)

    def work() -> None:
        assert has(engine, "parent")
        engine.write(add("child"))

    wait(fork(work))
    for thread in threads:
        thread.join(10)
    assert has(engine, "parent", "child")
    engine.write(add("later"))


@pytest.mark.parametrize("write", [True, False])
def test_a_child_forked_inside_a_transaction_cannot_use_the_file(engine: SqliteEngine, write: bool) -> None:
    with engine.transaction(write=write) as tx:

        def work() -> None:
            refused(lambda: tx.one("find_tenant", name="one"))
            refused(lambda: engine.write(add("child")))
            refused(lambda: engine.one("find_tenant", name="one"))
            refused(lambda: SqliteEngine(engine.path))
            wait(fork(lambda: refused(lambda: SqliteEngine(engine.path))))
            # Another file is no concern of that.
            other = SqliteEngine(f"{engine.path}.other")
            migrate(other, now_us=0)
            other.close()

        wait(fork(work))
        if write:
            tx.execute("add_tenant", name="parent")
    engine.write(add("later"))
    assert has(engine, "later") and not has(engine, "child")
    assert has(engine, "parent") is write


def test_leaving_an_inherited_transaction_neither_commits_nor_unlocks_it(engine: SqliteEngine) -> None:
    with engine.transaction(write=True) as tx:
        child = os.fork()
        if child:
            wait(child)
            rival = SqliteEngine(engine.path, lock_timeout_s=0.1)
            with pytest.raises(TimeoutError):
                rival.write(add("rival"))
            rival.close()
            tx.execute("add_tenant", name="parent")
        else:
            code = 1
            try:
                refused(lambda: tx.execute("add_tenant", name="child"))
                assert engine._lock is not None
                engine._lock.release()
                code = 0
            finally:
                os._exit(code)
    assert has(engine, "parent") and not has(engine, "child")


def test_a_fork_that_cannot_wait_longer_goes_ahead(engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analemma.catalog.sqlite_fork.PATIENCE_S", 0.1)
    inside, done = threading.Event(), threading.Event()

    def read() -> None:
        with engine.transaction() as tx:
            tx.one("find_tenant", name="one")
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=read)
    thread.start()
    inside.wait(10)
    wait(fork(lambda: refused(lambda: engine.write(add("child")))))
    engine.write(add("parent"))
    done.set()
    thread.join(10)
    assert has(engine, "parent")


def test_an_engine_that_nobody_holds_is_collected(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "catalog.db")
    seen = weakref.ref(engine)
    descriptors = len(os.listdir("/proc/self/fd"))
    engine.close()
    del engine
    gc.collect()
    assert seen() is None
    assert len(os.listdir("/proc/self/fd")) < descriptors


def test_a_parent_can_fork_and_write_again_and_again(engine: SqliteEngine) -> None:
    for number in range(3):
        wait(fork(lambda: engine.one("find_tenant", name="one")))
        assert engine.write(add(f"after {number}")) == 1
