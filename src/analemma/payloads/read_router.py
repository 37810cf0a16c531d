"""Whether to read a whole tree or only some fields of it: by its size, by the share that is wanted, and by how long
either took lately."""

from __future__ import annotations

import threading
from typing import Any, Literal

from analemma.canon.pointer import Path, list_index
from analemma.canon.read import MISSING
from analemma.clock import Clock
from analemma.errors import Invalid

Route = Literal["whole", "partial"]

KIB = 1024
SMALL_BYTES = 10 * KIB
"""What is smaller is read whole, whatever is wanted of it."""
SLOW_SMALL_BYTES = 50 * KIB
"""The same while partial reads take more than twice as long as whole ones."""
MIDDLE_BYTES = 50 * KIB
"""From here on a middling share is read in part."""
MOST_SHARE, LEAST_SHARE = 0.8, 0.2
ADJUST_EVERY_S = 3600.0
SLOW_FACTOR = 2.0


class ReadRouter:
    """Chooses, measures, and once an hour draws its conclusions. Safe to share between threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._adjusted_at = clock.monotonic()
        self._took: dict[Route, tuple[float, int]] = {}
        """How long the reads of this hour took together, and how many there were."""
        self.small_bytes = SMALL_BYTES
        """What counts as small now."""
        self.counts: dict[Route, int] = {"whole": 0, "partial": 0}
        """How often each way was taken."""

    def choose(self, size_bytes: int, wanted: int, total: int, *, auto_routing: bool = True) -> Route:
        """The way to read `wanted` of `total` fields of so many bytes. Without `auto_routing` only the size decides."""
        if not auto_routing:
            return "whole" if size_bytes < SMALL_BYTES else "partial"
        share = wanted / max(total, 1)
        if size_bytes < self.small_bytes or share > MOST_SHARE:
            return "whole"
        return "partial" if share < LEAST_SHARE or size_bytes >= MIDDLE_BYTES else "whole"

    def measured(self, route: Route, started: float) -> None:
        """Take note of a read that began at this moment of the clock and has ended now."""
        with self._lock:
            now = self._clock.monotonic()
            self.counts[route] += 1
            total_s, count = self._took.get(route, (0.0, 0))
            self._took[route] = total_s + now - started, count + 1
            if now - self._adjusted_at >= ADJUST_EVERY_S and len(self._took) == 2:
                whole_s, partial_s = [self._took[each][0] / self._took[each][1] for each in self.counts]
                self.small_bytes = SLOW_SMALL_BYTES if partial_s > SLOW_FACTOR * whole_s else SMALL_BYTES
                self._adjusted_at, self._took = now, {}


def pick(value: Any, path: Path) -> Any:
    """What stands at a path of a value that is here; MISSING if nothing does. Paths go through dicts and lists, as they
    do in the store."""
    for token in path:
        if type(value) is dict:
            value = value.get(token, MISSING)
        elif type(value) is list:
            try:
                value = value[list_index(token, len(value))]
            except (IndexError, Invalid):
                return MISSING
        else:
            return MISSING
    return value
