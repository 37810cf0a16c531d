"""One writer connection shared by all threads: whoever comes first commits for those who came meanwhile.

A durable commit costs an fsync whatever it holds. So requests queue, and the first in the queue leads: it runs every
waiting request in a savepoint of one transaction, commits once, and hands out the results. A lone caller leads itself
and never changes threads.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from analemma.catalog.engine import Transaction
from analemma.catalog.file_lock import FileLock
from analemma.catalog.sqlite_transaction import SqliteTransaction
from analemma.errors import AnalemmaError, Internal, Unavailable

Result = TypeVar("Result")

MAX_BATCH = 64
"""Requests per transaction: more gain little throughput and make the first ones wait."""

LOG_LIMIT_BYTES = 256 << 20
"""A log beyond this means that readers keep ordinary checkpoints from resetting it: then writers wait for them."""

LOG_CHECK_EVERY = 16
"""Transactions between two looks at the size of the log."""


class _Request:
    __slots__ = ("error", "leads", "move", "result", "woken")

    def __init__(self, move: Callable[[Transaction], Any] | None) -> None:
        self.move = move
        """None: a block that wants the transaction to itself and runs on its own thread."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.leads = False
        self.woken = threading.Lock()
        self.woken.acquire()


class SqliteWriter:
    """The only way to write to one SQLite database from this process."""

    def __init__(
        self,
        tx: SqliteTransaction,
        *,
        database: str,
        lock: FileLock | None,
        mutex: threading.RLock | None,
        truncate_log: Callable[[], None],
        log_limit_bytes: int = LOG_LIMIT_BYTES,
    ) -> None:
        self._tx = tx
        self._database = database
        self._lock = lock
        self._mutex = mutex
        """Set when readers share the connection (in-memory databases): they must not see a transaction in progress."""
        self._gate = threading.Lock()
        self._queue: deque[_Request] = deque()
        self._led = False
        self._leader: int | None = None
        self._log = f"{database}-wal"
        self._truncate_log = truncate_log
        self._log_limit = self._least_log_limit = log_limit_bytes
        self._until_log_check = LOG_CHECK_EVERY
        self._closed = False

    def write(self, move: Callable[[Transaction], Result]) -> Result:
        """Run `move` in a transaction, perhaps together with others; return when it is durable."""
        request = _Request(move)
        self._await_turn(request)
        if request.leads:
            try:
                self._lead(request)
            finally:
                self._hand_over()
        if request.error is not None:
            raise request.error
        result: Result = request.result
        return result

    @contextmanager
    def alone(self) -> Iterator[Transaction]:
        """A transaction that shares its commit with nobody."""
        request = _Request(None)
        self._await_turn(request)
        try:
            self._begin()
            try:
                yield self._tx
            except BaseException:
                self._roll_back()
                raise
            else:
                self._commit()
            finally:
                self._end()
        finally:
            self._hand_over()

    def close(self) -> None:
        """Wait for whoever is writing, then refuse."""
        request = _Request(None)
        self._await_turn(request)
        self._closed = True
        self._hand_over()

    def _await_turn(self, request: _Request) -> None:
        if self._leader == threading.get_ident():
            raise Internal("a write was started inside another write", hint="use the transaction it was given")
        with self._gate:
            if self._led:
                self._queue.append(request)
            else:
                self._led = request.leads = True
        if not request.leads:
            request.woken.acquire()
        if request.leads:
            self._leader = threading.get_ident()

    def _hand_over(self) -> None:
        self._leader = None
        with self._gate:
            if not self._queue:
                self._led = False
                return
            successor = self._queue.popleft()
            successor.leads = True
        successor.woken.release()

    def _next_in_batch(self) -> _Request | None:
        with self._gate:
            if self._queue and self._queue[0].move is not None:
                return self._queue.popleft()
        return None

    def _lead(self, own: _Request) -> None:
        """Run our own request and those that wait behind it, and commit once."""
        batch = [own]
        try:
            self._begin()
            try:
                self._run_batch(batch)
            finally:
                self._end()
        except Exception as exc:
            # Not a request's own failure but the transaction's: nobody's work is stored.
            for request in batch:
                request.error = exc
        finally:
            for request in batch[1:]:
                request.woken.release()

    def _run_batch(self, batch: list[_Request]) -> None:
        own = batch[0]
        try:
            companion = self._next_in_batch()
            if companion is None:
                # Alone so far: without a savepoint, one failure rolls back the transaction, which holds nothing else.
                assert own.move is not None
                try:
                    own.result = own.move(self._tx)
                except Exception as exc:
                    own.error = exc
                    self._roll_back()
                    return
            else:
                self._run_in_savepoint(own)
            while companion is not None or (companion := self._next_in_batch()) is not None:
                batch.append(companion)
                self._run_in_savepoint(companion)
                companion = None
                if len(batch) >= MAX_BATCH:
                    break
            self._commit()
        except Exception:
            self._roll_back()
            raise
        except BaseException:
            # This thread was interrupted. The others learn what became of the transaction, not of the interruption;
            # with none open any more, it was committed.
            if self._tx.connection.in_transaction:
                self._roll_back()
                lost = Unavailable("the transaction was interrupted", hint="nothing was changed; try again")
                for request in batch[1:]:
                    request.error = lost
            raise

    def _run_in_savepoint(self, request: _Request) -> None:
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

    def _begin(self) -> None:
        if self._closed:
            raise Unavailable(f"the catalog {self._database} is closed", hint="open it again")
        if self._mutex is not None:
            self._mutex.acquire()
        if self._lock is not None:
            self._lock.acquire()
        try:
            self._tx.control("begin_write")
        except BaseException:
            self._end()
            raise

    def _commit(self) -> None:
        self._tx.control("commit_transaction")

    def _roll_back(self) -> None:
        if self._tx.connection.in_transaction:
            self._tx.control("rollback_transaction")

    def _end(self) -> None:
        try:
            if self._lock is not None:
                self._bound_log()
        finally:
            if self._lock is not None:
                self._lock.release()
            if self._mutex is not None:
                self._mutex.release()

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
