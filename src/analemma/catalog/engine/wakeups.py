"""Telling workers that something may be due, so that they need not ask all the time.

A wake-up is a courtesy: one that is lost costs a poll interval. Inside a process it is an event. Between processes on
PostgreSQL it is a notification, sent after the commit, on a connection of its own and once for all that came meanwhile;
on SQLite, workers watch the log that every commit of every process is written to."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from analemma.clock import Ticker

WATCH_EVERY_S = 0.02
RECENT_S = 0.05
"""A file's time has a granularity: one that was changed this recently may have been changed again."""
QUIET_S = 0.005
"""At least this long between two notifications of a process."""
LISTEN_S = 0.2
PATIENCE_S = 2.0
"""So long whoever stops waits for what is being sent, or heard."""
Connect = Callable[[], Any]
"""Makes a transaction on a connection that nobody else uses."""


class Wakeups:
    """What producers call and workers wait for; this one reaches the threads of one process."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def signal(self) -> None:
        """Something was committed that a worker should look at. Call it after the commit, never inside it."""
        for listener in list(self._listeners):
            listener.wake()

    def listen(self) -> Listener:
        """Begin to hear wake-ups; close it in the end."""
        listener = Listener(self)
        self._listeners.append(listener)
        self._watch(listener)
        return listener

    def close(self) -> None:
        """Send what is to be sent, and stop."""

    def _watch(self, listener: Listener) -> None:
        """Have the listener hear other processes too."""

    def _forget(self, listener: Listener) -> None:
        with contextlib.suppress(ValueError):
            self._listeners.remove(listener)


class Listener:
    """One worker's ear."""

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        self._event = threading.Event()
        self.look: Callable[[], bool] | None = None
        """Whether other processes committed anything since the last time; asked every few milliseconds."""
        self.stop: Callable[[], object] | None = None

    def wake(self) -> None:
        """End the wait that is under way, or the next one. Not from a signal handler: what that interrupted
        may hold the event's lock."""
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Wait for a wake-up, at most so long; whether there was one."""
        heard = self._event.wait(seconds) if self.look is None else self._wait_looking(self.look, seconds)
        if heard:
            # Only then: one that came after the time was up is for the next wait.
            self._event.clear()
        return heard

    def close(self) -> None:
        """Hear nothing more."""
        self._wakeups._forget(self)
        if self.stop is not None:
            self.stop()

    def _wait_looking(self, look: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not look():
            left = end - time.monotonic()
            if left <= 0:
                return self._event.is_set()
            if self._event.wait(min(left, WATCH_EVERY_S)):
                break
        return True


class FileWakeups(Wakeups):
    """For a SQLite database: other processes are heard through its write-ahead log."""

    def __init__(self, database: str) -> None:
        super().__init__()
        self._log = f"{database}-wal"

    def _watch(self, listener: Listener) -> None:
        listener.look = _LogWatch(self._log).changed


class _LogWatch:
    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._again_at: float | None = None

    def changed(self) -> bool:
        # Only looked at, never opened: closing a file gives up the locks that SQLite has on it.
        try:
            found = os.stat(self._path)
        except OSError:
            return False
        now = time.time()
        seen = (found.st_mtime_ns, found.st_size)
        if seen != self._seen:
            self._seen = seen
            # Once more when the file's time can no longer hide a second change.
            self._again_at = now + RECENT_S if now - found.st_mtime < RECENT_S else None
            return True
        if self._again_at is not None and now >= self._again_at:
            self._again_at = None
            return True
        return False


class ServerWakeups(Wakeups):
    """For a PostgreSQL database: other processes are notified. Without `listening` they are, and this one is not."""

    def __init__(self, connect: Connect, *, listening: bool = True) -> None:
        super().__init__()
        self._connect = connect
        self._listening = listening
        self._sender = _line("analemma-notify", connect, _send)

    def signal(self) -> None:
        super().signal()
        with contextlib.suppress(RuntimeError):
            # No thread can be had now: what was committed stays so, and workers look by themselves.
            self._sender.wake()

    def close(self) -> None:
        self._sender.stop(PATIENCE_S)

    def _watch(self, listener: Listener) -> None:
        if not self._listening:
            return

        def begin(tx: Any) -> None:
            tx.control("listen")
            # For what was sent while nobody listened.
            listener.wake()

        def hear(tx: Any) -> float:
            for _ in tx.connection.notifies(timeout=LISTEN_S, stop_after=1):
                listener.wake()
            return 0.0

        line = _line("analemma-listen", self._connect, hear, begin)
        listener.stop = lambda: line.stop(PATIENCE_S)
        line.wake()


def _send(tx: Any) -> None:
    tx.control("notify")
    time.sleep(QUIET_S)


def _line(
    name: str, connect: Connect, turn: Callable[[Any], float | None], begin: Callable[[Any], object] = lambda tx: None
) -> Ticker:
    """A thread with a connection of its own, on which it does one thing over and over. Workers poll, and this is only
    the faster way: what fails is tried again later, on another connection."""
    kept: list[Any] = []

    def close() -> None:
        while kept:
            kept.pop().connection.close()

    def act() -> float | None:
        try:
            if not kept:
                kept.append(connect())
                begin(kept[0])
            return turn(kept[0])
        except Exception:
            close()
            raise

    return Ticker(name, act, end=close)
