"""The SQLite engine: shared commits, snapshots, forks, and a log that stays small."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from analemma.catalog.engine import Transaction
from analemma.catalog.migrations import migrate
from analemma.catalog.sqlite import SqliteEngine
from analemma.errors import Conflict, Internal, Unavailable

# A test runner has threads of its own; the child touches nothing of theirs.
FORKING = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def names(engine: SqliteEngine) -> set[str]:
    with engine.transaction() as tx:
        return {name for name in ("one", "two", "three", "four") if tx.one("find_tenant", name=name)}


def add(name: str) -> Callable[[Transaction], int]:
    return lambda tx: tx.execute("add_tenant", name=name)


@pytest.fixture(params=["file", "memory"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(":memory:" if request.param == "memory" else tmp_path / "catalog.db")
    migrate(engine, now_us=0)
    yield engine
    engine.close()


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(tmp_path / "catalog.db", log_limit_bytes=1 << 20)
    migrate(engine, now_us=0)
    yield engine
    engine.close()


def commits(engine: SqliteEngine) -> list[str]:
    """A list that grows by one with every COMMIT."""
    seen: list[str] = []
    engine._connection.set_trace_callback(lambda sql: seen.append(sql) if sql == "COMMIT" else None)
    return seen


def queue_behind(
    engine: SqliteEngine, first: Callable[[Transaction], int], *others: Callable[[Transaction], int], lazy: bool = False
) -> list[Future[int]]:
    """Have `others` wait while `first` is in its transaction, so that they share it."""
    writer = engine._writer
    assert writer is not None
    started, proceed = threading.Event(), threading.Event()

    def lead(tx: Transaction) -> int:
        started.set()
        proceed.wait(10)
        return first(tx)

    with ThreadPoolExecutor(len(others) + 1) as pool:
        futures = [pool.submit(engine.write, lead, lazy=lazy)]
        assert started.wait(10)
        for place, move in enumerate(others, 1):
            futures.append(pool.submit(engine.write, move))
            while len(writer._queue) < place:
                time.sleep(0.001)
        proceed.set()
    return futures


def test_waiting_writers_share_one_commit(engine: SqliteEngine) -> None:
    seen = commits(engine)
    futures = queue_behind(engine, add("one"), add("two"), add("three"))
    assert [future.result() for future in futures] == [1, 1, 1]
    assert seen == ["COMMIT"]
    assert names(engine) == {"one", "two", "three"}


FULL, NORMAL = (2,), (1,)


def level(tx: Transaction) -> tuple[int, ...]:
    """Whether this transaction's commit will wait for the disk."""
    found = tx.one("synchronous_level")
    assert found is not None
    return found


def test_only_a_lazy_write_does_not_wait_for_the_disk(on_disk: SqliteEngine) -> None:
    def fail(tx: Transaction) -> None:
        raise ValueError("it was lazy")

    for _ in range(3):
        assert on_disk.write(level) == FULL
        assert on_disk.write(level, lazy=True) == on_disk.write(level, lazy=True) == NORMAL
        assert on_disk.write(level, lazy=True, durable=True) == FULL
        with pytest.raises(ValueError, match="lazy"):
            on_disk.write(fail, lazy=True)
        with on_disk.transaction(write=True) as tx:
            assert level(tx) == FULL


def test_nobody_shares_the_commit_of_a_lazy_leader(on_disk: SqliteEngine) -> None:
    seen = commits(on_disk)
    levels: list[tuple[int, ...]] = []

    def note(tx: Transaction) -> int:
        levels.append(level(tx))
        return tx.execute("add_tenant", name=str(len(levels)))

    futures = queue_behind(on_disk, note, note, note, lazy=True)
    assert [future.result() for future in futures] == [1, 1, 1]
    assert levels == [NORMAL, FULL, FULL] and seen == ["COMMIT", "COMMIT"]


def test_a_write_after_an_interrupted_lazy_one_waits_for_the_disk(on_disk: SqliteEngine) -> None:
    def interrupt(tx: Transaction) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        on_disk.write(interrupt, lazy=True)
    assert on_disk.write(level) == FULL


