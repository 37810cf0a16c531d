"""The SQLite engine: one writer, many snapshot readers, any number of processes."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, TypeVar

from analemma.catalog.engine import Row, Transaction
from analemma.catalog.file_lock import PATIENCE_S, TIMEOUT_S, FileLock
from analemma.catalog.memory import is_in_memory, remove_from_memory
from analemma.catalog.sql import Dialect
from analemma.catalog.sqlite_connections import SqliteConnector, Synchronous, sync_directory, sync_file
from analemma.catalog.sqlite_errors import lost_in_a_fork
from analemma.catalog.sqlite_fork import identify, lose, refuse_lost, watch
from analemma.catalog.sqlite_queue import Request
from analemma.catalog.sqlite_readers import SqliteReaders
from analemma.catalog.sqlite_transaction import SqliteTransaction
from analemma.catalog.sqlite_writer import LOG_LIMIT_BYTES, SqliteWriter
from analemma.errors import Unavailable

Result = TypeVar("Result")


class SqliteEngine:
    """One database file, opened by one process.

    `synchronous="normal"` gives up durability against a power cut for about three times the commits per second; kill -9
    stays harmless. In memory nothing is flushed. A write that does not get its turn within `lock_timeout_s` is a
    Timeout, and so is one that waits for the same holder longer than `patience_s`; for a program that knows nothing of
    turns it waits no longer either.
    """

    dialect: Dialect = "sqlite"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Synchronous = "full",
        patience_s: float = PATIENCE_S,
        lock_timeout_s: float = TIMEOUT_S,
        log_limit_bytes: int = LOG_LIMIT_BYTES,
    ) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self.statements: Counter[str] = Counter()
        self._synchronous = "off" if is_in_memory(self.path) else synchronous
        self._connect = SqliteConnector(
            self.path, self.statements, synchronous=self._synchronous, busy_timeout_s=patience_s
        )
        self._patience_s = patience_s
        self._lock_timeout_s = lock_timeout_s
        self._log_limit_bytes = log_limit_bytes
        self._changing = threading.Lock()
        """Held while connections are opened or closed for good, and across a fork."""
        self._writer: SqliteWriter | None = None
        self._inherited: Literal["nothing", "closed", "lost"] = "nothing"
        """What a fork left in this process."""
        self._fork: _Fork | None = None
        watch(self)
        with self._changing:
            self._open()

    def one(self, name: str, /, **parameters: Any) -> Row | None:
        rows = self.all(name, **parameters)
        return rows[0] if rows else None

    def all(self, name: str, /, **parameters: Any) -> list[Row]:
        # `_reader` without a context manager, which would cost a third of a point read.
        self._present()
        readers = self._readers
        tx = readers.take()
        try:
            return tx.all(name, **parameters)
        finally:
            readers.give_back(tx)

    def execute(self, name: str, /, **parameters: Any) -> int:
        return self.write(lambda tx: tx.execute(name, **parameters))

    def transaction(self, *, write: bool = False) -> AbstractContextManager[Transaction]:
        return self._present().alone() if write else self._snapshot()

    def snapshot(self) -> AbstractContextManager[Transaction]:
        return self._snapshot()

    def write(self, move: Callable[[Transaction], Result], /, *, durable: bool = False, lazy: bool = False) -> Result:
        result = self._present().write(move, lazy=lazy and not durable)
        if durable and self._synchronous == "normal":
            # The commit is in the log, or the log was copied back, and flushed, since then.
            sync_file(f"{self.path}-wal")
        return result

    def missing_functions(self, found: Mapping[str, str]) -> list[str]:
        return []

    def function_changes(self, found: Mapping[str, str]) -> list[str]:
        return []

    def close(self) -> None:
        with self._changing:
            self._inherited = "nothing"
            if self._writer is None:
                return
            # First, and it may refuse: inside a write nothing is closed.
            self._writer.close()
            self._writer = None
            self._readers.close()
            # Last: the connection that closes last copies the log back and removes it, and only this one may write.
            self._connection.close()
            self._lock.close()
            remove_from_memory(self.path)

    def before_fork(self, deadline: float) -> None:
        if not self._changing.acquire(timeout=_until(deadline)):
            return
        self._fork = fork = _Fork()
        if self._writer is not None:
            fork.turn = self._writer.pause(_until(deadline))
            if fork.turn is None or not self._readers.pause(_until(deadline)):
                return
        fork.quiet = True

    def after_fork_in_parent(self) -> None:
        fork, self._fork = self._fork, None
        if fork is None:
            return
        if self._writer is not None:
            self._readers.resume()
            if fork.turn is not None:
                self._writer.resume(fork.turn)
        self._changing.release()

    def after_fork_in_child(self) -> None:
        quiet = self._fork is not None and self._fork.quiet
        self._fork = None
        self._changing = threading.Lock()
        if self._writer is None:
            if not quiet:
                # It was being opened or closed at that moment.
                self._inherited = "lost"
                lose(identify(self.path), ())
            return
        connections = [*self._readers.abandon(), self._writer.abandon()]
        self._writer = None
        self._lock.close()
        if not quiet:
            self._inherited = "lost"
            lose(self._file, connections)
            return
        self._inherited = "closed"
        for connection in connections:
            connection.close()

    def _present(self) -> SqliteWriter:
        writer = self._writer
        if writer is not None:
            return writer
        with self._changing:
            if self._inherited == "lost":
                raise lost_in_a_fork(self.path)
            if self._writer is None and self._inherited == "closed":
                self._open()
                self._inherited = "nothing"
            if self._writer is None:
                raise Unavailable(f"the catalog {self.path} is closed", hint="open it again")
            return self._writer

    def _open(self) -> None:
        refuse_lost(self.path)
        self._lock = FileLock(self.path, timeout_s=self._lock_timeout_s, patience_s=self._patience_s)
        try:
            tx = self._connect.writer(self._lock)
            # Not only when it is new: whoever made it may have been killed before this.
            sync_directory(os.path.dirname(self.path))
        except BaseException:
            self._lock.close()
            raise
        self._connection = tx.connection
        self._file = identify(self.path)
        self._readers = SqliteReaders(self._connect.reader)
        self._writer = SqliteWriter(
            tx,
            database=self.path,
            lock=self._lock,
            renew=self._renew_writer,
            truncate_log=self._connect.truncate_log,
            timeout_s=self._lock_timeout_s,
            flushes=self._synchronous == "full",
            log_limit_bytes=self._log_limit_bytes,
        )

    def _renew_writer(self) -> SqliteTransaction:
        before = self._connection
        tx = self._connect.writer(None)
        self._connection = tx.connection
        before.close()
        return tx

    @contextmanager
    def _reader(self) -> Iterator[SqliteTransaction]:
        self._present()
        readers = self._readers
        tx = readers.take()
        try:
            yield tx
        finally:
            readers.give_back(tx)

    @contextmanager
    def _snapshot(self) -> Iterator[Transaction]:
        with self._reader() as tx:
            tx.control("begin_read")
            try:
                yield tx
            finally:
                tx.control("rollback_transaction")


class _Fork:
    """What an engine holds while its process forks."""

    turn: Request | None = None
    quiet = False


def _until(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
