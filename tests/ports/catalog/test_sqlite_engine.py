"""The SQLite engine: snapshots, and a log that stays small."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from analemma.errors import Timeout, Unavailable
from tests.ports.entry_points.catalog import SQLITE_WRITER, SqliteEngine, Transaction


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteEngine]:
    monkeypatch.setattr(f"{SQLITE_WRITER}.LOG_LIMIT_BYTES", 1 << 20)
    engine = SqliteEngine(tmp_path / "catalog.db")
    engine.write(lambda tx: tx.script("CREATE TABLE tenant (id integer PRIMARY KEY, name text, body blob)"))
    yield engine
    engine.close()


def add(engine: SqliteEngine, name: str, size: int = 0) -> None:
    sql = f"INSERT INTO tenant (name, body) VALUES ('{name}', randomblob({size}))"  # noqa: S608
    engine.write(lambda tx: tx.script(sql))


def test_a_read_transaction_sees_one_snapshot(engine: SqliteEngine) -> None:
    with engine.snapshot() as tx:
        assert tx.one("find_tenant", name="one") is None
        add(engine, "one")
        assert tx.one("find_tenant", name="one") is None
    assert engine.one("find_tenant", name="one") == (1,)


def test_readers_cannot_write(engine: SqliteEngine) -> None:
    with pytest.raises(Unavailable), engine.snapshot() as tx:
        tx.script("INSERT INTO tenant (name) VALUES ('one')")
    assert engine.one("find_tenant", name="one") is None


def test_a_thread_waits_so_long_for_its_turn_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute, unless it is told otherwise. It gives up its place, and nobody behind it waits for it."""
    engine = SqliteEngine(tmp_path / "catalog.db")
    monkeypatch.setattr(f"{SQLITE_WRITER}.TIMEOUT_S", 0.05)
    with ThreadPoolExecutor(1) as pool:

        def hold(tx: Transaction) -> None:
            tx.script("CREATE TABLE tenant (id integer PRIMARY KEY, name text, body blob)")
            for other in (lambda: add(engine, "late"), engine.vacuum):
                with pytest.raises(Timeout, match="other threads of this process"):
                    pool.submit(other).result(timeout=5)

        engine.write(hold)
        monkeypatch.undo()
        pool.submit(add, engine, "one").result(timeout=60)
    assert engine.one("find_tenant", name="late") is None and engine.one("find_tenant", name="one") is not None
    engine.close()


def test_whoever_was_nearly_taken_along_by_an_interrupted_thread_is_run_by_the_next(engine: SqliteEngine) -> None:
    """Told that nothing was changed, it would write again, and the next would have run it, too."""
    waiting = Interrupting(engine._writer._waiting)
    engine._writer._waiting = waiting
    with ThreadPoolExecutor(1) as pool:

        def lead(tx: Transaction) -> None:
            begun.append(pool.submit(add, engine, "behind"))
            while not waiting:
                time.sleep(0.001)
            waiting.armed = True

        begun: list[Future[None]] = []
        with pytest.raises(KeyboardInterrupt):
            engine.write(lead)
        assert begun[0].result(timeout=60) is None
    assert engine.all("tenant_names") == [(1, "behind")]


class Interrupting(deque[Any]):
    """The line of those who wait; an interrupt hits whoever takes the first of them along, before it is out."""

    armed = False

    def remove(self, value: Any, /) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        super().remove(value)


def test_readers_that_overlap_for_ever_do_not_let_the_log_grow_for_ever(engine: SqliteEngine) -> None:
    log = Path(f"{engine.path}-wal")
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            with engine.snapshot() as tx:
                tx.one("find_tenant", name="one")
                time.sleep(0.01)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    largest = 0
    for number in range(120):
        add(engine, "one", 50_000)
        if number > 30:
            largest = max(largest, log.stat().st_size)
    stop.set()
    for reader in readers:
        reader.join()
    # Six megabytes went through it.
    assert largest < 3 << 20
