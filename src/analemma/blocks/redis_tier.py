"""Block bodies in Redis, shared between processes and machines. A Redis that is slow or gone only costs speed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from analemma.canon.nodes import BlockId
from analemma.clock import Clock, SystemClock
from analemma.errors import Invalid, Unavailable

TTL_S = 300
TIMEOUT_S = 0.25
REST_AFTER_FAILURE_S = 5.0
"""How long nothing is asked after a failure, so that a dead Redis costs one timeout now and then, not one per read."""
LARGEST_VALUE_BYTES = 1 << 20


class RedisTier:
    """The tier behind an `Lru`. It may forget anything at any time, and others can write to it as well, so every value
    is checked against its id when read."""

    def __init__(
        self, url: str, store_id: str, *, ttl_s: int = TTL_S, timeout_s: float = TIMEOUT_S, clock: Clock | None = None
    ) -> None:
        """On the Redis at `redis://`, `rediss://` or `unix://`; it need not be up."""
        try:
            from redis import Redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as exc:
            raise Unavailable("the Redis tier needs redis", hint="pip install 'analemma[redis]'") from exc
        try:
            self._client = Redis.from_url(
                url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
            )
        except ValueError:
            # The URL may hold a password, and the driver's text may hold the URL.
            raise Invalid("not a Redis URL", hint="for example redis://host:6379/0") from None
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
