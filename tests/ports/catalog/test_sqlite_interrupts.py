"""Ctrl-C anywhere in a write: the thread is interrupted, and everyone else goes on."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from analemma.catalog.engine import Transaction
from analemma.catalog.migrations import migrate
from analemma.catalog.sqlite import SqliteEngine
from analemma.errors import AnalemmaError, Internal, Timeout, Unavailable

PREAMBLE = """
import signal, sqlite3, sys, threading
from analemma.catalog.migrations import migrate
from analemma.catalog.sqlite import SqliteEngine
engine = SqliteEngine(sys.argv[1] + "/catalog.db")
migrate(engine, now_us=0)
add = lambda name: lambda tx: tx.execute("add_tenant", name=name)
signal.signal(signal.SIGALRM, signal.default_int_handler)
inside, go = threading.Event(), threading.Event()
def hold():
    with engine.transaction(write=True) as tx:
        inside.set()
        go.wait(10)
def interrupted(work):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        work()
    except KeyboardInterrupt:
        return
    raise SystemExit("not interrupted")
"""


def run(script: str, folder: Path) -> str:
    command = [sys.executable, "-c", PREAMBLE + script, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def add(name: str) -> Callable[[Transaction], int]:
    return lambda tx: tx.execute("add_tenant", name=name)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(tmp_path / "catalog.db")
    migrate(engine, now_us=0)
    yield engine
    engine.close()


@pytest.mark.parametrize(
    "work",
    ["lambda: engine.write(add('main'))", "engine.close", "lambda: engine.transaction(write=True).__enter__()"],
)
def test_an_interrupted_follower_leaves_the_queue(work: str, tmp_path: Path) -> None:
    script = f"""
holder = threading.Thread(target=hold)
holder.start()
inside.wait(10)
interrupted({work})
go.set()
holder.join(10)
engine.write(add("later"))
print(engine.one("find_tenant", name="main"), engine.one("find_tenant", name="later") is not None)
engine.close()
"""
    assert run(script, tmp_path) == "None True\n"


def test_an_interrupted_begin_leaves_no_transaction_open(tmp_path: Path) -> None:
    script = """
stranger = sqlite3.connect(engine.path, isolation_level=None, check_same_thread=False)
stranger.execute("BEGIN IMMEDIATE")
threading.Timer(0.5, lambda: stranger.execute("ROLLBACK")).start()
interrupted(lambda: engine.write(add("main")))
other = SqliteEngine(engine.path, patience_s=0.1, lock_timeout_s=0.1)
print(engine._connection.in_transaction, other.write(add("one")), engine.write(add("two")))
"""
    assert run(script, tmp_path) == "False 1 1\n"


def test_a_wait_for_another_process_can_be_interrupted(tmp_path: Path) -> None:
    script = """
other = SqliteEngine(engine.path)
with other.transaction(write=True):
    interrupted(lambda: engine.write(add("main")))
print(engine.write(add("one")), other.write(add("two")))
"""
    assert run(script, tmp_path) == "1 1\n"


def test_interrupts_at_any_moment_never_stop_the_others(engine: SqliteEngine) -> None:
    stop = threading.Event()
    caught = 0
    told: set[str] = set()
    ready = threading.Event()

    def victim() -> None:
        nonlocal caught
        while not stop.is_set():
            try:
                try:
                    ready.set()
                    while True:
                        engine.write(add("victim"))
                        with engine.transaction(write=True) as tx:
                            tx.execute("add_tenant", name="victim")
                except KeyboardInterrupt:
                    caught += 1
            except KeyboardInterrupt:
                pass

    def bystander() -> None:
        while not stop.is_set():
            try:
                engine.write(add("bystander"))
            except Unavailable as exc:
                told.add(exc.message)

    threads = [threading.Thread(target=victim), *(threading.Thread(target=bystander) for _ in range(2))]
    for thread in threads:
        thread.start()
    assert ready.wait(10)
    ending = time.monotonic() + 1.5
    # On a busy machine that is too short for many interrupts.
    while time.monotonic() < ending or caught <= 10:
        ready.clear()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(threads[0].ident or 0), ctypes.py_object(KeyboardInterrupt)
        )
        assert ready.wait(10), "the interrupted thread hangs"
        time.sleep(0.0013)
    stop.set()
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(threads[0].ident or 0), ctypes.py_object(KeyboardInterrupt)
    )
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert told <= {"the transaction was interrupted", "the commit was interrupted"}
    assert engine.write(add("later")) == 1
    assert not engine._connection.in_transaction


def test_a_leader_whose_own_step_fails_still_answers_who_came_along(engine: SqliteEngine) -> None:
    pages = engine._connection.execute("PRAGMA page_count").fetchone()[0]
    engine._connection.execute(f"PRAGMA max_page_count = {pages + 3}")
    other = SqliteEngine(engine.path)
    writer = engine._writer
    assert writer is not None
    answers: dict[str, object] = {}

    def write(name: str, move: Callable[[Transaction], int]) -> None:
        try:
            answers[name] = engine.write(move)
        except AnalemmaError as exc:
            answers[name] = exc

    row = (1, b"x" * 32, 50_000, 0, b"x" * 50_000, None, None, None, None)
    big = threading.Thread(target=write, args=("big", lambda tx: tx.execute_many("add_blocks", [row])), daemon=True)
    small = threading.Thread(target=write, args=("small", add("small")), daemon=True)
    with other.transaction(write=True):
        # The first waits for the other process; the second finds it leading.
        big.start()
        while writer._queue._leading is None:
            time.sleep(0.001)
        small.start()
        while len(writer._queue) < 1:
            time.sleep(0.001)
    for thread in (big, small):
        thread.join(60)
    assert isinstance(answers["big"], Unavailable) and isinstance(answers["small"], Unavailable)
    assert engine.write(add("later")) == 1
    other.close()


def test_a_commit_that_fails_leaves_no_transaction_open(engine: SqliteEngine) -> None:
    row = {"tenant": 1, "manifest": b"none", "version": 1, "journal_seq": 1, "journal_tip": b""}

    def dangle() -> None:
        with engine.transaction(write=True) as tx:
            # The key from head to manifest is checked by COMMIT itself.
            tx.execute("create_head", owner="a", workflow="b", branch="c", **row)

    with pytest.raises(Internal):
        dangle()
    assert not engine._connection.in_transaction
    assert engine.write(add("later")) == 1


def test_a_thread_does_not_wait_for_another_for_ever(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "catalog.db", lock_timeout_s=0.1)
    migrate(engine, now_us=0)
    failures: list[BaseException] = []

    def write() -> None:
        try:
            engine.write(add("late"))
        except AnalemmaError as exc:
            failures.append(exc)

    with engine.transaction(write=True):
        thread = threading.Thread(target=write)
        thread.start()
        thread.join(60)
    assert [type(failure) for failure in failures] == [Timeout]
    assert engine.write(add("later")) == 1
    engine.close()


def test_closing_inside_a_write_is_refused_and_leaks_nothing(engine: SqliteEngine) -> None:
    with pytest.raises(Internal):
        engine.write(lambda tx: engine.close())
    assert engine.write(add("later")) == 1
    engine.close()
    with pytest.raises(Unavailable, match="closed"):
        engine.write(add("too late"))
