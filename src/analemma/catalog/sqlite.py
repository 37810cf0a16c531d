"""The SQLite engine: one writer, many snapshot readers, any number of processes."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, TypeVar

from analemma.catalog.engine import Row, Transaction
from analemma.catalog.file_lock import FileLock
from analemma.catalog.sqlite_errors import translate
from analemma.catalog.sqlite_transaction import SqliteTransaction
from analemma.catalog.sqlite_writer import LOG_LIMIT_BYTES, SqliteWriter
from analemma.catalog.statements import Dialect, load
from analemma.errors import Unavailable

Result = TypeVar("Result")
Synchronous = Literal["full", "normal"]
MEMORY = ":memory:"
IDLE_READERS = 16
CHECKPOINT_PATIENCE_S = 0.2
_WRITER_PRAGMAS = (
    "enforce_foreign_keys",
    "checkpoint_every",
    "limit_idle_log",
    "temporary_in_memory",
    "cache_for_writing",
)


class SqliteEngine:
    """One database file (or memory), opened by one process.

    `synchronous="normal"` gives up durability against a power cut for about three times the commits per second; kill -9
    stays harmless.
    """

    dialect: Dialect = "sqlite"
    _writer: SqliteWriter | None
    _lock: FileLock | None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Synchronous = "full",
        busy_timeout_s: float = 10.0,
        log_limit_bytes: int = LOG_LIMIT_BYTES,
    ) -> None:
        text = os.fspath(path)
        self.path = text if text == MEMORY else os.path.abspath(text)
        self.statements: Counter[str] = Counter()
        self._sql = load(self.dialect)
        self._synchronous = synchronous
        # The last resort: our own processes queue on the lock file, so only a stranger's transaction can block us.
        self._busy_timeout_s = busy_timeout_s
        self._log_limit_bytes = log_limit_bytes
        self._mutex = threading.RLock() if self.path == MEMORY else None
        self._reopening = threading.Lock()
        self._open()
        _ENGINES.add(self)

    def one(self, name: str, /, **parameters: Any) -> Row | None:
        with self._reader() as tx:
            return tx.one(name, **parameters)

    def all(self, name: str, /, **parameters: Any) -> list[Row]:
        with self._reader() as tx:
            return tx.all(name, **parameters)

    def execute(self, name: str, /, **parameters: Any) -> int:
        return self.write(lambda tx: tx.execute(name, **parameters))

    def transaction(self, *, write: bool = False) -> AbstractContextManager[Transaction]:
        return self._present().alone() if write else self._snapshot()

    def write(self, move: Callable[[Transaction], Result], /) -> Result:
        return self._present().write(move)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.close()
        _ENGINES.discard(self)
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        # Last: the connection that closes last copies the log back and removes it, and only this one may write.
        self._connection.close()
        if self._lock is not None:
            self._lock.close()

    def _present(self) -> SqliteWriter:
        if self._orphaned:
            self._reopen_after_fork()
        if self._writer is None:
            raise Unavailable(f"the catalog {self.path} is closed", hint="open it again")
        return self._writer

    def _open(self) -> None:
        self._idle: list[sqlite3.Connection] = []
        new = self.path != MEMORY and not os.path.exists(self.path)
        self._lock = None if self.path == MEMORY else FileLock(f"{self.path}.lock")
        self._connection = self._connect(self._busy_timeout_s)
        tx = self._statements_on(self._connection)
        try:
            tx.control("probe")
            if self.path != MEMORY:
                self._switch_to_wal(tx)
                if new:
                    sync_directory(os.path.dirname(self.path))
            tx.control(f"synchronous_{self._synchronous}")
            for name in _WRITER_PRAGMAS:
                tx.control(name)
        except BaseException:
            self._connection.close()
            if self._lock is not None:
                self._lock.close()
            raise
        self._writer = SqliteWriter(
            tx,
            database=self.path,
            lock=self._lock,
            mutex=self._mutex,
            truncate_log=self._truncate_log,
            log_limit_bytes=self._log_limit_bytes,
        )
        self._orphaned = False

    def _switch_to_wal(self, tx: SqliteTransaction) -> None:
        assert self._lock is not None
        # Several processes may create the file at the same moment, and changing the mode does not wait for a busy lock.
        self._lock.acquire()
        try:
            tx.control("use_wal")
        finally:
            self._lock.release()

    def _connect(self, timeout_s: float) -> sqlite3.Connection:
        try:
            return sqlite3.connect(
                self.path,
                timeout=timeout_s,
                isolation_level=None,  # we begin and commit ourselves
                check_same_thread=False,  # a connection moves between threads, never used by two at once
                cached_statements=512,
            )
        except sqlite3.Error as exc:
            raise translate(exc, self.path) from exc

    def _statements_on(self, connection: sqlite3.Connection) -> SqliteTransaction:
        return SqliteTransaction(connection, self._sql, self.statements, self.path)

    @contextmanager
    def _reader(self) -> Iterator[SqliteTransaction]:
        self._present()
        if self._mutex is not None:
            with self._mutex:
                yield self._statements_on(self._connection)
            return
        idle = self._idle
        try:
            connection = idle.pop()
        except IndexError:
            connection = self._connect(self._busy_timeout_s)
            self._statements_on(connection).control("refuse_writes")
        try:
            yield self._statements_on(connection)
        finally:
            if connection.in_transaction:
                connection.rollback()
            if self._writer is not None and idle is self._idle and len(idle) < IDLE_READERS:
                idle.append(connection)
            else:
                connection.close()

    @contextmanager
    def _snapshot(self) -> Iterator[Transaction]:
        with self._reader() as tx:
            if self._mutex is not None and self._connection.in_transaction:
                yield tx  # inside a write of the same thread, on the one connection there is
                return
            tx.control("begin_read")
            try:
                yield tx
            finally:
                tx.control("rollback_transaction")

    def _truncate_log(self) -> None:
        connection = self._connect(CHECKPOINT_PATIENCE_S)
        try:
            self._statements_on(connection).control("truncate_log")
        finally:
            connection.close()

    def _abandon(self) -> None:
        """In a forked child: the parent's connections are not ours to use, nor even to close."""
        _ABANDONED.append((self._connection, self._idle, self._writer))
        if self._lock is not None:
            self._lock.close()
        self._orphaned = self._writer is not None
        self._writer = None
        self._idle = []
        self._reopening = threading.Lock()

    def _reopen_after_fork(self) -> None:
        if self.path == MEMORY:
            raise Unavailable(
                "an in-memory catalog does not survive a fork", hint="open a catalog in the child process"
            )
        with self._reopening:
            if self._orphaned:
                self._open()


def sync_directory(path: str) -> None:
    """Make the names in a directory durable: fsync of a new file does not cover its own name."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_ENGINES: weakref.WeakSet[SqliteEngine] = weakref.WeakSet()
# Closing a connection after a fork would take locks and perhaps the log from under the parent: these stay unclosed.
_ABANDONED: list[object] = []


def _after_fork_in_child() -> None:
    for engine in list(_ENGINES):
        engine._abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
