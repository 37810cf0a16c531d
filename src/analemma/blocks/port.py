"""The narrow face of an object store, how one is opened by its URL, and the rules every store shares: valid keys,
conditional writes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from analemma.errors import AnalemmaError, Conflict, Corrupt, Invalid, NotFound

MAX_KEY_BYTES = 512
MAX_SEGMENT_BYTES = 255
"""What file systems allow for one name."""
MAX_METADATA_BYTES = 2000
"""S3 allows 2 KB of names and values together; the smallest allowance among the clouds is everyone's."""

Ranges = Sequence[tuple[int, int]]
"""Each (offset, length)."""
Pieces = list[bytes]
READ_CHUNK_BYTES = 1 << 20

T = TypeVar("T")

_FORBIDDEN_IN_KEYS = re.compile(r"[\x00-\x1f\x7f-\x9f\\\ud800-\udfff]")
_METADATA_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What is known of one object without reading it. Listings carry no metadata."""

    key: str
    size: int
    modified_us: int
    """Microseconds since 1970-01-01Z, by the store's own clock."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Empty when none was given, or when the store keeps none."""


class ObjectStore:
    """Named, immutable-by-convention bytes. A `put` that returned is durable, and no reader ever sees half of one.

    A backend implements the methods whose names begin with an underscore; what they are given is checked already. All
    others are made of them, and any may be replaced by something better. It passes
    `analemma.testing.objects.ObjectStoreSuite`.
    """

    def put(self, key: str, data: bytes, *, metadata: Mapping[str, str] | None = None, if_absent: bool = False) -> None:
        """Store the bytes. With `if_absent`, an object that is already there is kept: equal content is success,
        other content is Conflict."""
        if not self._write(check_key(key), [data], check_metadata(metadata), if_absent=if_absent):
            settle_existing(self, key, data)

    def put_stream(self, key: str, chunks: Iterable[bytes], *, metadata: Mapping[str, str] | None = None) -> None:
        """Store a stream in bounded memory; if `chunks` raises, nothing appears under the key."""
        self._write(check_key(key), iter(chunks), check_metadata(metadata), if_absent=False)

    def replace(self, key: str, data: bytes, *, expected: bytes) -> None:
        """Store the bytes in one atomic step if the object holds the `expected` ones; Conflict if it holds others, or
        is not there. One that holds `data` already is success: perhaps our own write, whose answer was lost."""
        if self._replace(check_key(key), data, expected) not in (expected, data):
            raise Conflict(f"object {key} was replaced by somebody else", hint="read it, then decide again", key=key)

    def get(self, key: str) -> bytes:
        """The whole object, or NotFound."""
        return self._read(check_key(key), None)[0]

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Exactly these bytes; NotFound, or Corrupt when the object ends before they do."""
        return self.get_ranges(key, [(offset, length)])[0]

    def get_ranges(self, key: str, ranges: Ranges) -> list[bytes]:
        """`get_range` for each (offset, length), in the order asked."""
        for offset, length in ranges:
            if offset < 0 or length < 0:
                raise Invalid(f"range ({offset}, {length}) is negative")
        pieces = self._read(check_key(key), ranges)
        for (offset, length), piece in zip(ranges, pieces, strict=True):
            if len(piece) != length:
                raise short_read(key, offset, length, len(piece))
        return pieces

    def open_read(self, key: str) -> Iterator[bytes]:
        """The object's bytes piece by piece, in bounded memory. NotFound comes with the first piece at the latest."""
        return self._stream(check_key(key))

    def head(self, key: str) -> ObjectInfo | None:
        """Size, time and metadata; None when there is no such object."""
        return self._head(check_key(key))

    def delete(self, key: str) -> None:
        """Remove the object, durably; one that is not there is success."""
        self.delete_many([key])

    def delete_many(self, keys: Iterable[str]) -> None:
        """`delete` for each, in as few requests as the store allows."""
        self._remove([check_key(key) for key in keys])

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Everything below the folder `prefix` (whole segments; "" is everything), sorted by key, in bounded memory."""
        return self._list(check_prefix(prefix))

    def tag(self, key: str, tags: Mapping[str, str]) -> None:
        """Replace the object's tags, as far as the store can; nothing that correctness depends on."""
        check_key(key)

    def health(self) -> None:
        """Return if the store answers and, as far as can be told, would take a write; else Unavailable or Denied."""
        self.head("health")

    def close(self) -> None:
        """Give back handles; safe to call twice."""

    def _write(self, key: str, chunks: Iterable[bytes], metadata: dict[str, str], *, if_absent: bool) -> bool:
        """Store the bytes durably, in one atomic step. With `if_absent`, False if there was an object, and keep it.

        All that `put` is given comes as a list of one piece; of a stream nobody knows how long it is."""
        raise NotImplementedError

    def _replace(self, key: str, data: bytes, expected: bytes) -> bytes | None:
        """What the object holds, if any; in the same atomic step, if that is what was expected, store the new bytes."""
        raise NotImplementedError

    def _read(self, key: str, ranges: Ranges | None) -> Pieces:
        """These ranges, cut short where the object ends; None: one piece, the whole object. NotFound."""
        raise NotImplementedError

    def _stream(self, key: str) -> Iterator[bytes]:
        """The object piece by piece. Needed only where each range costs much, or objects may be overwritten."""
        info = self._head(key)
        if info is None:
            raise missing(key)
        for offset in range(0, info.size, READ_CHUNK_BYTES):
            yield self.get_range(key, offset, min(READ_CHUNK_BYTES, info.size - offset))

    def _head(self, key: str) -> ObjectInfo | None:
        """What is known of the object; None when there is none."""
        raise NotImplementedError

    def _remove(self, keys: Sequence[str]) -> None:
        """Remove these, durably, as far as they are there."""
        raise NotImplementedError

    def _list(self, folder: str) -> Iterator[ObjectInfo]:
        """All objects below the folder ("": all there are), in the order of the bytes of their whole keys."""
        raise NotImplementedError


