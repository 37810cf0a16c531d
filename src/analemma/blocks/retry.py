"""Tries again when a store stumbles: transient errors only, a few times, after a random wait that grows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from analemma.blocks.port import ObjectInfo, ObjectStore, is_transient, settle_existing
from analemma.clock import Clock, SystemClock
from analemma.errors import AnalemmaError, Conflict

DEFAULT_TRIES = 3
DEFAULT_FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 20.0

T = TypeVar("T")


class RetryStore:
    """An object store whose single requests survive short failures.

    Streams and listings pass through: what has been consumed cannot be replayed, so adapters retry their pieces.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        tries: int = DEFAULT_TRIES,
        first_wait_s: float = DEFAULT_FIRST_WAIT_S,
        clock: Clock | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`jitter` gives numbers in [0, 1): each wait is that share of its bound (full jitter)."""
        self._store = store
        self._tries = tries
        self._first_wait_s = first_wait_s
        self._clock = clock or SystemClock()
        self._jitter = jitter

    def __repr__(self) -> str:
        return f"RetryStore({self._store!r})"

    @property
    def supports_tags(self) -> bool:
        return self._store.supports_tags

    def put(self, key: str, data: bytes, *, metadata: Mapping[str, str] | None = None, if_absent: bool = False) -> None:
        answer_lost = False

        def attempt() -> None:
            nonlocal answer_lost
            try:
                self._store.put(key, data, metadata=metadata, if_absent=if_absent)
            except Conflict:
                # After a lost answer, what "exists" may be our own write: read it back before calling it a conflict.
                if not answer_lost:
                    raise
                settle_existing(self._store, key, data)
            except AnalemmaError as exc:
                answer_lost = answer_lost or is_transient(exc)
                raise

        self._retry(attempt)

    def put_stream(self, key: str, chunks: Iterable[bytes], *, metadata: Mapping[str, str] | None = None) -> None:
        self._store.put_stream(key, chunks, metadata=metadata)

    def replace(self, key: str, data: bytes, *, expected: bytes) -> None:
        # After a lost answer the object may hold the new bytes already, which is success by itself.
        self._retry(lambda: self._store.replace(key, data, expected=expected))

    def get(self, key: str) -> bytes:
        return self._retry(lambda: self._store.get(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._retry(lambda: self._store.get_range(key, offset, length))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._retry(lambda: self._store.get_ranges(key, ranges))

    def open_read(self, key: str) -> Iterator[bytes]:
        return self._store.open_read(key)

    def head(self, key: str) -> ObjectInfo | None:
        return self._retry(lambda: self._store.head(key))

    def delete(self, key: str) -> None:
        self._retry(lambda: self._store.delete(key))

    def delete_many(self, keys: Iterable[str]) -> None:
        kept = list(keys)
        self._retry(lambda: self._store.delete_many(kept))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._store.list(prefix)

    def tag(self, key: str, tags: Mapping[str, str]) -> None:
        self._retry(lambda: self._store.tag(key, tags))

    def health(self) -> None:
        # Not retried: whoever asks wants to know how it is now.
        self._store.health()

    def close(self) -> None:
        self._store.close()

    def _retry(self, attempt: Callable[[], T]) -> T:
        for failures in range(1, self._tries):
            try:
                return attempt()
            except AnalemmaError as exc:
                if not is_transient(exc):
                    raise
            bound_s = min(self._first_wait_s * 2 ** (failures - 1), LONGEST_WAIT_S)
            self._clock.sleep(bound_s * self._jitter())
        return attempt()
