"""One writer connection shared by all threads: whoever has the turn commits for all who wait for it.

A durable commit costs an fsync whatever it holds. So requests queue, and whoever gets the turn runs all that wait, in
savepoints of one transaction, and commits once. A lone caller gets it at once and never changes threads.

Any thread may be interrupted anywhere (Ctrl-C raises between two instructions). So nothing depends on being told: a
request knows the batch that took it along, and whoever gets the turn sees what became of that. Those who wait are woken
for speed only, and look for themselves if nobody does. Giving up the turn, and what goes with it, may be repeated when
an interrupt cut it short.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from analemma.catalog.engine.db import Transaction
from analemma.catalog.engine.sqlite.file_lock import FileLock
from analemma.catalog.engine.sqlite.transaction import SqliteTransaction
from analemma.errors import AnalemmaError, Internal, OutcomeUnknown, Timeout, Unavailable

Result = TypeVar("Result")

MAX_BATCH = 64
"""Requests per transaction: more gain little throughput and make the first ones wait."""

LOG_LIMIT_BYTES = 256 << 20
"""A log beyond this means that readers keep ordinary checkpoints from resetting it: then writers wait for them."""

LOOK_AGAIN_S = 0.1
"""How often those who wait look whether it is their turn though nobody woke them."""

LOG_CHECK_EVERY = 16
"""Transactions between two looks at the size of the log."""


class _Batch:
    """What became of one transaction, for all whose requests it ran."""

    __slots__ = ("failure", "is_over", "phase", "requests")

    def __init__(self) -> None:
        self.requests: list[_Request] = []
        self.is_over = False
        self.phase: Literal["running", "committing", "stored"] = "running"
        self.failure: Exception | None = None

    def check(self) -> None:
        """Raise unless they are stored."""
        if self.phase == "stored":
            return
        if self.failure is not None:
            raise self.failure
        if self.phase == "committing":
            raise OutcomeUnknown("the commit was interrupted", hint="read back before trying again")
        raise Unavailable("the transaction was interrupted", hint="nothing was changed; try again")


class _Request:
    """One thread's wish to write, and what came of it."""

    __slots__ = ("batch", "deadline", "error", "left", "line", "move", "result", "thread", "woken")

    def __init__(self, line: deque[_Request], move: Callable[[Any], Any], timeout_s: float) -> None:
        self.line = line
        """Where it waits: with those whom whoever has the turn takes along, or with those who want it to themselves."""
        self.move = move
        self.thread = threading.get_ident()
        self.deadline = time.monotonic() + timeout_s
        self.batch: _Batch | None = None
        """Of whoever took it along last. It counts once the request is not in line: an interrupt may come between."""
        self.result: Any = None
        self.error: Exception | None = None
        self.left = False
        self.woken = threading.Lock()
        self.woken.acquire()

    def wake(self) -> None:
        """Have it look for itself."""
        try:
            self.woken.release()
        except RuntimeError:
            pass  # It is about to look.


