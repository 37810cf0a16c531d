"""A counting Bloom filter over the units that workspaces need, for protection sets that are too large to be read twice.

It is never what decides: "maybe there" protects a unit for one cycle, and "absent" only nominates it. Absent can be
wrong, after a removal of what was never added or was added once and removed twice: an exact check precedes every
delete. A salt that is new for every cycle sees to it that no unit is taken for another for ever."""

from __future__ import annotations

import hashlib
import math

FALSE_POSITIVES = 0.01
MOST = 15
"""A counter of 4 bits that has come here stays: nobody knows any more how many there were."""
LEAST_CAPACITY = 1000
SALT_BYTES = 16


class CountingBloomFilter:
    """About 480 KB for each 100,000 entries."""

    def __init__(self, capacity: int, *, salt: bytes) -> None:
        entries = max(capacity, LEAST_CAPACITY)
        self._counters = math.ceil(-entries * math.log(FALSE_POSITIVES) / math.log(2) ** 2)
        self._hashes = round(self._counters / entries * math.log(2))
        self._halves = bytearray((self._counters + 1) // 2)
        self._salt = salt

    @property
    def size_bytes(self) -> int:
        """What the counters take."""
        return len(self._halves)

    def add(self, entry: str) -> None:
        """Count one more."""
        for place in self._places(entry):
            count = self._count(place)
            if count < MOST:
                self._set(place, count + 1)

    def remove(self, entry: str) -> None:
        """Count one less; what is certainly not there is left alone."""
        places = self._places(entry)
        if not all(self._count(place) for place in places):
            return
        for place in places:
            count = self._count(place)
            if 0 < count < MOST:
                self._set(place, count - 1)

    def __contains__(self, entry: str) -> bool:
        return all(self._count(place) for place in self._places(entry))

    def _places(self, entry: str) -> list[int]:
        digest = hashlib.blake2b(entry.encode(), digest_size=16, key=self._salt).digest()
        first, step = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big") | 1
        # Each counter once: then adding and removing an entry undo each other.
        return sorted({(first + number * step) % self._counters for number in range(self._hashes)})

    def _count(self, place: int) -> int:
        half = self._halves[place >> 1]
        return half >> 4 if place & 1 else half & 15

    def _set(self, place: int, count: int) -> None:
        half = self._halves[place >> 1]
        self._halves[place >> 1] = (half & 15) | (count << 4) if place & 1 else (half & 0xF0) | count
