"""Time and randomness as dependencies, so that tests can step and seed them."""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from analemma.errors import Conflict, Corrupt

MOST_TRIES = 1000
"""Whoever builds on what is newest loses to others now and then; so often in a row nobody does."""

AGAIN_S = 1.0
"""After a turn of a thread that raised, the next one comes so much later."""

_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)


class Clock(Protocol):
    """What the library asks of time. Nothing that safety rests on may ask it."""

    def now_us(self) -> int:
        """Microseconds since 1970-01-01Z."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's own clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        if (stopped := _stopped.get()) is None:
            time.sleep(seconds)
        elif stopped.wait(seconds):
            raise Stopped


class Stopped(Exception):
    """Ends a sleep, and with it what nobody waits for any more."""


_stopped: ContextVar[threading.Event | None] = ContextVar("analemma_stopped", default=None)


@contextmanager
def until(stopped: threading.Event) -> Iterator[None]:
    """Inside the block, a sleep of the machine's clock ends with Stopped once this is set."""
    token = _stopped.set(stopped)
    try:
        yield
    finally:
        _stopped.reset(token)


def moment(at_us: int) -> dt.datetime:
    """Microseconds since 1970-01-01Z as a time; Corrupt if they are none that was ever written.

    >>> moment(1_000_000).isoformat()
    '1970-01-01T00:00:01+00:00'
    """
    try:
        return _EPOCH + dt.timedelta(microseconds=at_us)
    except OverflowError as exc:
        raise Corrupt(f"{at_us} microseconds since 1970 are no time", hint="restore the row from a backup") from exc


def attempts(
    clock: Clock, trouble: str, *, hint: str = "save less often, or from fewer places", most: int = MOST_TRIES
) -> Iterator[int]:
    """For whoever may find that somebody else was faster: the numbers of the attempts, from 0, with a pause between
    them once that has happened again and again. Conflict, which says the trouble, when all of them are used up.

    >>> next(attempts(SystemClock(), "the branch changes too fast"))
    0
    """
    for attempt in range(most):
        yield attempt
        if attempt > 3:
            # Loaded by those who lose.
            from random import uniform

            clock.sleep(uniform(0, 0.002 * min(attempt, 10)))
    raise Conflict(trouble, hint=hint)


class Ticker:
    """A thread that takes its turn whenever it is woken, and when the seconds are over that its last turn gave; after
    one that raised, a little later, however often it is woken meanwhile. A wake-up starts it, the first and any after
    it had nothing to do for so long that it ended. It is a daemon: a program that ends does not wait for it."""

    def __init__(
        self,
        name: str,
        turn: Callable[[], float | None],
        *,
        end: Callable[[], object] = lambda: None,
        idle_s: float | None = None,
    ) -> None:
        """`end` is called by the thread when it ends: with `idle_s`, also so long after a turn that gave no time."""
        self._name = name
        self._turn = turn
        self._end = end
        self._idle_s = idle_s
        # Taken again on top of itself by the handler of a signal that wakes it, too.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        """Only to wait and to notify. To hold the lock, `with self._lock`: entering a Condition takes several steps,
        and an interrupt between two of them would leave it locked for good."""
        self._thread: threading.Thread | None = None
        self._wanted = False
        self._starting = False
        self._ending = False
        self._stopped = threading.Event()

    def wake(self) -> None:
        """Have it take a turn that begins later than this."""
        if self._wanted and self._is_alive():
            return
        with self._lock:
            # In this order: whoever finds that a turn is wanted need not notify.
            self._changed.notify_all()
            self._wanted = True
            if self._starting:
                return  # Whoever a handler has interrupted goes on with it.
            try:
                self._starting = True
                if not self._is_alive() and not self._stopped.is_set():
                    self._ending = False
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
            finally:
                self._starting = False

    def stop(self, timeout_s: float | None = None) -> bool:
        """End it behind the turn that is under way, or that was asked for; whether it has ended within the time."""
        with self._lock:
            self._stopped.set()
            self._changed.notify_all()
        thread = self._thread
        if thread is None or not thread.is_alive():
            return True
        if thread is not threading.current_thread():
            thread.join(timeout_s)
        return not thread.is_alive()

    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and not self._ending

    def _run(self) -> None:
        pause_s: float | None = 0.0
        try:
            while self._is_due(pause_s):
                try:
                    pause_s = self._turn()
                except Exception:
                    self._stopped.wait(AGAIN_S)
                    pause_s = 0.0
        finally:
            self._end()

    def _is_due(self, pause_s: float | None) -> bool:
        """Wait for the next turn; False, and the thread must end, if there is none."""
        with self._lock:
            if not self._wanted and not self._stopped.is_set():
                self._changed.wait(self._idle_s if pause_s is None else pause_s)
            # Under the lock: whoever wakes it from here on finds that it ends, or that no turn is wanted yet.
            self._ending = not self._wanted and (pause_s is None or self._stopped.is_set())
            self._wanted = False
            return not self._ending


class Entropy(Protocol):
    """What the library asks of randomness."""

    def random_bytes(self, count: int) -> bytes:
        """That many unpredictable bytes."""


class SystemEntropy:
    """The operating system's generator."""

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)


def span_for_people(seconds: float) -> str:
    """`604800` -> `7 days`.

    >>> span_for_people(604_800), span_for_people(7200), span_for_people(90)
    ('7 days', '2 hours', '90 s')
    """
    for length, name in ((86_400, "day"), (3600, "hour")):
        if seconds >= length:
            return f"{seconds / length:g} {name}{'' if seconds == length else 's'}"
    return f"{seconds:g} s"
