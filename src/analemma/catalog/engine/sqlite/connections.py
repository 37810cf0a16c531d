"""Makes the connections to one SQLite database, each set up for its purpose."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import Counter
from typing import Literal

from analemma.catalog.engine.sql import statements
from analemma.catalog.engine.sqlite.errors import translate
from analemma.catalog.engine.sqlite.file_lock import FileLock
from analemma.catalog.engine.sqlite.transaction import SqliteTransaction
from analemma.catalog.engine.sqlite.types import ColumnTypes
from analemma.errors import Unavailable

Synchronous = Literal["full", "normal", "off"]
CHECKPOINT_PATIENCE_S = 0.2
_WRITER_PRAGMAS = (
    "enforce_foreign_keys",
    "checkpoint_every",
    "limit_idle_log",
    "temporary_in_memory",
    "cache_for_writing",
    "leave_free_pages_alone",
)

# The driver looks for an adapter of every bytes and None that it binds, and makes and drops an error if there is none.
# One that gives back what it was given spares that; for whoever else uses the driver here nothing changes.
sqlite3.register_adapter(bytes, bytes)
sqlite3.register_adapter(type(None), {None: None}.get)


class SqliteConnector:
    """Knows where the database is and how it is to be used."""

    def __init__(self, path: str, counts: Counter[str], *, synchronous: Synchronous, busy_timeout_s: float) -> None:
        self._path = path
        self._counts = counts
        self._sql = statements("sqlite")
        self._types = ColumnTypes(self._sql)
        self._synchronous = synchronous
        # The last resort: our own processes queue on the lock file, so only a stranger's transaction can block us.
        self._busy_timeout_s = busy_timeout_s

    def writer(self, lock: FileLock | None) -> SqliteTransaction:
        """The connection that writes. With `lock`, the file is first made to keep a write-ahead log if it does not."""
        tx = self.on(self._connect(self._busy_timeout_s))
        try:
            tx.control("probe")
            if lock is not None:
                self._switch_to_wal(tx, lock)
            tx.control(f"synchronous_{self._synchronous}")
            for name in _WRITER_PRAGMAS:
                tx.control(name)
        except BaseException:
            tx.connection.close()
            raise
        return tx

    def reader(self) -> SqliteTransaction:
        """A connection that cannot write."""
        tx = self.on(self._connect(self._busy_timeout_s))
        try:
            tx.control("refuse_writes")
        except BaseException:
            tx.connection.close()
            raise
        return tx

    def truncate_log(self) -> None:
        """Empty the log, on a connection of its own that waits only a little."""
        tx = self.on(self._connect(CHECKPOINT_PATIENCE_S))
        try:
            tx.control("truncate_log")
        finally:
            tx.connection.close()

    def on(self, connection: sqlite3.Connection) -> SqliteTransaction:
        """Our statements on a connection."""
        return SqliteTransaction(connection, self._sql, self._counts, self._path, self._types)

    def _switch_to_wal(self, tx: SqliteTransaction, lock: FileLock) -> None:
        if _size(self._path) > 0:
            # In that mode already, as a rule, and then nothing is written: no need to wait for whoever is writing.
            try:
                tx.control("use_wal")
                return
            except Unavailable:
                pass
        # Several processes may create the file at the same moment, and changing the mode does not wait while others so
        # much as look at it.
        lock.acquire()
        try:
            deadline = time.monotonic() + self._busy_timeout_s
            while True:
                try:
                    tx.control("use_wal")
                    return
                except Unavailable:
                    if time.monotonic() >= deadline:
                        raise
                time.sleep(0.002)
        finally:
            lock.release()

    def _connect(self, timeout_s: float) -> sqlite3.Connection:
        try:
            return sqlite3.connect(
                self._path,
                timeout=timeout_s,
                isolation_level=None,  # we begin and commit ourselves
                check_same_thread=False,  # a connection moves between threads, never used by two at once
                cached_statements=512,
            )
        except sqlite3.Error as exc:
            raise translate(exc, self._path) from exc


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def sync_file(path: str) -> None:
    """Make everything that was written to a file durable, whoever wrote it; one that is gone has nothing to lose."""
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return
    except OSError as exc:
        raise Unavailable(f"cannot flush {path}: {exc.strerror}", hint="check the disk") from exc


def sync_directory(path: str) -> None:
    """Make the names in a directory durable: fsync of a new file does not cover its own name."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as exc:
        raise Unavailable(
            f"cannot flush the directory {path}: {exc.strerror}", hint="let this user read it, and check the disk"
        ) from exc