class StoreWrapper(ObjectStore):
    """A store in front of another one: what is asked of it goes through `_pass` to the method of the same name."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._store!r})"

    def _pass(self, operation: str, call: Callable[..., T], *given: Any, **options: Any) -> T:
        return call(*given, **options)

    def delete_many(self, keys: Iterable[str]) -> None:
        # A list, so that it can be done again.
        self._pass("delete_many", self._store.delete_many, [*keys])

    def close(self) -> None:
        self._store.close()


def _passed(operation: str) -> Callable[..., Any]:
    @wraps(getattr(ObjectStore, operation))
    def method(self: StoreWrapper, *given: Any, **options: Any) -> Any:
        return self._pass(operation, getattr(self._store, operation), *given, **options)

    return method


for _operation in vars(ObjectStore):
    if not _operation.startswith("_") and _operation not in vars(StoreWrapper):
        setattr(StoreWrapper, _operation, _passed(_operation))


def open_objects(url: str, *, create: bool = True) -> ObjectStore:
    """The store that a URL or a plain path names; without `create`, a directory is made by the first write.

    `memory://`, `/some/directory`, `file:///some/directory`, `s3://bucket/prefix?endpoint=...&region=...&allow_http=true`,
    `gs://bucket/prefix`, `az://container/prefix?account_name=...`; other query settings are obstore's.
    """
    scheme, separator, rest = url.partition("://")
    if "\0" in unquote(url):
        raise no_store(scheme if separator else "path", "holds a NUL character")
    if not url:
        raise no_store(url, "is empty")
    # Each is loaded by those who have one.
    if not separator or scheme == "file":
        from analemma.blocks.local import LocalStore

        if separator and (not rest.startswith("/") or "?" in rest or "#" in rest):
            raise no_store(scheme, "needs an absolute path: file:///some/directory")
        return LocalStore(unquote(rest) if separator else url, create=create)
    if scheme == "memory":
        from analemma.blocks.memory import MemoryStore

        return MemoryStore()
    if scheme in ("s3", "gs", "az"):
        from analemma.blocks.cloud import open_bucket

        return open_bucket(scheme, url)
    raise no_store(scheme, "is not memory, file, s3, gs or az")


def no_store(scheme: str, reason: str) -> Invalid:
    """The error for a URL that names no object store. It may hold secrets, so it is not repeated."""
    return Invalid(f"object store URL {scheme!r} {reason}", hint="for example s3://bucket/prefix?region=eu-central-1")


def check_key(key: str) -> str:
    """Return a key that is safe for every store, or raise Invalid.

    Names that begin with a dot are refused, so `.` and `..` are, and every store has names of its own for bookkeeping.
    """
    if not key:
        raise Invalid("an object key is empty")
    if _FORBIDDEN_IN_KEYS.search(key):
        raise Invalid(f"object key {_shown(key)} has a control character, a backslash or a lone surrogate")
    if len(key.encode()) > MAX_KEY_BYTES:
        raise Invalid(f"object key {_shown(key)} is longer than {MAX_KEY_BYTES} bytes")
    for segment in key.split("/"):
        if not segment:
            raise Invalid(f"object key {_shown(key)} has an empty segment", hint="keys look like packs/ab/abcd")
        if segment.startswith("."):
            raise Invalid(f"object key {_shown(key)} has a segment that begins with a dot")
        if len(segment.encode()) > MAX_SEGMENT_BYTES:
            raise Invalid(f"object key {_shown(key)} has a segment longer than {MAX_SEGMENT_BYTES} bytes")
    return key


def check_prefix(prefix: str) -> str:
    """The folder a listing starts at, without a trailing slash; "" is the root."""
    return check_key(prefix.removesuffix("/")) if prefix else ""


def check_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return metadata that every store can keep, or raise Invalid."""
    checked = dict(metadata or {})
    for name, value in checked.items():
        if not _METADATA_NAME.fullmatch(name):
            raise Invalid(f"metadata name {_shown(name)} is not lower-case letters, digits and underscores")
        if _FORBIDDEN_IN_KEYS.search(value.replace("\\", "")):
            raise Invalid(f"metadata {name} has a control character or a lone surrogate")
    if sum(len(name) + len(quote_metadata(value)) for name, value in checked.items()) > MAX_METADATA_BYTES:
        raise Invalid(f"metadata is longer than {MAX_METADATA_BYTES} bytes")
    return checked


