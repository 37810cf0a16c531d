"""Counts, bytes and latencies of an object store's operations, kept in the process and offered to whoever listens."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from analemma.blocks.forking import watch
from analemma.blocks.port import ObjectInfo, ObjectStore
from analemma.clock import Clock, SystemClock

PUT = "put_object"
GET = "get_object"
PARTIAL_READ = "partial_read"
HEAD = "head_object"
DELETE = "delete_object"
LIST = "list_objects"
TAG = "tag_object"
OPERATIONS = (PUT, GET, PARTIAL_READ, HEAD, DELETE, LIST, TAG)


@dataclass(frozen=True, slots=True)
class OperationStats:
    """What one kind of operation has cost so far."""

    count: int = 0
    errors: int = 0
    bytes: int = 0
    latency_sum_s: float = 0.0
    latency_max_s: float = 0.0


class ObjectMetrics:
    """A recorder. `listener(name, value)` hears each operation as `<operation>_latency` (seconds), `<operation>_bytes`
    and, when it failed, `<operation>_errors`: for example `get_object_latency`, `partial_read_latency`."""

    def __init__(self, listener: Callable[[str, float], None] | None = None) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._stats = {operation: OperationStats() for operation in OPERATIONS}
        watch(self)

    def after_fork_in_child(self) -> None:
        """In a forked child: numbers are replaced as a whole, so there is only the lock to renew."""
        self._lock = threading.Lock()

    def record(self, operation: str, seconds: float, size: int, *, failed: bool) -> None:
        """Add one operation."""
        with self._lock:
            stats = self._stats[operation]
            self._stats[operation] = replace(
                stats,
                count=stats.count + 1,
                errors=stats.errors + failed,
                bytes=stats.bytes + size,
                latency_sum_s=stats.latency_sum_s + seconds,
                latency_max_s=max(stats.latency_max_s, seconds),
            )
        if self._listener is not None:
            self._listener(f"{operation}_latency", seconds)
            self._listener(f"{operation}_bytes", size)
            if failed:
                self._listener(f"{operation}_errors", 1)

    def snapshot(self) -> dict[str, OperationStats]:
        """All counters at one moment, by operation."""
        with self._lock:
            return dict(self._stats)


class _Timing:
    """How many bytes the running operation moved."""

    bytes = 0


class MeteredStore:
    """An object store that records what it does. An operation that is refused (NotFound, Conflict) counts as failed."""

    def __init__(self, store: ObjectStore, metrics: ObjectMetrics, *, clock: Clock | None = None) -> None:
        self.metrics = metrics
        self._store = store
        self._clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"MeteredStore({self._store!r})"

    @property
    def supports_tags(self) -> bool:
        return self._store.supports_tags

    def put(self, key: str, data: bytes, *, metadata: Mapping[str, str] | None = None, if_absent: bool = False) -> None:
        with self._timed(PUT) as timing:
            timing.bytes = len(data)
            self._store.put(key, data, metadata=metadata, if_absent=if_absent)

    def put_stream(self, key: str, chunks: Iterable[bytes], *, metadata: Mapping[str, str] | None = None) -> None:
        with self._timed(PUT) as timing:
            self._store.put_stream(key, _counted(chunks, timing), metadata=metadata)

    def replace(self, key: str, data: bytes, *, expected: bytes) -> None:
        with self._timed(PUT) as timing:
            timing.bytes = len(data)
            self._store.replace(key, data, expected=expected)

    def get(self, key: str) -> bytes:
        with self._timed(GET) as timing:
            data = self._store.get(key)
            timing.bytes = len(data)
            return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        with self._timed(PARTIAL_READ) as timing:
            data = self._store.get_range(key, offset, length)
            timing.bytes = len(data)
            return data

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with self._timed(PARTIAL_READ) as timing:
            pieces = self._store.get_ranges(key, ranges)
            timing.bytes = sum(map(len, pieces))
            return pieces

    def open_read(self, key: str) -> Iterator[bytes]:
        with self._timed(GET) as timing:
            yield from _counted(self._store.open_read(key), timing)

    def head(self, key: str) -> ObjectInfo | None:
        with self._timed(HEAD):
            return self._store.head(key)

    def delete(self, key: str) -> None:
        with self._timed(DELETE):
            self._store.delete(key)

    def delete_many(self, keys: Iterable[str]) -> None:
        with self._timed(DELETE):
            self._store.delete_many(keys)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        with self._timed(LIST):
            yield from self._store.list(prefix)

    def tag(self, key: str, tags: Mapping[str, str]) -> None:
        with self._timed(TAG):
            self._store.tag(key, tags)

    def health(self) -> None:
        self._store.health()

    def close(self) -> None:
        self._store.close()

    @contextlib.contextmanager
    def _timed(self, operation: str) -> Iterator[_Timing]:
        timing = _Timing()
        failed = True
        started = self._clock.monotonic()
        try:
            yield timing
            failed = False
        except GeneratorExit:
            failed = False  # A reader who stops early has what it wanted.
            raise
        finally:
            self.metrics.record(operation, self._clock.monotonic() - started, timing.bytes, failed=failed)


def _counted(chunks: Iterable[bytes], timing: _Timing) -> Iterator[bytes]:
    for chunk in chunks:
        timing.bytes += len(chunk)
        yield chunk