def test_a_store_that_never_waits_for_the_disk_is_left_so(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "catalog.db", synchronous="normal")
    assert engine.write(level) == engine.write(level, lazy=True) == engine.write(level) == NORMAL
    engine.close()


def test_a_failing_request_takes_nobody_along(engine: SqliteEngine) -> None:
    def fail(tx: Transaction) -> int:
        tx.execute("add_tenant", name="two")
        raise ValueError("mine alone")

    futures = queue_behind(engine, add("one"), fail, add("three"))
    assert futures[0].result() == futures[2].result() == 1
    with pytest.raises(ValueError, match="mine alone"):
        futures[1].result()
    assert names(engine) == {"one", "three"}


def test_a_failing_leader_takes_nobody_along(engine: SqliteEngine) -> None:
    def fail(tx: Transaction) -> int:
        tx.execute("add_tenant", name="one")
        raise ValueError("mine alone")

    futures = queue_behind(engine, fail, add("two"), add("three"))
    with pytest.raises(ValueError, match="mine alone"):
        futures[0].result()
    assert names(engine) == {"two", "three"}


def test_a_failed_commit_fails_every_request_in_it(engine: SqliteEngine) -> None:
    def dangle(tx: Transaction) -> int:
        # The key from head to manifest is checked by COMMIT itself.
        key = {"owner": "a", "workflow": "b", "branch": "c"}
        row = {"tenant": 1, "manifest": b"none", "version": 1, "journal_seq": 1, "journal_tip": b""}
        return tx.execute("create_head", **key, **row)

    futures = queue_behind(engine, add("one"), dangle, add("three"))
    for future in futures:
        with pytest.raises(Internal):
            future.result()
    assert names(engine) == set()
    engine.write(add("four"))
    assert names(engine) == {"four"}


def test_an_interrupted_leader_tells_the_others(engine: SqliteEngine) -> None:
    def interrupt(tx: Transaction) -> int:
        raise KeyboardInterrupt

    futures = queue_behind(engine, add("one"), interrupt, add("three"))
    with pytest.raises(KeyboardInterrupt):
        futures[0].result()
    with pytest.raises(Unavailable):
        futures[1].result()
    assert futures[2].result() == 1
    assert names(engine) == {"three"}


def test_a_block_has_its_transaction_to_itself(engine: SqliteEngine) -> None:
    with ThreadPoolExecutor(1) as pool:
        with engine.transaction(write=True) as tx:
            tx.execute("add_tenant", name="one")
            future = pool.submit(engine.write, add("two"))
        assert future.result() == 1

    def fail(tx: Transaction) -> None:
        tx.execute("add_tenant", name="three")
        raise ValueError("undo")

    with pytest.raises(ValueError, match="undo"), engine.transaction(write=True) as tx:
        fail(tx)
    assert names(engine) == {"one", "two"}


def test_a_write_inside_a_write_is_refused(engine: SqliteEngine) -> None:
    with pytest.raises(Internal):
        engine.write(lambda tx: engine.write(add("one")))
    engine.write(add("two"))
    assert names(engine) == {"two"}


def test_a_read_transaction_sees_one_snapshot(on_disk: SqliteEngine) -> None:
    with on_disk.transaction() as tx:
        assert tx.one("find_tenant", name="one") is None
        on_disk.write(add("one"))
        assert tx.one("find_tenant", name="one") is None
    assert names(on_disk) == {"one"}


def test_readers_cannot_write(on_disk: SqliteEngine) -> None:
    with pytest.raises(Unavailable), on_disk.transaction() as tx:
        tx.execute("add_tenant", name="one")
    assert names(on_disk) == set()


def test_a_taken_key_is_a_conflict(engine: SqliteEngine) -> None:
    row = dict.fromkeys(("owner", "workflow", "execution")) | {"object_key": "k", "size": 1, "created_at": 1}
    engine.write(add("one"))
    engine.execute("open_upload", tenant=1, id=b"u", state="temp", **row)
    with pytest.raises(Conflict):
        engine.execute("open_upload", tenant=1, id=b"u", state="temp", **row)