def quote_metadata(value: str) -> str:
    """The value in the ASCII that travels in HTTP headers; undone by `urllib.parse.unquote`."""
    return quote(value, safe="-_.~:/+@=,")


def missing(key: str) -> NotFound:
    """The error for an object that is not there."""
    return NotFound(f"no object {key}", key=key)


def short_read(key: str, offset: int, length: int, got: int) -> Corrupt:
    """The error for an object that ends before the range asked of it."""
    return Corrupt(
        f"object {key} ends early: {got} of {length} bytes at offset {offset}",
        hint="restore it from a second copy",
        key=key,
    )


def is_transient(error: BaseException) -> bool:
    """Whether trying again could help; adapters mark such errors with the fact `transient=True`."""
    return isinstance(error, AnalemmaError) and error.facts.get("transient") is True


def settle_existing(store: ObjectStore, key: str, data: bytes) -> None:
    """Decide a conditional write that met an object: equal content is success (perhaps our own write, whose answer
    was lost), other content is Conflict."""
    info = store.head(key)
    if info is not None and info.size == len(data):
        stored = hashlib.sha256()
        for chunk in store.open_read(key):
            stored.update(chunk)
        if stored.digest() == hashlib.sha256(data).digest():
            return
    raise Conflict(f"object {key} exists with other content", hint="objects are never overwritten", key=key)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:77] + "...")
