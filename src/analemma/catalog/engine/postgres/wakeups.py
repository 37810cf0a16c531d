"""Wake-ups between processes on PostgreSQL: notifications, sent after commits, once for all that came meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

from analemma.catalog.engine.postgres.transaction import PostgresTransaction
from analemma.catalog.engine.wakeups import Listener, Wakeups
from analemma.clock import Ticker

QUIET_S = 0.005
"""At least this long between two notifications of a process."""
LISTEN_S = 0.2
PATIENCE_S = 2.0
"""So long whoever stops waits for what is being sent, or heard."""
Connect = Callable[[], PostgresTransaction]


class PostgresWakeups(Wakeups):
    """`connect` makes a connection that nobody else uses."""

    def __init__(self, connect: Connect, *, listening: bool = True) -> None:
        super().__init__()
        self._connect = connect
        self._listening = listening
        self._sender = _line("analemma-notify", connect, _send)

    def signal(self) -> None:
        super().signal()
        self._sender.wake()

    def close(self) -> None:
        self._sender.stop(PATIENCE_S)

    def _watch(self, listener: Listener) -> None:
        if not self._listening:
            return

        def begin(connection: PostgresTransaction) -> None:
            connection.control("listen")
            # For what was sent while nobody listened.
            listener.wake()

        def hear(connection: PostgresTransaction) -> float:
            if connection.heard(LISTEN_S):
                listener.wake()
            return 0.0

        line = _line("analemma-listen", self._connect, hear, begin)
        listener.stop = lambda: line.stop(PATIENCE_S)
        line.wake()


def _send(connection: PostgresTransaction) -> None:
    connection.control("notify")
    time.sleep(QUIET_S)


def _line(
    name: str,
    connect: Connect,
    turn: Callable[[PostgresTransaction], float | None],
    begin: Callable[[PostgresTransaction], None] = lambda connection: None,
) -> Ticker:
    """A thread with a connection of its own, on which it does one thing over and over. Workers poll, and this is only
    the faster way: what fails is tried again later, on another connection."""
    kept: list[PostgresTransaction] = []

    def close() -> None:
        while kept:
            kept.pop().close()

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
