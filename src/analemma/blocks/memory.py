"""Objects in a dictionary: for tests and for stores that live as long as their process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from analemma.blocks.port import ObjectInfo, ObjectStore, Pieces, Ranges, missing
from analemma.clock import Clock, SystemClock
from analemma.errors import Unavailable


class MemoryStore(ObjectStore):
    """An object store that forgets everything when it is closed."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[ObjectInfo, bytes]] | None = {}

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._objects or ())} objects)"

    def close(self) -> None:
        self._objects = None

    def _write(self, key: str, chunks: Iterable[bytes], metadata: dict[str, str], *, if_absent: bool) -> bool:
        data = b"".join(chunks)
        with self._opened() as objects:
            if if_absent and key in objects:
                return False
            objects[key] = ObjectInfo(key, len(data), self._clock.now_us(), metadata), data
            return True

    def _replace(self, key: str, data: bytes, expected: bytes) -> bytes | None:
        with self._opened() as objects:
            found = objects[key][1] if key in objects else None
            if found == expected:
                objects[key] = ObjectInfo(key, len(data), self._clock.now_us()), bytes(data)
            return found

    def _read(self, key: str, ranges: Ranges | None) -> Pieces:
        with self._opened(key) as objects:
            data = objects[key][1]
        return [data] if ranges is None else [data[offset : offset + length] for offset, length in ranges]

    def _head(self, key: str) -> ObjectInfo | None:
        with self._opened() as objects:
            return objects[key][0] if key in objects else None

    def _remove(self, keys: Sequence[str]) -> None:
        with self._opened() as objects:
            for key in keys:
                objects.pop(key, None)

    def _list(self, folder: str) -> Iterator[ObjectInfo]:
        start = folder and folder + "/"
        with self._opened() as objects:
            keys = sorted((key for key in objects if key.startswith(start)), key=str.encode)
            found = [replace(objects[key][0], metadata={}) for key in keys]
        yield from found

    @contextlib.contextmanager
    def _opened(self, key: str | None = None) -> Iterator[dict[str, tuple[ObjectInfo, bytes]]]:
        """All objects, and this one among them."""
        with self._lock:
            if self._objects is None:
                raise Unavailable("the memory object store is closed")
            if key is not None and key not in self._objects:
                raise missing(key)
            yield self._objects