class SqliteWriter:
    """The only way to write to one SQLite database from this process."""

    def __init__(
        self,
        tx: SqliteTransaction,
        *,
        lock: FileLock,
        renew: Callable[[], SqliteTransaction],
        truncate_log: Callable[[], None],
        timeout_s: float,
        log_limit_bytes: int = LOG_LIMIT_BYTES,
    ) -> None:
        self._tx = tx
        self._lock = lock
        self._renew = renew
        self._doubtful = False
        """The connection failed in a way that makes a new one wise."""
        self._timeout_s = timeout_s
        self._turn = threading.RLock()
        """Not for its depth, but because it knows its thread: whoever does not have it may try to release it."""
        self._waiting: deque[_Request] = deque()
        self._waiting_alone: deque[_Request] = deque()
        self._leading: _Request | None = None
        """That of the thread whose turn it is."""
        self._begun = False
        self._log = f"{tx.database}-wal"
        self._truncate_log = truncate_log
        self._log_limit = self._least_log_limit = log_limit_bytes
        self._until_log_check = LOG_CHECK_EVERY
        self._closed = False

    def write(self, move: Callable[[Transaction], Result]) -> Result:
        """Run `move` in a transaction, perhaps together with others; return when it is durable."""
        request = _Request(self._waiting, move, self._timeout_s)
        self._in_turn(request, self._lead)
        if request.error is not None:
            raise request.error
        assert request.batch is not None
        request.batch.check()
        result: Result = request.result
        return result

    def outside(self, work: Callable[[SqliteTransaction], None]) -> None:
        """Do something outside of a transaction while nobody writes."""

        def act(request: _Request) -> None:
            self._hold_file(request)
            work(self._tx)

        self._in_turn(_Request(self._waiting_alone, work, self._timeout_s), act)

    def close(self) -> None:
        """Wait for whoever is writing, then refuse."""

        def act(_: _Request) -> None:
            self._closed = True

        self._in_turn(_Request(self._waiting_alone, act, threading.TIMEOUT_MAX), act)

    @property
    def connection(self) -> sqlite3.Connection:
        """That on which it writes."""
        return self._tx.connection

    @property
    def is_busy(self) -> bool:
        """Whether somebody is writing."""
        return self._leading is not None

    def abandon(self) -> sqlite3.Connection:
        """In a forked child: touch nothing that the parent's threads may have been at; the connection, to be kept."""
        self._closed = True
        self._turn, self._waiting, self._waiting_alone = threading.RLock(), deque(), deque()
        self._leading, self._begun = None, False
        return self._tx.abandon()

    def _in_turn(self, request: _Request, act: Callable[[_Request], None]) -> None:
        try:
            self._await_turn(request)
            act(request)
        finally:
            # Twice: an interrupt may hit the first, and a turn that is not given up stops every writer.
            try:
                self._leave(request)
            finally:
                self._leave(request)

    def _await_turn(self, request: _Request) -> None:
        """Return with the turn, or once the batch that took it along is over. Whatever happens, `_leave` follows."""
        leading = self._leading
        if leading is not None and leading.thread == request.thread:
            raise Internal("a write was started inside another write", hint="use the transaction it was given")
        request.line.append(request)
        while not self._turn.acquire(blocking=False):
            left_s = request.deadline - time.monotonic()
            # guard: turn.timeout
            if left_s <= 0 and self._gives_up(request):
                raise Timeout(
                    "other threads of this process kept the catalog busy", hint="make their transactions shorter"
                )
            request.woken.acquire(timeout=min(left_s, LOOK_AGAIN_S) if left_s > 0 else LOOK_AGAIN_S)
            batch = request.batch
            # In line it is still to be run, whoever began to take it along; out of it, it is known who did.
            # guard: turn.batch
            if batch is not None and batch.is_over and request not in request.line and request.batch is batch:
                return
        self._leading = request

    def _gives_up(self, request: _Request) -> bool:
        """Leave the line; False if somebody has taken it along: to leave then would leave its outcome unknown."""
        try:
            request.line.remove(request)
        except ValueError:
            return False
        return True

    def _leave(self, request: _Request) -> None:
        """Give up the transaction, the place in line and the turn, as far as it has them. May be repeated."""
        if request.left:
            return
        if self._leading is request:
            self._end()
            self._leading = None
        if request.line:
            self._gives_up(request)
        try:
            self._turn.release()
        except RuntimeError:
            pass  # It is another's, or nobody's.
        else:
            for line in (self._waiting_alone, self._waiting):
                for first in tuple(line)[:1]:
                    first.wake()
        request.left = True

    def _lead(self, own: _Request) -> None:
        """With the turn, run what waits, and commit, until that was among it."""
        while self._leading is own and own in self._waiting:
            batch = _Batch()
            try:
                self._hold_file(own)
                self._tx.control("begin_write")
                try:
                    if self._run(batch):
                        self._commit(batch)
                except Exception as exc:
                    # Not a request's own failure but the transaction's: nobody's work is stored.
                    batch.failure = exc
            finally:
                self._end()
                batch.is_over = True
                for request in batch.requests:
                    if request is not own:
                        request.wake()

    def _run(self, batch: _Batch) -> bool:
        """Run the requests that wait; False if there is nothing to commit."""
        tx = self._tx
        ran = 0
        while self._waiting and ran < MAX_BATCH:
            try:
                request = self._waiting[0]
                request.batch = batch
                self._waiting.remove(request)
            except (IndexError, ValueError):
                continue  # It gave up at this moment.
            batch.requests.append(request)
            # The first needs no savepoint: if it fails, the transaction holds nothing else.
            if ran:
                tx.control("open_savepoint")
            try:
                request.result = request.move(tx)
            except Exception as exc:
                if ran and not tx.connection.in_transaction:
                    # Disk full and the like make SQLite roll everything back: the whole batch is lost.
                    raise
                request.error = exc
                if not ran:
                    return False
                tx.control("drop_savepoint")
            if ran:
                tx.control("keep_savepoint")
            ran += 1
        return ran > 0

    def _hold_file(self, request: _Request) -> None:
        """Keep other processes from writing. Whatever it raises, `_end` must follow."""
        if self._closed:
            raise Unavailable(f"the catalog {self._tx.database} is closed", hint="open it again")
        self._begun = True
        self._lock.acquire(request.deadline)
        if self._doubtful:
            before, self._tx = self._tx, self._renew()
            before.connection.close()
            self._doubtful = False

    def _commit(self, batch: _Batch) -> None:
        batch.phase = "committing"
        try:
            self._tx.commit()
        except BaseException as exc:
            self._doubtful = self._doubtful or isinstance(exc, OutcomeUnknown)
            if not isinstance(exc, Exception):
                # Interrupted. What the others are told depends on whether SQLite was done before that.
                if self._tx.connection.in_transaction:
                    batch.phase = "running"
                elif not isinstance(exc.__context__, (sqlite3.Error, AnalemmaError)):
                    batch.phase = "stored"
            raise
        batch.phase = "stored"

    def _end(self) -> None:
        """Leave no transaction open (a failed COMMIT and an interrupted BEGIN do), and let other processes in. May be
        repeated."""
        if not self._begun:
            return
        try:
            if self._tx.connection.in_transaction:
                try:
                    self._tx.control("rollback_transaction")
                except AnalemmaError:
                    self._doubtful = True
            self._bound_log()
        finally:
            self._lock.release()
        self._begun = False

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
