"""The queue of writing processes in front of one SQLite file.

SQLite's own busy timeout polls with growing pauses, so under load some processes starve. Here whoever is next holds a
turnstile, which keeps everybody else, and above all the process that has just written, from getting in between.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress

from analemma.errors import Timeout, Unavailable

TIMEOUT_S = 60.0
"""So long a writer waits in all, while those before it take turns."""
PATIENCE_S = 5.0
"""So long a writer waits for one and the same holder, who may have been stopped."""
FIRST_PAUSE_S = 0.0001
LONGEST_PAUSE_S = 0.001
PAUSE_AT_THE_TURNSTILE_S = 0.002


class FileLock:
    """An exclusive lock between processes; gone when its holder is, however it died.

    It polls, because a blocking flock cannot be given a deadline: a holder that was stopped would stop everyone. Only
    the process in the turnstile polls the lock itself, so it can afford to look often. Whoever gets it writes its name
    and turn into the file: so those who wait know whom they wait for, and whether the queue moves.
    """

    _fd = _turnstile = -1

    def __init__(self, database: str, *, timeout_s: float = TIMEOUT_S, patience_s: float = PATIENCE_S) -> None:
        self.path = f"{database}.lock"
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._turns = 0
        self._fd = _open(self.path)
        self._turnstile = _open(f"{database}.turn.lock")

    def __del__(self) -> None:
        self.close()

    def acquire(self, deadline: float | None = None) -> None:
        """Wait for our turn, until `deadline` on the monotonic clock. Interrupted, it may be held: release it."""
        if deadline is None:
            deadline = time.monotonic() + self._timeout_s
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
