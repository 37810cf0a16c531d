"""How much a store has read: of one whose blocks are all in objects, every read is one of an object."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from analemma import App
from tests.stores import Store

IN_OBJECTS = {"pack_threshold_bytes": 0}
"""Settings with which whatever is written goes into objects."""


@dataclass
class Reads:
    """What one who opened the store afresh has read since the last look."""

    app: App
    count: int = 0
    bytes: int = 0

    def since(self) -> tuple[int, int]:
        """How often, and how many bytes as they are stored."""
        found = self.app.object_metrics.snapshot()
        count = sum(found[name].count for name in ("get_object", "partial_read"))
        size = sum(found[name].bytes for name in ("get_object", "partial_read"))
        before = self.count, self.bytes
        self.count, self.bytes = count, size
        return count - before[0], size - before[1]


@contextmanager
def counted(store: Store) -> Iterator[Reads]:
    with store.open(**IN_OBJECTS) as app:
        yield Reads(app)
