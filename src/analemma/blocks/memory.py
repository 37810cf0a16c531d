"""Objects in a dictionary: for tests and for stores that live as long as their process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from analemma.blocks.port import ObjectInfo, ObjectStore, Pieces, Ranges, missing
from analemma.clock import Clock, SystemClock
from analemma.errors import Unavailable


@dataclass(frozen=True, slots=True)
class _Stored:
    data: bytes
    metadata: dict[str, str]
    modified_us: int
    tags: dict[str, str] = field(default_factory=dict)


class MemoryStore(ObjectStore):
    """An object store that forgets everything when it is closed."""

    supports_tags = True

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._objects: dict[str, _Stored] | None = {}

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._objects or ())} objects)"

    def tag(self, key: str, tags: Mapping[str, str]) -> None:
        with self._opened() as objects:
            objects[key] = replace(_found(objects, key), tags=dict(tags))

    def tags(self, key: str) -> dict[str, str]:
        """What `tag` stored; for tests."""
        with self._opened() as objects:
            return dict(objects[key].tags) if key in objects else {}

    def close(self) -> None:
        self._objects = None

    def _write(self, key: str, chunks: Iterable[bytes], metadata: dict[str, str], *, if_absent: bool) -> bool:
        stored = _Stored(b"".join(chunks), metadata, self._clock.now_us())
        with self._opened() as objects:
            if if_absent and key in objects:
                return False
            objects[key] = stored
            return True

    def _replace(self, key: str, data: bytes, expected: bytes) -> bytes | None:
        with self._opened() as objects:
            found = objects[key].data if key in objects else None
            if found == expected:
                objects[key] = _Stored(bytes(data), {}, self._clock.now_us())
            return found

    def _read(self, key: str, ranges: Ranges | None) -> Pieces:
        with self._opened() as objects:
            data = _found(objects, key).data
        return [data] if ranges is None else [data[offset : offset + length] for offset, length in ranges]

    def _head(self, key: str) -> ObjectInfo | None:
        with self._opened() as objects:
            return _info(objects, key) if key in objects else None

    def _remove(self, keys: Sequence[str]) -> None:
        with self._opened() as objects:
            for key in keys:
                objects.pop(key, None)

    def _list(self, folder: str) -> Iterator[ObjectInfo]:
        start = folder and folder + "/"
        with self._opened() as objects:
            keys = sorted((key for key in objects if key.startswith(start)), key=str.encode)
            found = [replace(_info(objects, key), metadata={}) for key in keys]
        yield from found

    @contextlib.contextmanager
    def _opened(self) -> Iterator[dict[str, _Stored]]:
        with self._lock:
            if self._objects is None:
                raise Unavailable("the memory object store is closed")
            yield self._objects


def _found(objects: Mapping[str, _Stored], key: str) -> _Stored:
    if key not in objects:
        raise missing(key)
    return objects[key]


def _info(objects: Mapping[str, _Stored], key: str) -> ObjectInfo:
    stored = objects[key]
    return ObjectInfo(key, len(stored.data), stored.modified_us, dict(stored.metadata))
