"""Finds what makes a receiver look down: one aggregate that upsets it, while it takes everything else.

Whoever was in a batch that failed as a whole comes again in half of it, if the receiver took others since the last
time. One that is left alone and fails again, while others were taken between its failures, is to blame. While nothing
is taken at all, the receiver is down, and nothing is learnt about anybody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from analemma.catalog.outbox.lanes import LaneKey

MOST_LANES: Final = 10_000
"""The longest known are forgotten first; they are found out again if need be."""


class _Upset(NamedTuple):
    size: int
    """Of the next batch that it may be in."""
    taken: int
    """How many the receiver had taken when it failed."""


class Upsets:
    """What a worker knows of one channel. One thread at a time uses it."""

    def __init__(self) -> None:
        self._lanes: dict[LaneKey, _Upset] = {}
        self._taken = 0
        self._at_last_failure: int | None = None

    def size(self, key: LaneKey) -> int | None:
        """How many may be in a batch with this one; None: as many as ever."""
        found = self._lanes.get(key)
        return None if found is None else found.size

    def take(self, keys: Sequence[LaneKey]) -> None:
        """The receiver took these."""
        self._taken += len(keys)
        for key in keys:
            self._lanes.pop(key, None)

    def fail(self, keys: Sequence[LaneKey]) -> bool:
        """These failed together, as if the receiver was down; whether it is the only one of them that is to blame."""
        is_news = self._at_last_failure is None or self._taken > self._at_last_failure
        is_to_blame = False
        for key in keys:
            before = self._lanes.get(key)
            if not is_news if before is None else before.taken == self._taken:
                continue
            is_to_blame = before is not None and len(keys) == 1
            self._lanes.pop(key, None)
            self._lanes[key] = _Upset(max(1, len(keys) // 2), self._taken)
        for key in list(self._lanes)[: max(0, len(self._lanes) - MOST_LANES)]:
            del self._lanes[key]
        self._at_last_failure = self._taken
        return is_to_blame
