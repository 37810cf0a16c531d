"""Objects in a dictionary: for tests and for stores that live as long as their process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from analemma.blocks.port import (
    ObjectInfo,
    check_key,
    check_metadata,
    check_prefix,
    check_range,
    missing,
    replaced_by_another,
    settle_existing,
    short_read,
)
from analemma.clock import Clock, SystemClock
from analemma.errors import Unavailable

READ_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Stored:
    data: bytes
    metadata: dict[str, str]
    modified_us: int


class MemoryStore:
    """An object store that forgets everything when it is closed."""

    supports_tags = True

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._objects: dict[str, _Stored] = {}
        self._tags: dict[str, dict[str, str]] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._objects)} objects)"

    def put(self, key: str, data: bytes, *, metadata: Mapping[str, str] | None = None, if_absent: bool = False) -> None:
        check_key(key)
        stored = _Stored(bytes(data), check_metadata(metadata), self._clock.now_us())
        with self._lock:
            self._check_open()
            if not if_absent or key not in self._objects:
                self._objects[key] = stored
                self._tags.pop(key, None)
                return
        settle_existing(self, key, data)

    def put_stream(self, key: str, chunks: Iterable[bytes], *, metadata: Mapping[str, str] | None = None) -> None:
        check_key(key)
        self.put(key, b"".join(chunks), metadata=metadata)

    def replace(self, key: str, data: bytes, *, expected: bytes) -> None:
        check_key(key)
        with self._lock:
            self._check_open()
            stored = self._objects.get(key)
            found = None if stored is None else stored.data
            if found == expected:
                self._objects[key] = _Stored(bytes(data), {}, self._clock.now_us())
                self._tags.pop(key, None)
            elif found != data:
                raise replaced_by_another(key)

    def get(self, key: str) -> bytes:
        return self._stored(key).data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_range(offset, length)
        data = self._stored(key).data[offset : offset + length]
        if len(data) != length:
            raise short_read(key, offset, length, len(data))
        return data

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.get_range(key, offset, length) for offset, length in ranges]

    def open_read(self, key: str) -> Iterator[bytes]:
        data = self._stored(key).data
        for offset in range(0, len(data), READ_CHUNK_BYTES):
            yield data[offset : offset + READ_CHUNK_BYTES]

    def head(self, key: str) -> ObjectInfo | None:
        with self._lock:
            self._check_open()
            stored = self._objects.get(check_key(key))
        if stored is None:
            return None
        return ObjectInfo(key, len(stored.data), stored.modified_us, dict(stored.metadata))

    def delete(self, key: str) -> None:
        self.delete_many([key])

    def delete_many(self, keys: Iterable[str]) -> None:
        checked = [check_key(key) for key in keys]
        with self._lock:
            self._check_open()
            for key in checked:
                self._objects.pop(key, None)
                self._tags.pop(key, None)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        folder = check_prefix(prefix)
        start = folder + "/" if folder else ""
        with self._lock:
            self._check_open()
            found = sorted((key for key in self._objects if key.startswith(start)), key=str.encode)
        for key in found:
            stored = self._objects.get(key)
            if stored is not None:
                yield ObjectInfo(key, len(stored.data), stored.modified_us)

    def tag(self, key: str, tags: Mapping[str, str]) -> None:
        self._stored(key)
        self._tags[key] = dict(tags)

    def tags(self, key: str) -> dict[str, str]:
        """What `tag` stored; for tests."""
        return dict(self._tags.get(key, {}))

    def health(self) -> None:
        self._check_open()

    def close(self) -> None:
        self._closed = True
        self._objects.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the memory object store is closed")

    def _stored(self, key: str) -> _Stored:
        with self._lock:
            self._check_open()
            stored = self._objects.get(check_key(key))
        if stored is None:
            raise missing(key)
        return stored
