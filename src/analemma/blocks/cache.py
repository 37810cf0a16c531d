"""Verified block bodies kept near: in this process, and behind that, if there is one, in a tier that others share.

Blocks never change, so a cache needs no invalidation. It answers reads only: that a block was seen here says nothing
about whether it is still stored, and no writer may skip a block because of it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Protocol

from analemma.canon.identity import BlockId

DEFAULT_CAPACITY_BYTES = 64 << 20
_OVERHEAD_BYTES = 200
"""What an entry costs besides its body (key, object headers, a list node), so that tiny blocks count too."""


class FarTier(Protocol):
    """Where bodies may be that are not in this process. It may forget anything at any time, and never raises."""

    def get_many(self, tenant: int, ids: Sequence[BlockId]) -> dict[BlockId, bytes]:
        """Those of the blocks that are there, verified."""

    def put_many(self, tenant: int, bodies: Mapping[BlockId, bytes]) -> None:
        """Leave bodies there that the caller has verified."""

    def close(self) -> None:
        """Give back connections; safe to call twice."""


class Lru:
    """Least recently used bodies leave first; bounded by bytes; safe to share between threads."""

    def __init__(self, capacity_bytes: int = DEFAULT_CAPACITY_BYTES, far: FarTier | None = None) -> None:
        self._capacity_bytes = capacity_bytes
        self._far = far
        self._bytes = 0
        self._bodies: OrderedDict[tuple[int, BlockId], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get_many(self, tenant: int, ids: Sequence[BlockId]) -> dict[BlockId, bytes]:
        """Those of the blocks that are here, already verified."""
        found: dict[BlockId, bytes] = {}
        bodies = self._bodies
        with self._lock:
            for block in ids:
                key = (tenant, block)
                body = bodies.get(key)
                if body is not None:
                    # guard: cache.used
                    bodies.move_to_end(key)
                    found[block] = body
        if self._far is not None and (missing := [block for block in dict.fromkeys(ids) if block not in found]):
            brought = self._far.get_many(tenant, missing)
            self._keep(tenant, brought)
            found |= brought
        return found

    def put_many(self, tenant: int, bodies: Mapping[BlockId, bytes]) -> None:
        """Remember bodies that the caller has verified."""
        self._keep(tenant, bodies)
        if self._far is not None:
            self._far.put_many(tenant, bodies)

    def close(self) -> None:
        """Forget everything, and give back what the far tier has; safe to call twice."""
        with self._lock:
            self._bodies.clear()
            self._bytes = 0
        if self._far is not None:
            self._far.close()

    def _keep(self, tenant: int, bodies: Mapping[BlockId, bytes]) -> None:
        # One body that alone would flush half the cache is not worth the others.
        heaviest = self._capacity_bytes // 2
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
            while self._bytes > self._capacity_bytes:
                _, dropped = self._bodies.popitem(last=False)
                self._bytes -= len(dropped) + _OVERHEAD_BYTES
