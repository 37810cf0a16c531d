"""Block bodies in Redis, shared between processes and machines. A Redis that is slow or gone only costs speed."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from analemma.blocks.forking import watch
from analemma.canon.identity import BlockId
from analemma.clock import Clock, SystemClock
from analemma.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from redis import Redis

TTL_S = 300
TIMEOUT_S = 0.25
REST_AFTER_FAILURE_S = 5.0
"""How long nothing is asked after a failure, so that a dead Redis costs one timeout now and then, not one per read."""
LARGEST_VALUE_BYTES = 1 << 20


def matches_id(block: BlockId, body: bytes) -> bool:
    """Whether these bytes are what the id names."""
    return hashlib.sha256(body).digest() == block


class RedisTier:
    """A `BlockCache` that others can write to as well, so every value is checked against its id when read."""

    def __init__(
        self,
        client: Redis,
        store_id: str,
        *,
        ttl_s: int = TTL_S,
        clock: Clock | None = None,
        matches: Callable[[BlockId, bytes], bool] = matches_id,
    ) -> None:
        """`matches` decides whether a value is what its id names; ids that are not plain hashes bring their own."""
        self.hits = 0
        self.misses = 0
        self.failures = 0
        self.poisoned = 0
        self._client = client
        self._store_id = store_id
        self._ttl_s = ttl_s
        self._clock = clock or SystemClock()
        self._matches = matches
        self._lock = threading.Lock()
        self._resting_until = float("-inf")
        watch(self)

    def after_fork_in_child(self) -> None:
        """In a forked child: the client opens connections of its own, and the lock is renewed."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"RedisTier(store_id={self._store_id!r})"

    def get_many(self, tenant: int, ids: Iterable[BlockId]) -> dict[BlockId, bytes]:
        wanted = list(dict.fromkeys(ids))
        values: list[Any] = []
        with self._tolerant() as asking:
            if asking and wanted:
                values = self._client.mget([self._key(tenant, block) for block in wanted])
        found: dict[BlockId, bytes] = {}
        poisoned = 0
        for block, body in zip(wanted, values, strict=False):
            if isinstance(body, bytes):
                if self._matches(block, body):
                    found[block] = body
                else:
                    poisoned += 1
        with self._lock:
            self.hits += len(found)
            self.misses += len(wanted) - len(found)
            self.poisoned += poisoned
        return found

    def put_many(self, tenant: int, bodies: Mapping[BlockId, bytes]) -> None:
        kept = {block: body for block, body in bodies.items() if len(body) <= LARGEST_VALUE_BYTES}
        with self._tolerant() as asking:
            if asking and kept:
                batch = self._client.pipeline(transaction=False)
                for block, body in kept.items():
                    batch.set(self._key(tenant, block), body, ex=self._ttl_s)
                batch.execute()

    def clear(self) -> None:
        with self._tolerant() as asking:
            if asking:
                for key in self._client.scan_iter(match=f"analemma:{self._store_id}:*", count=1000):
                    self._client.delete(key)

    def close(self) -> None:
        with self._tolerant():
            self._client.close()

    def _key(self, tenant: int, block: BlockId) -> str:
        return f"analemma:{self._store_id}:{tenant}:{block.hex()}"

    @contextlib.contextmanager
    def _tolerant(self) -> Iterator[bool]:
        """Whether Redis may be asked now. Whatever goes wrong inside is counted and followed by a rest."""
        try:
            yield self._clock.monotonic() >= self._resting_until
        except Exception:
            # Broad on purpose: no fault of a cache, a driver or a network may become a failure of a read.
            with self._lock:
                self.failures += 1
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
