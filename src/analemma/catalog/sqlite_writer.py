"""One writer connection shared by all threads: whoever comes first commits for those who came meanwhile.

A durable commit costs an fsync whatever it holds. So requests queue, and the first in the queue leads: it runs every
waiting request in a savepoint of one transaction, commits once, and hands out the results. A lone caller leads itself
and never changes threads.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from analemma.catalog.engine import Transaction
from analemma.catalog.file_lock import FileLock
from analemma.catalog.sqlite_queue import Batch, Request, WriteQueue
from analemma.catalog.sqlite_transaction import SqliteTransaction
from analemma.errors import AnalemmaError, OutcomeUnknown, Unavailable

Result = TypeVar("Result")

MAX_BATCH = 64
"""Requests per transaction: more gain little throughput and make the first ones wait."""

LOG_LIMIT_BYTES = 256 << 20
"""A log beyond this means that readers keep ordinary checkpoints from resetting it: then writers wait for them."""

FULL = 2
"""The level at which every commit is flushed."""

LOG_CHECK_EVERY = 16
"""Transactions between two looks at the size of the log."""


class SqliteWriter:
    """The only way to write to one SQLite database from this process."""

    def __init__(
        self,
        tx: SqliteTransaction,
        *,
        database: str,
        lock: FileLock,
        renew: Callable[[], SqliteTransaction],
        truncate_log: Callable[[], None],
        timeout_s: float,
        flushes: bool = False,
        log_limit_bytes: int = LOG_LIMIT_BYTES,
    ) -> None:
        """`flushes`: connections come so that every commit is durable."""
        self._tx = tx
        self._database = database
        self._lock = lock
        self._renew = renew
        self._doubtful = False
        """The connection failed in a way that makes a new one wise."""
        self._timeout_s = timeout_s
        self._flushes = self._flushes_now = flushes
        """What every commit should do, and what the connection at hand does."""
        self._queue = WriteQueue()
        self._log = f"{database}-wal"
        self._truncate_log = truncate_log
        self._log_limit = self._least_log_limit = log_limit_bytes
        self._until_log_check = LOG_CHECK_EVERY
        self._closed = False

    def write(self, move: Callable[[Transaction], Result], *, lazy: bool = False) -> Result:
        """Run `move` in a transaction, perhaps together with others; return when it is durable or, if it is `lazy`,
        perhaps before."""
        request = Request(move, self._timeout_s, lazy=lazy)
        try:
            self._queue.await_turn(request)
            if not request.done:
                self._lead(request)
        finally:
            # Twice, here and below: an interrupt may hit the first, and a turn that is not given up stops every writer.
            try:
                self._queue.leave(request)
            finally:
                self._queue.leave(request)
        if request.error is not None:
            raise request.error
        result: Result = request.result
        return result

    @contextmanager
    def alone(self) -> Iterator[Transaction]:
        """A transaction that shares its commit with nobody."""
        request = Request(None, self._timeout_s)
        try:
            self._queue.await_turn(request)
            try:
                self._begin(request)
                yield self._tx
                self._commit()
            finally:
                self._end()
        finally:
            try:
                self._queue.leave(request)
            finally:
                self._queue.leave(request)

    def close(self) -> None:
        """Wait for whoever is writing, then refuse."""
        request = Request(None, None)
        try:
            self._queue.await_turn(request)
            self._closed = True
        finally:
            try:
                self._queue.leave(request)
            finally:
                self._queue.leave(request)

    @property
    def is_busy(self) -> bool:
        """Whether somebody is writing."""
        return self._queue.is_busy

    def abandon(self) -> sqlite3.Connection:
        """In a forked child: touch nothing that the parent's threads may have been at; the connection, to be kept."""
        self._closed = True
        self._queue = WriteQueue()
        return self._tx.abandon()

    def _lead(self, own: Request) -> None:
        """Run our own request and those that wait behind it, and commit once."""
        batch = Batch(own)
        try:
            try:
                self._begin(own)
                self._run(batch)
            finally:
                self._end()
        except Exception as exc:
            # Not a request's own failure but the transaction's: nobody's work is stored.
            batch.failure = exc
        finally:
            try:
                self._queue.answer(batch)
            finally:
                self._queue.answer(batch)

    def _run(self, batch: Batch) -> None:
        own, requests = batch.requests[0], batch.requests
        # Whoever came along with a lazy one would not be durable either.
        shared = not own.lazy
        if shared and self._queue.join(batch):
            self._run_in_savepoint(own)
        else:
            # Alone so far: without a savepoint, one failure rolls back the transaction, which holds nothing else.
            assert own.move is not None
            try:
                own.result = own.move(self._tx)
            except Exception as exc:
                own.error = exc
                return
        ran = 1
        while ran < len(requests) or (shared and ran < MAX_BATCH and self._queue.join(batch)):
            self._run_in_savepoint(requests[ran])
            ran += 1
        batch.phase = "committing"
        try:
            self._commit()
        except Exception:
            raise
        except BaseException as exc:
            # Interrupted. What the others are told depends on whether SQLite was done before that.
            if self._tx.connection.in_transaction:
                batch.phase = "running"
            elif not isinstance(exc.__context__, (sqlite3.Error, AnalemmaError)):
                batch.phase = "committed"
            raise
        batch.phase = "committed"

    def _run_in_savepoint(self, request: Request) -> None:
        tx = self._tx
        assert request.move is not None
        tx.control("open_savepoint")
        try:
            request.result = request.move(tx)
        except Exception as exc:
            if not tx.connection.in_transaction:
                # Disk full and the like make SQLite roll everything back: the whole batch is lost.
                raise
            request.error = exc
            tx.control("drop_savepoint")
        tx.control("keep_savepoint")

    def _begin(self, request: Request) -> None:
        """Whatever it raises, `_end` must follow."""
        if self._closed:
            raise Unavailable(f"the catalog {self._database} is closed", hint="open it again")
        self._lock.acquire(request.deadline)
        if self._doubtful:
            self._tx = self._renew()
            self._doubtful = False
            self._flushes_now = self._flushes
        self._roll_back()
        if self._flushes:
            self._flush_commits(not request.lazy)
        self._tx.control("begin_write")

    def _flush_commits(self, wanted: bool) -> None:
        """Have commits wait for the disk from now on, or not. Between two transactions."""
        if wanted and not self._flushes_now:
            self._tx.pragma("synchronous_full")
            if self._tx.one("synchronous_level") != (FULL,):
                self._doubtful = True
                raise Unavailable(f"{self._database} cannot be made durable again", hint="try again")
            self._flushes_now = True
        elif self._flushes_now and not wanted:
            # First, should this be interrupted: then the next one makes sure.
            self._flushes_now = False
            self._tx.pragma("synchronous_normal")

    def _commit(self) -> None:
        try:
            self._tx.commit()
        except OutcomeUnknown:
            self._doubtful = True
            raise

    def _roll_back(self) -> None:
        """End whatever is still open: a failed COMMIT and an interrupted BEGIN leave a transaction behind."""
        if self._tx.connection.in_transaction:
            try:
                self._tx.control("rollback_transaction")
            except AnalemmaError:
                self._doubtful = True

    def _end(self) -> None:
        try:
            if not self._closed:
                self._roll_back()
                self._bound_log()
        finally:
            self._lock.release()

    def _bound_log(self) -> None:
        """Empty a log that readers kept growing; wait for them a little, and ask again only after it grew further."""
        self._until_log_check -= 1
        if self._until_log_check > 0:
            return
        self._until_log_check = LOG_CHECK_EVERY
        try:
            if os.stat(self._log).st_size <= self._log_limit:
                return
            self._truncate_log()
            size = os.stat(self._log).st_size
        except (OSError, AnalemmaError):
            # The commit before this is durable and must not be reported as failed; a later one tries again.
            return
        self._log_limit = max(self._least_log_limit, size + size // 4)
