"""Telling workers that something may be due, so that they need not ask all the time.

A wake-up is a courtesy: one that is lost costs a poll interval. Inside a process it is an event. Between processes on
PostgreSQL it is a notification, sent after the commit, on a connection of its own and once for all that came meanwhile;
on SQLite, workers watch the log that every commit of every process is written to."""

from __future__ import annotations

import contextlib
import math
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


class Listener:
    """One worker's ear: it hears the threads of its own process."""

    def __init__(self, among: list[Listener]) -> None:
        self._event = threading.Event()
        self._among = among
        among.append(self)

    def wake(self) -> None:
        """End the wait that is under way, or the next one. Not from a signal handler: what that interrupted
        may hold the event's lock."""
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Wait for a wake-up, at most so long; whether there was one."""
        heard = self._hears(seconds)
        if heard:
            # Only then: one that came after the time was up is for the next wait.
            self._event.clear()
        return heard

    def close(self) -> None:
        """Hear nothing more."""
        with contextlib.suppress(ValueError):
            self._among.remove(self)

    def _hears(self, seconds: float) -> bool:
        return self._event.wait(seconds)


class LogListener(Listener):
    """Hears other processes, too, through the write-ahead log of a SQLite database."""

    def __init__(self, log: str, among: list[Listener]) -> None:
        super().__init__(among)
        self._log = log
        self._seen: tuple[int, int] | None = None
        self._again_at = math.inf

    def _hears(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not self._has_changed():
            left = end - time.monotonic()
            if left <= 0:
                return self._event.is_set()
            if self._event.wait(min(left, WATCH_EVERY_S)):
                break
        return True

    def _has_changed(self) -> bool:
        # Only looked at, never opened: closing a file gives up the locks that SQLite has on it.
        try:
            found = os.stat(self._log)
        except OSError:
            return False
        now = time.time()
        seen = (found.st_mtime_ns, found.st_size)
        if seen == self._seen and now < self._again_at:
            return False
        # Once more when the file's time can no longer hide a second change.
        is_recent = seen != self._seen and now - found.st_mtime < RECENT_S
        self._seen, self._again_at = seen, now + RECENT_S if is_recent else math.inf
        return True


class ServerListener(Listener):
    """Hears other processes, too, through notifications of PostgreSQL."""

    def __init__(self, connect: Connect, among: list[Listener]) -> None:
        super().__init__(among)
        self._line = _line("analemma-listen", connect, self._hear, self._begin)
        self._line.wake()

    def close(self) -> None:
        super().close()
        self._line.stop(PATIENCE_S)

    def _begin(self, tx: Any) -> None:
        tx.control("listen")
        # For what was sent while nobody listened.
        self.wake()

    def _hear(self, tx: Any) -> float:
        for _ in tx.connection.notifies(timeout=LISTEN_S, stop_after=1):
            self.wake()
        return 0.0


class Wakeups:
    """What producers call and workers wait for. `hear` makes a listener, among those that there are; `connect` is for
    what tells other processes, if they must be told."""

    def __init__(self, hear: Callable[[list[Listener]], Listener], connect: Connect | None = None) -> None:
        self._hear = hear
        self._listeners: list[Listener] = []
        self._sender = None if connect is None else _line("analemma-notify", connect, _send)

    def signal(self) -> None:
        """Something was committed that a worker should look at. Call it after the commit, never inside it."""
        for listener in list(self._listeners):
            listener.wake()
        if self._sender is not None:
            with contextlib.suppress(RuntimeError):
                # No thread can be had now: what was committed stays so, and workers look by themselves.
                self._sender.wake()

    def listen(self) -> Listener:
        """Begin to hear wake-ups; close it in the end."""
        return self._hear(self._listeners)

    def close(self) -> None:
        """Send what is to be sent, and stop."""
        if self._sender is not None:
            self._sender.stop(PATIENCE_S)


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
