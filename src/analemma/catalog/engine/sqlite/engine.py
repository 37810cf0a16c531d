"""The SQLite engine: one writer, many snapshot readers, any number of processes."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from analemma.catalog.engine.db import Engine, Row, Transaction, lost_in_a_fork
from analemma.catalog.engine.sql import SQLITE
from analemma.catalog.engine.sqlite.errors import translate
from analemma.catalog.engine.sqlite.memory import is_in_memory, remove_from_memory
from analemma.catalog.engine.sqlite.transaction import ColumnTypes, SqliteTransaction
from analemma.catalog.engine.sqlite.writer import LOG_LIMIT_BYTES, PATIENCE_S, TIMEOUT_S, SqliteWriter, Synchronous
from analemma.catalog.engine.wakeups import FileWakeups, Wakeups
from analemma.errors import Unavailable

Result = TypeVar("Result")
MOST_IDLE = 16

# The driver looks for an adapter of every bytes and None that it binds, and makes and drops an error if there is none.
# One that gives back what it was given spares that; for whoever else uses the driver here nothing changes.
sqlite3.register_adapter(bytes, bytes)
sqlite3.register_adapter(type(None), {None: None}.get)


class SqliteEngine(Engine):
    """One database file, opened by one process.

    `synchronous="normal"` gives up durability against a power cut for about three times the commits per second; kill -9
    stays harmless. In memory nothing is flushed. A write that does not get its turn within `lock_timeout_s` is a
    Timeout, and so is one that waits for the same holder longer than `patience_s`; for a program that knows nothing of
    turns it waits no longer either.
    """

    sql = SQLITE
    has_one_writer = True

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
        self._types = ColumnTypes()
        self._patience_s = patience_s
        self._gate = threading.Lock()
        """Held while connections are opened or closed for good."""
        self._idle: list[SqliteTransaction] = []
        """Reading connections that nobody has. Both ends of a list are changed in one step, so it needs no lock."""
        self._readers: weakref.WeakSet[SqliteTransaction] = weakref.WeakSet()
        """All of them: one that an interrupt took from its thread is closed when nothing knows it any more."""
        self._refusal: Callable[[], Unavailable] | None = self._closed
        """What whoever uses it is told; None: it is open."""
        super().__init__()
        with self._gate:
            if _identify(self.path) in _LOST_FILES:
                raise lost_in_a_fork()
            try:
                self._writer = SqliteWriter(
                    self._connect,
                    self.path,
                    synchronous="off" if is_in_memory(self.path) else synchronous,
                    timeout_s=lock_timeout_s,
                    patience_s=patience_s,
                    log_limit_bytes=log_limit_bytes,
                )
            except BaseException:
                remove_from_memory(self.path)
                raise
            self._refusal = None

    def all(self, name: str, /, **parameters: Any) -> list[Row]:
        tx = self._take()
        try:
            return tx.all(name, **parameters)
        finally:
            self._give_back(tx)

    @contextmanager
    def snapshot(self, *, long: bool = False) -> Iterator[Transaction]:
        tx = self._take()
        try:
            tx.control("begin_read")
            yield tx
        finally:
            self._give_back(tx)

    def write(self, move: Callable[[Transaction], Result], /, *, durable: bool = False, alone: bool = False) -> Result:
        return self._present().write(move, durable=durable)

    def wakeups(self) -> Wakeups:
        return FileWakeups(self.path)

    def identity(self) -> tuple[str | None, str]:
        # A copy is another file. Not the device: that changes when the same disk is mounted again.
        return "sqlite", str(os.stat(self.path).st_ino)

    def vacuum(self) -> tuple[int, int]:
        before = self.value("database_bytes")
        self._present().vacuum()
        return before, self.value("database_bytes")

    def close(self) -> None:
        with self._gate:
            if self._refusal is not None:
                return
            # First, and it may refuse: inside a write nothing is closed.
            self._writer.close()
            self._refusal = self._closed
            self._close_idle()
            # Last: the connection that closes last copies the log back and removes it, and only this one may write.
            self._writer.let_go()
            remove_from_memory(self.path)

    def _connect(self, *controls: str, timeout_s: float | None = None) -> SqliteTransaction:
        """A connection on which these were done."""
        try:
            connection = sqlite3.connect(
                self.path,
                # The last resort: our own processes queue on the lock file, so only a stranger can block us.
                timeout=self._patience_s if timeout_s is None else timeout_s,
                isolation_level=None,  # we begin and commit ourselves
                check_same_thread=False,  # a connection moves between threads, never used by two at once
                cached_statements=512,
            )
        except sqlite3.Error as exc:
            raise translate(exc, self.path) from exc
        tx = SqliteTransaction(connection, self.statements, self.path, self._types)
        try:
            for name in controls:
                tx.control(name)
        except BaseException:
            connection.close()
            raise
        return tx

    def _present(self) -> SqliteWriter:
        if self._refusal is not None:
            raise self._refusal()
        return self._writer

    def _take(self) -> SqliteTransaction:
        """A connection to read with, for one thread; to be given back."""
        try:
            return self._idle.pop()
        except IndexError:
            pass
        with self._gate:
            if self._refusal is not None:
                raise self._refusal()
            tx = self._connect("refuse_writes")
            self._readers.add(tx)
            return tx

    def _give_back(self, tx: SqliteTransaction) -> None:
        """Keep it for the next, whatever state it is in."""
        connection = tx.connection
        if connection.in_transaction:
            try:
                connection.rollback()
            except sqlite3.Error:
                connection.close()
                return
        if len(self._idle) >= MOST_IDLE:
            connection.close()
            return
        self._idle.append(tx)
        if self._refusal is not None:
            self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().connection.close()

    def _closed(self) -> Unavailable:
        return Unavailable(f"the catalog {self.path} is closed", hint="open it again")

    def is_quiet(self) -> bool:
        if self._gate.locked() or self._refusal is not None:
            return not self._gate.locked()
        return not self._writer.is_busy and len(self._readers) == len(self._idle)

    def lose(self, *, quiet: bool) -> None:
        # SQLite has locks of its own that all connections share. Closing asks for the real locks, which the parent has,
        # so it leaves the log alone.
        changing, self._gate = self._gate.locked(), threading.Lock()
        if self._refusal is None:
            self._refusal = lost_in_a_fork
            connections = [self._writer.abandon(), *(tx.abandon() for tx in self._readers)]
            self._idle = []
            if quiet:
                for connection in connections:
                    connection.close()
            _KEPT.extend(connections)
        elif not changing:
            return
        file = _identify(self.path)
        if not quiet and file is not None:
            _LOST_FILES.add(file)


_KEPT: list[sqlite3.Connection] = []
_LOST_FILES: set[tuple[int, int]] = set()
"""What a parent was using when it forked this process. SQLite tells files by these numbers, and what it remembers of
the locks on one is copied by a fork: a connection of the child would take for held what is not, and the parent, as the
last one there, would remove the log under the child's commits."""


def _identify(path: str) -> tuple[int, int] | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino
