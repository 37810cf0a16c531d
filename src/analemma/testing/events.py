"""Events for tests of handlers: committed and told of, as the verbs of the package do with theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from analemma import App, Settle
from analemma.catalog.engine.db import Transaction
from analemma.catalog.outbox.lanes import enqueue
from analemma.catalog.port import OutboxEvent as OutboxEvent

T = TypeVar("T")


def produce(app: App, events: Sequence[OutboxEvent], *, tenant: str = "default", tell: bool = True) -> list[str]:
    """Commit events in one transaction, and tell workers unless `tell` is False; their ids.

    Nothing is checked but names: a payload may be what no handler can read."""
    number = app.catalog.tenant(tenant)
    now_us = app.catalog.clock.now_us()
    app.catalog.engine.write(lambda tx: enqueue(tx, number, events, now_us=now_us))
    if tell:
        app.catalog.wakeups.signal()
    return [each.id for each in events]


def produce_and_settle(app: App, events: Sequence[OutboxEvent], settle: Settle, *, tenant: str = "default") -> None:
    """Commit events, and in the same transaction settle the one that is being handled: an effect that happens once."""
    number = app.catalog.tenant(tenant)
    now_us = app.catalog.clock.now_us()

    def move(tx: Transaction) -> None:
        enqueue(tx, number, events, now_us=now_us)
        settle(tx)

    app.catalog.engine.write(move)
    app.catalog.wakeups.signal()


def settling(app: App, work: Callable[[Any], T]) -> T:
    """Run `work(tx)` in one transaction of the store, as a handler does that calls `settle(tx)` with its effects; what
    it raises undoes all of it."""
    return app.catalog.engine.write(work)
