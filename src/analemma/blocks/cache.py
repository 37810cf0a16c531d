"""Verified block bodies kept near: in this process, and behind that, if there is one, in a Redis that others share.

Blocks never change, so a cache needs no invalidation. It answers reads only: that a block was seen here says nothing
about whether it is still stored, and no writer may skip a block because of it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from analemma.canon.identity import BlockId
from analemma.clock import Clock, SystemClock
from analemma.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from redis import Redis

DEFAULT_CAPACITY_BYTES = 64 << 20
_OVERHEAD_BYTES = 200
"""What an entry costs besides its body (key, object headers, a list node), so that tiny blocks count too."""

TTL_S = 300
TIMEOUT_S = 0.25
REST_AFTER_FAILURE_S = 5.0
"""How long nothing is asked after a failure, so that a dead Redis costs one timeout now and then, not one per read."""
LARGEST_VALUE_BYTES = 1 << 20


class Lru:
    """Least recently used bodies leave first; bounded by bytes; safe to share between threads."""

    def __init__(self, capacity_bytes: int = DEFAULT_CAPACITY_BYTES, far: RedisTier | None = None) -> None:
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


class RedisTier:
    """Block bodies in Redis, shared between processes and machines. One that is slow or gone only costs speed, and it
    may forget anything at any time. Others can write to it as well, so every value is checked against its id when
    read."""

    def __init__(self, client: Redis, store_id: str, *, ttl_s: int = TTL_S, clock: Clock | None = None) -> None:
        self._client = client
        self._store_id = store_id
        self._ttl_s = ttl_s
        self._clock = clock or SystemClock()
        self._resting_until = float("-inf")

    def __repr__(self) -> str:
        return f"RedisTier(store_id={self._store_id!r})"

    def get_many(self, tenant: int, ids: Sequence[BlockId]) -> dict[BlockId, bytes]:
        values: list[Any] = []
        with self._tolerant() as asking:
            if asking and ids:
                values = self._client.mget([self._key(tenant, block) for block in ids])
        return {
            block: body
            for block, body in zip(ids, values, strict=False)
            if isinstance(body, bytes) and sha256(body).digest() == block
        }

    def put_many(self, tenant: int, bodies: Mapping[BlockId, bytes]) -> None:
        kept = {block: body for block, body in bodies.items() if len(body) <= LARGEST_VALUE_BYTES}
        with self._tolerant() as asking:
            if asking and kept:
                batch = self._client.pipeline(transaction=False)
                for block, body in kept.items():
                    batch.set(self._key(tenant, block), body, ex=self._ttl_s)
                batch.execute()

    def close(self) -> None:
        with self._tolerant():
            self._client.close()

    def _key(self, tenant: int, block: BlockId) -> str:
        return f"analemma:{self._store_id}:{tenant}:{block.hex()}"

    @contextlib.contextmanager
    def _tolerant(self) -> Iterator[bool]:
        """Whether Redis may be asked now. Whatever goes wrong inside is followed by a rest."""
        try:
            yield self._clock.monotonic() >= self._resting_until
        except Exception:
            # Broad on purpose: no fault of a cache, a driver or a network may become a failure of a read.
            self._resting_until = self._clock.monotonic() + REST_AFTER_FAILURE_S


def open_redis_tier(
    url: str, store_id: str, *, ttl_s: int = TTL_S, timeout_s: float = TIMEOUT_S, clock: Clock | None = None
) -> RedisTier:
    """A tier on the Redis at `redis://`, `rediss://` or `unix://`; it need not be up."""
    try:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as exc:
        raise Unavailable("the Redis tier needs redis", hint="pip install 'analemma[redis]'") from exc
    try:
        client = Redis.from_url(
            url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
        )
    except ValueError:
        # The URL may hold a password, and the driver's text may hold the URL.
        raise Invalid("not a Redis URL", hint="for example redis://host:6379/0") from None
    return RedisTier(client, store_id, ttl_s=ttl_s, clock=clock)
