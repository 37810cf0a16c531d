"""Verified block bodies kept near: an LRU in this process, and the shape that other tiers share with it.

Blocks never change, so a cache needs no invalidation. It answers reads only: that a block was seen here says nothing
about whether it is still stored, and no writer may skip a block because of it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from analemma.blocks.forking import watch
from analemma.canon.identity import BlockId

DEFAULT_CAPACITY_BYTES = 64 << 20
_OVERHEAD_BYTES = 200
"""What an entry costs besides its body (key, object headers, a list node), so that tiny blocks count too."""


class BlockCache(Protocol):
    """A tier of canonical block bytes. It may forget anything at any time, and never raises."""

    def get_many(self, tenant: int, ids: Iterable[BlockId]) -> dict[BlockId, bytes]:
        """Those of the blocks that are here, already verified."""

    def put_many(self, tenant: int, bodies: Mapping[BlockId, bytes]) -> None:
        """Remember bodies that the caller has verified."""

    def clear(self) -> None:
        """Forget everything this process put here or can reach."""

    def close(self) -> None:
        """Give back connections; safe to call twice."""


class BodyCache:
    """Least recently used bodies leave first; bounded by bytes; safe to share between threads."""

    def __init__(self, capacity_bytes: int = DEFAULT_CAPACITY_BYTES) -> None:
        self.capacity_bytes = capacity_bytes
        self.hits = 0
        self.misses = 0
        self._bytes = 0
        self._bodies: OrderedDict[tuple[int, BlockId], bytes] = OrderedDict()
        self._lock = threading.Lock()
        watch(self)

    def __len__(self) -> int:
        return len(self._bodies)

    @property
    def size_bytes(self) -> int:
        """What the entries weigh, with their overhead; never above the capacity."""
        return self._bytes

    def get_many(self, tenant: int, ids: Iterable[BlockId]) -> dict[BlockId, bytes]:
        found: dict[BlockId, bytes] = {}
        bodies = self._bodies
        misses = 0
        with self._lock:
            for block in ids:
                key = (tenant, block)
                body = bodies.get(key)
                if body is None:
                    misses += 1
                else:
                    # guard: cache.used
                    bodies.move_to_end(key)
                    found[block] = body
            self.hits += len(found)
            self.misses += misses
        return found

    def put_many(self, tenant: int, bodies: Mapping[BlockId, bytes]) -> None:
        # One body that alone would flush half the cache is not worth the others.
        heaviest = self.capacity_bytes // 2
        kept = self._bodies
        with self._lock:
            for block, body in bodies.items():
                weight = len(body) + _OVERHEAD_BYTES
                if weight > heaviest:
                    continue
                key = (tenant, block)
                if key in kept:
                    kept.move_to_end(key)
                    continue
                kept[key] = body
                self._bytes += weight
            # guard: cache.bytes
            while self._bytes > self.capacity_bytes:
                _, dropped = self._bodies.popitem(last=False)
                self._bytes -= len(dropped) + _OVERHEAD_BYTES

    def clear(self) -> None:
        with self._lock:
            self._bodies.clear()
            self._bytes = 0

    def close(self) -> None:
        self.clear()

    def after_fork_in_child(self) -> None:
        """In a forked child: go on with what is here, unless some thread was changing it at that moment."""
        caught, self._lock = self._lock.locked(), threading.Lock()
        if caught:
            self.clear()


class CacheStack:
    """Several tiers as one, nearest first: what a farther tier finds is remembered by the nearer ones."""

    def __init__(self, tiers: Sequence[BlockCache]) -> None:
        self.tiers = tuple(tiers)

    def get_many(self, tenant: int, ids: Iterable[BlockId]) -> dict[BlockId, bytes]:
        found: dict[BlockId, bytes] = {}
        wanted = list(dict.fromkeys(ids))
        for depth, tier in enumerate(self.tiers):
            if not wanted:
                break
            here = tier.get_many(tenant, wanted)
            if here:
                found |= here
                wanted = [block for block in wanted if block not in here]
                for nearer in self.tiers[:depth]:
                    nearer.put_many(tenant, here)
        return found

    def put_many(self, tenant: int, bodies: Mapping[BlockId, bytes]) -> None:
        for tier in self.tiers:
            tier.put_many(tenant, bodies)

    def clear(self) -> None:
        for tier in self.tiers:
            tier.clear()

    def close(self) -> None:
        for tier in self.tiers:
            tier.close()
