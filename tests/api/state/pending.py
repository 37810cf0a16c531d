"""Checkpoints that were accepted and are not applied yet, for as long as a test wants."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from analemma import App, Ticket
from analemma.testing import failpoints
from tests.raw_rows import select
from tests.stores import Store

LONGEST_S = 60


class Died(Exception):
    """Whoever made a checkpoint is gone."""


def left_behind(app: App, store: Store, delta: Any, **place: Any) -> Ticket:
    """A checkpoint of somebody who dies as soon as it is accepted: it is pending, and nobody was asked to apply it."""

    def die() -> None:
        raise Died

    with failpoints.call("ledger.after_insert", die), pytest.raises(Died):
        app.kernel.checkpoint_async(delta, **place)
    [(seq, secret)] = select(store, "SELECT seq, secret FROM pending ORDER BY seq DESC LIMIT 1")
    return Ticket(seq, bytes(secret))


class Stuck:
    """The first who applies something, standing still with the branch in hand."""

    def __init__(self) -> None:
        self._there = threading.Event()
        self._go_on = threading.Event()

    def wait(self) -> None:
        """Come back when it stands still."""
        assert self._there.wait(LONGEST_S)

    def stand(self) -> None:
        self._there.set()
        assert self._go_on.wait(LONGEST_S)

    def go_on(self) -> None:
        self._go_on.set()


@contextmanager
def stuck() -> Iterator[Stuck]:
    """Whoever applies something first stands still before it is written, until this ends: the thread, if nobody waits
    for the first checkpoint. After that checkpoint, `wait`."""
    first = Stuck()
    with failpoints.call("apply.before_transaction", first.stand):
        try:
            yield first
            first.wait()
        finally:
            first.go_on()


def wait_until(condition: Callable[[], object]) -> None:
    """Come back when it is so."""
    deadline = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
