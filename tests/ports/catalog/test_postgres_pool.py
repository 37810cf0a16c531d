"""The connections of the PostgreSQL engine: whoever gives one back is told of nothing that others do meanwhile."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import analemma
from tests.ports.entry_points.catalog import LONGEST_IDLE_S, pool_of


class Taken(deque[Any]):
    """What is idle: whoever looks at the oldest finds that others have taken all a moment later."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.clear()
        return found


class Left(deque[Any]):
    """Who waits: whoever looks finds that the last has left a moment later."""

    def __iter__(self) -> Iterator[Any]:
        found = list(super().__iter__())
        self.clear()
        return iter(found)

    def __bool__(self) -> bool:
        return bool(list(self))


def test_who_waits_may_leave_while_another_looks_who_is_next(migrated_url: str) -> None:
    with analemma.open(migrated_url, migrate=False) as app:
        trip, pool = app.workflow("trip", owner="ann"), pool_of(app)
        trip.save({"n": 1})
        pool._waiting = Left([threading.Lock()])
        assert trip.save({"n": 2}).version == 2
        assert not pool._waiting


def test_what_is_idle_may_be_taken_while_the_oldest_is_looked_at(migrated_url: str) -> None:
    with analemma.open(migrated_url, migrate=False) as app:
        trip, pool = app.workflow("trip", owner="ann"), pool_of(app)
        trip.save({"n": 1})
        long_ago = time.monotonic() - LONGEST_IDLE_S - 1
        pool._idle = Taken([(long_ago, pool.connect()), *pool._idle])
        assert trip.save({"n": 2}).version == 2
        assert not pool._idle
