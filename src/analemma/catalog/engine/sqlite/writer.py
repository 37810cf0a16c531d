"""Who writes to a SQLite file, and when: threads share a connection and its commits, processes take turns.

A durable commit costs an fsync whatever it holds. So requests queue, and whoever gets the turn runs all that wait, in
savepoints of one transaction, and commits once. A lone caller gets it at once and never changes threads.

Any thread may be interrupted anywhere (Ctrl-C raises between two instructions). So nothing depends on being told: a
request knows the batch that took it along, and whoever gets the turn sees what became of that. Those who wait are woken
for speed only, and look for themselves if nobody does. Giving up the turn, and what goes with it, may be repeated when
an interrupt cut it short.

Between processes there is a queue in front of the file. SQLite's own busy timeout polls with growing pauses, so under
load some processes starve. Here whoever is next holds a turnstile, which keeps everybody else, and above all the
process that has just written, from getting in between.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from analemma.catalog.engine.db import Transaction
from analemma.catalog.engine.sqlite.errors import translate_commit
from analemma.errors import AnalemmaError, Internal, OutcomeUnknown, Timeout, Unavailable

if TYPE_CHECKING:
    from analemma.catalog.engine.sqlite.engine import SqliteTransaction

Result = TypeVar("Result")

MAX_BATCH = 64
"""Requests per transaction: more gain little throughput and make the first ones wait."""

LOG_LIMIT_BYTES = 256 << 20
"""A log beyond this means that readers keep ordinary checkpoints from resetting it: then writers wait for them."""

LOOK_AGAIN_S = 0.1
"""How often those who wait look whether it is their turn though nobody woke them."""

LOG_CHECK_EVERY = 16
"""Transactions between two looks at the size of the log."""

TIMEOUT_S = 60.0
"""So long a writer waits in all, while those before it take turns."""
PATIENCE_S = 5.0
"""So long a writer waits for one and the same holder, who may have been stopped."""
FIRST_PAUSE_S = 0.0001
LONGEST_PAUSE_S = 0.001
PAUSE_AT_THE_TURNSTILE_S = 0.002
CHECKPOINT_PATIENCE_S = 0.2
Synchronous = Literal["full", "normal", "off"]


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

    __slots__ = ("batch", "deadline", "error", "left", "move", "result", "thread", "woken")

    def __init__(self, timeout_s: float, move: Any = None) -> None:
        self.move = move
        """What whoever has the turn does for it; None: it wants the turn to itself."""
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
        connect: Callable[..., SqliteTransaction],
        database: str,
        *,
        synchronous: Synchronous,
        patience_s: float,
    ) -> None:
        """`connect` makes a connection on which the named statements are done, with patience of its own if it is given
        as `timeout_s`."""
        self._connect = connect
        self._synchronous = synchronous
        self._doubtful = False
        """The connection failed in a way that makes a new one wise."""
        self._turn = threading.RLock()
        """Not for its depth, but because it knows its thread: whoever does not have it may try to release it."""
        self._waiting: deque[_Request] = deque()
        self._leading: _Request | None = None
        """That of the thread whose turn it is."""
        self._begun = False
        self._log = f"{database}-wal"
        self._log_limit = LOG_LIMIT_BYTES
        self._until_log_check = LOG_CHECK_EVERY
        self._closed = False
        self._lock = FileLock(database, patience_s)
        self._tx = self._make()
        try:
            self._switch_to_wal(database, patience_s)
            # Not only when it is new: whoever made it may have been killed before this.
            sync(os.path.dirname(database))
        except BaseException:
            self.let_go()
            raise

    def write(self, move: Callable[[Transaction], Result], *, durable: bool) -> Result:
        """Run `move` in a transaction, perhaps together with others; return when it is as durable as all are or, with
        `durable`, on the disk."""
        request = _Request(TIMEOUT_S, move)
        self._in_turn(request, self._lead)
        if request.error is not None:
            raise request.error
        assert request.batch is not None
        request.batch.check()
        if durable and self._synchronous == "normal":
            # The commit is in the log, or the log was copied back, and flushed, since then.
            sync(self._log)
        result: Result = request.result
        return result

    def vacuum(self) -> None:
        """Write the file anew, without its free pages, while nobody writes to it."""

        def act(request: _Request) -> None:
            self._hold_file(request)
            self._connect("temporary_in_files", "vacuum", "truncate_log").connection.close()

        self._in_turn(_Request(TIMEOUT_S), act)

    def close(self) -> None:
        """Wait for whoever is writing, then refuse."""

        def act(_: _Request) -> None:
            self._closed = True

        self._in_turn(_Request(threading.TIMEOUT_MAX), act)

    def let_go(self) -> None:
        """Close what is open, once it is closed."""
        self._tx.connection.close()
        self._lock.close()

    @property
    def is_busy(self) -> bool:
        """Whether somebody is writing."""
        return self._leading is not None

    def abandon(self) -> sqlite3.Connection:
        """In a forked child: touch nothing that the parent's threads may have been at; the connection, to be kept."""
        self._closed = True
        self._lock.close()
        self._turn, self._waiting = threading.RLock(), deque()
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
        alone = request.move is None
        if not alone:
            self._waiting.append(request)
        # Whom nobody takes along, nobody wakes either.
        while not self._turn.acquire(alone, LOOK_AGAIN_S if alone else -1):
            left_s = request.deadline - time.monotonic()
            # guard: turn.timeout
            if left_s <= 0 and self._gives_up(request):
                raise Timeout(
                    "other threads of this process kept the catalog busy", hint="make their transactions shorter"
                )
            if alone:
                continue
            request.woken.acquire(timeout=min(left_s, LOOK_AGAIN_S) if left_s > 0 else LOOK_AGAIN_S)
            batch = request.batch
            # In line it is still to be run, whoever began to take it along; out of it, it is known who did.
            # guard: turn.batch
            if batch is not None and batch.is_over and request not in self._waiting and request.batch is batch:
                return
        self._leading = request

    def _gives_up(self, request: _Request) -> bool:
        """Leave the line; False if somebody has taken it along: to leave then would leave its outcome unknown."""
        try:
            self._waiting.remove(request)
        except ValueError:
            return request.move is None
        return True

    def _leave(self, request: _Request) -> None:
        """Give up the transaction, the place in line and the turn, as far as it has them. May be repeated."""
        if request.left:
            return
        if self._leading is request:
            self._end()
            self._leading = None
        if self._waiting:
            self._gives_up(request)
        try:
            self._turn.release()
        except RuntimeError:
            pass  # It is another's, or nobody's.
        else:
            for first in tuple(self._waiting)[:1]:
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
            before, self._tx = self._tx, self._make()
            before.connection.close()
            self._doubtful = False

    def _commit(self, batch: _Batch) -> None:
        batch.phase = "committing"
        try:
            self._tx.control("commit_transaction", translate_commit)
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
            self._connect("truncate_log", timeout_s=CHECKPOINT_PATIENCE_S).connection.close()
            size = os.stat(self._log).st_size
        except (OSError, AnalemmaError):
            # The commit before this is durable and must not be reported as failed; a later one tries again.
            return
        self._log_limit = max(LOG_LIMIT_BYTES, size + size // 4)

    def _make(self) -> SqliteTransaction:
        """A connection to write on."""
        return self._connect("probe", f"synchronous_{self._synchronous}", "prepare_to_write")

    def _switch_to_wal(self, database: str, patience_s: float) -> None:
        """Have the file keep a write-ahead log."""
        if os.path.getsize(database) > 0:
            # In that mode already, as a rule, and then nothing is written: no need to wait for whoever is writing.
            with suppress(Unavailable):
                self._tx.control("use_wal")
                return
        # Several processes may create the file at the same moment, and changing the mode does not wait while others so
        # much as look at it.
        self._lock.acquire(time.monotonic() + TIMEOUT_S)
        try:
            deadline = time.monotonic() + patience_s
            while True:
                try:
                    self._tx.control("use_wal")
                    return
                except Unavailable:
                    if time.monotonic() >= deadline:
                        raise
                time.sleep(0.002)
        finally:
            self._lock.release()


class FileLock:
    """An exclusive lock between processes; gone when its holder is, however it died.

    It polls, because a blocking flock cannot be given a deadline: a holder that was stopped would stop everyone. Only
    the process in the turnstile polls the lock itself, so it can afford to look often. Whoever gets it writes its name
    and turn into the file: so those who wait know whom they wait for, and whether the queue moves.
    """

    _fd = _turnstile = -1

    def __init__(self, database: str, patience_s: float) -> None:
        self.path = f"{database}.lock"
        self._patience_s = patience_s
        self._turns = 0
        self._fd = _open(self.path)
        self._turnstile = _open(f"{database}.turn.lock")

    def __del__(self) -> None:
        self.close()

    def acquire(self, deadline: float) -> None:
        """Wait for our turn, until `deadline` on the monotonic clock. Interrupted, it may be held: release it."""
        try:
            self._poll(self._turnstile, deadline, PAUSE_AT_THE_TURNSTILE_S)
            self._poll(self._fd, deadline, LONGEST_PAUSE_S)
            self._turns += 1
            with suppress(OSError):  # a full disk: then the others do not know
                os.pwrite(self._fd, b"%10d %20d\n" % (os.getpid(), self._turns), 0)
        finally:
            self._unlock(self._turnstile)

    def release(self) -> None:
        """Let the next process in; nothing happens if it is not held."""
        self._unlock(self._fd)

    def close(self) -> None:
        """Give up the descriptors. In a forked child this leaves the parent's lock as it is."""
        descriptors = self._fd, self._turnstile
        self._fd = self._turnstile = -1
        for fd in descriptors:
            if fd >= 0:
                os.close(fd)

    def _poll(self, fd: int, deadline: float, longest_pause_s: float) -> None:
        pause_s = FIRST_PAUSE_S
        holder, since = None, 0.0
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                pass
            except OSError as exc:
                raise Unavailable(
                    f"cannot lock {self.path}: {exc.strerror}", hint="keep the store on a local file system"
                ) from exc
            now = time.monotonic()
            if holder is None:
                holder, since = self._holder(), now
            if now >= min(deadline, since + self._patience_s):
                found = self._holder()
                if now >= deadline or found == holder:
                    raise _kept(self.path, found, now - since)
                holder, since = found, now
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, longest_pause_s)

    def _holder(self) -> bytes:
        """Process and turn of whoever has it, or had it last."""
        try:
            return os.pread(self._fd, 32, 0)
        except OSError:
            return b""

    def _unlock(self, fd: int) -> None:
        if fd >= 0:
            fcntl.flock(fd, fcntl.LOCK_UN)


def _kept(path: str, holder: bytes, waited_s: float) -> Timeout:
    pid = holder.split()[0].decode() if holder.split() and holder.split()[0].isdigit() else None
    who = "another process" if pid is None else f"process {pid}"
    find = f"find it with `fuser {path}`" if pid is None else f"look at it with `ps {pid}`"
    return Timeout(
        f"{who} has kept {path} locked for {waited_s:.1f} s",
        hint=f"{find}; continue or end it if it was stopped, or raise sqlite_lock_timeout_s if it is only slow",
    )


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as exc:
        raise Unavailable(
            f"cannot open the lock file {path}: {exc.strerror}",
            hint="check that the directory exists and that this user may write in it",
        ) from exc


def sync(path: str) -> None:
    """Make everything durable that was written to a file, whoever wrote it, or the names in a directory: fsync of a new
    file does not cover its own name. What is gone has nothing to lose."""
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return
    except OSError as exc:
        raise Unavailable(
            f"cannot flush {path}: {exc.strerror}", hint="let this user read it, and check the disk"
        ) from exc