def test_statements_are_counted_by_name(engine: SqliteEngine) -> None:
    engine.statements.clear()
    engine.write(add("one"))
    engine.one("find_tenant", name="one")
    engine.one("find_tenant", name="two")
    assert engine.statements == {"add_tenant": 1, "find_tenant": 2}


def test_a_parameter_too_few_is_named(engine: SqliteEngine) -> None:
    with pytest.raises(Internal, match="find_tenant takes name"):
        engine.one("find_tenant")


def test_a_closed_engine_says_so(engine: SqliteEngine) -> None:
    engine.close()
    for call in (lambda: engine.one("find_tenant", name="one"), lambda: engine.write(add("one"))):
        with pytest.raises(Unavailable, match="closed"):
            call()


@FORKING
def test_a_forked_child_opens_its_own_connections(on_disk: SqliteEngine) -> None:
    on_disk.write(add("one"))
    on_disk.one("find_tenant", name="one")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            on_disk.write(add("two"))
            code = 0 if names(on_disk) >= {"one", "two"} else 2
        finally:
            os._exit(code)
    on_disk.write(add("three"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert names(on_disk) == {"one", "two", "three"}
    assert on_disk._connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@FORKING
def test_closing_waits_for_whoever_reads_from_memory_and_then_nobody_reads() -> None:
    """There is one connection, and a statement that runs while it is closed takes the whole process with it."""
    engine = SqliteEngine(":memory:")
    reading, may_end, closed = threading.Event(), threading.Event(), threading.Event()
    seen: list[object] = []

    def read() -> None:
        with engine.snapshot() as tx:
            reading.set()
            may_end.wait(30)
            seen.append(tx.one("probe"))

    def close() -> None:
        engine.close()
        closed.set()

    def read_late() -> None:
        try:
            engine.one("probe")
        except Unavailable as exc:
            seen.append(exc)

    threads = [threading.Thread(target=work) for work in (read, close, read_late)]
    threads[0].start()
    assert reading.wait(30)
    threads[1].start()
    while engine._writer is not None:
        time.sleep(0.001)
    threads[2].start()
    time.sleep(0.05)
    assert not closed.is_set()
    may_end.set()
    for thread in threads:
        thread.join(30)
    assert closed.is_set() and isinstance(seen[0], tuple)
    assert isinstance(seen[1], Unavailable) and "is closed" in str(seen[1])


def test_an_in_memory_database_refuses_to_work_in_a_forked_child() -> None:
    engine = SqliteEngine(":memory:")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            engine.one("probe")
        except Unavailable:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    engine.close()


def test_readers_that_overlap_for_ever_do_not_let_the_log_grow_for_ever(on_disk: SqliteEngine) -> None:
    log = Path(f"{on_disk.path}-wal")
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            with on_disk.transaction() as tx:
                tx.one("find_tenant", name="one")
                time.sleep(0.01)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    largest = 0
    for number in range(120):
        rows = [(1, os.urandom(32), 50_000, 0, os.urandom(50_000), None, None, None, None)]
        on_disk.write(lambda tx, rows=rows: tx.execute_many("add_blocks", rows))  # type: ignore[misc]
        if number > 30:
            largest = max(largest, log.stat().st_size)
    stop.set()
    for reader in readers:
        reader.join()
    # Six megabytes went through it.
    assert largest < 3 << 20


def test_deleting_writes_no_more_than_it_must(on_disk: SqliteEngine) -> None:
    """However the system's SQLite was built: one that fills free pages with zeros logs every page that it frees."""
    log = Path(f"{on_disk.path}-wal")
    sizes = [log.stat().st_size]
    for script in (
        "CREATE TABLE heap (place integer PRIMARY KEY, body blob)",
        "INSERT INTO heap (body) VALUES (randomblob(20000));" * 50,
        "DELETE FROM heap WHERE place > 1",
    ):
        with on_disk.transaction(write=True) as tx:
            tx.script(script)
        sizes.append(log.stat().st_size)
    stored, deleted = sizes[2] - sizes[1], sizes[3] - sizes[2]
    assert stored > 900_000 and deleted < stored / 4
