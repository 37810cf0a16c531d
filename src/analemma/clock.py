"""Time and randomness as dependencies, so that tests can step and seed them."""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from analemma.errors import Conflict, Corrupt

MOST_TRIES = 1000
"""Whoever builds on what is newest loses to others now and then; so often in a row nobody does."""

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
