"""What stands before every object store: short failures are survived, and what each operation costs is counted."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from analemma.blocks.port import ObjectInfo, ObjectStore, StoreWrapper, is_transient
from analemma.clock import Clock, SystemClock
from analemma.errors import AnalemmaError

DEFAULT_TRIES = 3
DEFAULT_FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 20.0

_COUNTED_AS = {
    "put": "put_object",
    "put_stream": "put_object",
    "replace": "put_object",
    "get": "get_object",
    "open_read": "get_object",
    "get_range": "partial_read",
    "get_ranges": "partial_read",
    "head": "head_object",
    "delete": "delete_object",
    "delete_many": "delete_object",
    "list": "list_objects",
    "tag": "tag_object",
}

T = TypeVar("T")


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
        self._stats = dict.fromkeys(_COUNTED_AS.values(), OperationStats())

    def record(self, operation: str, seconds: float, size: int, *, failed: bool) -> None:
        """Add one operation."""
        with self._lock:
            stats = self._stats[operation]
            summed = (stats.count + 1, stats.errors + failed, stats.bytes + size, stats.latency_sum_s + seconds)
            self._stats[operation] = OperationStats(*summed, max(stats.latency_max_s, seconds))
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


class Hardened(StoreWrapper):
    """An object store whose single requests are tried again when it stumbles: transient errors only, a few times, after
    a random wait that grows. Every attempt is timed and counted; one that is refused (NotFound, Conflict) counts as
    failed.

    Streams and listings are counted and not tried again: what has been consumed cannot be replayed, so adapters retry
    their pieces.
    """

    def __init__(
        self,
        store: ObjectStore,
        metrics: ObjectMetrics | None = None,
        *,
        tries: int = DEFAULT_TRIES,
        first_wait_s: float = DEFAULT_FIRST_WAIT_S,
        clock: Clock | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`jitter` gives numbers in [0, 1): each wait is that share of its bound (full jitter)."""
        super().__init__(store)
        self._metrics = metrics or ObjectMetrics()
        self._tries = tries
        self._first_wait_s = first_wait_s
        self._clock = clock or SystemClock()
        self._jitter = jitter

    def _pass(self, operation: str, call: Callable[..., T], *given: Any, **options: Any) -> T:
        failures = 0
        while True:
            try:
                with self._timed(operation) as timing:
                    if operation in ("put", "replace"):
                        timing.bytes = len(given[1])
                    found = call(*given, **options)
                    if isinstance(found, bytes):
                        timing.bytes = len(found)
                    elif isinstance(found, list):
                        timing.bytes = sum(map(len, found))
                    return found
            except AnalemmaError as exc:
                failures += 1
                if failures >= self._tries or not is_transient(exc):
                    raise
            self._clock.sleep(min(self._first_wait_s * 2 ** (failures - 1), LONGEST_WAIT_S) * self._jitter())

    def put_stream(self, key: str, chunks: Iterable[bytes], *, metadata: Mapping[str, str] | None = None) -> None:
        with self._timed("put_stream") as timing:
            self._store.put_stream(key, _counted(chunks, timing), metadata=metadata)

    def open_read(self, key: str) -> Iterator[bytes]:
        with self._timed("open_read") as timing:
            yield from _counted(self._store.open_read(key), timing)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        with self._timed("list"):
            yield from self._store.list(prefix)

    def health(self) -> None:
        # Not tried again: whoever asks wants to know how it is now.
        self._store.health()

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
            self._metrics.record(_COUNTED_AS[operation], self._clock.monotonic() - started, timing.bytes, failed=failed)


def _counted(chunks: Iterable[bytes], timing: _Timing) -> Iterator[bytes]:
    for chunk in chunks:
        timing.bytes += len(chunk)
        yield chunk
