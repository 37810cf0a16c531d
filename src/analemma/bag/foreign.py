"""Pointers of the form `__s3_pointer__`, which other programs write: read only from buckets that the settings list."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from analemma.bag.payload_json import S3_POINTER_KEY
from analemma.bag.pointers import shown
from analemma.blocks.port import ObjectStore, check_key
from analemma.errors import Corrupt, Denied, Invalid, Limit

LARGEST_OBJECT_BYTES = 256 * 1024 * 1024
_KNOWN_KEYS = {S3_POINTER_KEY, "bucket", "key", "size_bytes", "checksum", "field_name"}
_CHECKSUM = re.compile(r"[0-9a-fA-F]{8,32}")


def parse_buckets(text: str | None) -> dict[str, str]:
    """The buckets that a setting lists, each with the URL that opens it: names or `s3://` URLs, separated by commas.

    >>> parse_buckets("flows, s3://old?region=eu-west-1")
    {'flows': 's3://flows', 'old': 's3://old?region=eu-west-1'}
    """
    buckets: dict[str, str] = {}
    for item in (text or "").split(","):
        if not (item := item.strip()):
            continue
        url = item if "://" in item else f"s3://{item}"
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc or parts.path.strip("/"):
            raise Invalid(
                "payload_s3_buckets lists something that is no bucket", hint="write bucket or s3://bucket?..."
            )
        buckets[parts.netloc] = url
    return buckets


@dataclass(frozen=True, slots=True)
class ForeignField:
    """A `LazyField` in an object that another program wrote as JSON."""

    name: str
    bucket: str
    key: str
    stated_bytes: int | None
    checksum: str | None
    """The first digits of its MD5."""
    source: ForeignObjects

    @property
    def size_bytes(self) -> int:
        return self.stated_bytes or 0

    def load(self) -> Any:
        data = self.source.read(self)
        try:
            return orjson.loads(data)
        except ValueError as exc:
            raise Corrupt(f"s3://{self.bucket}/{self.key} is no JSON", key=self.key) from exc


class ForeignObjects:
    """The listed buckets, opened when first needed. With none listed nothing is ever read."""

    def __init__(self, buckets: dict[str, str], open_store: Callable[[str], ObjectStore]) -> None:
        self._buckets = buckets
        self._open_store = open_store
        self._stores: dict[str, ObjectStore] = {}
        self._lock = threading.Lock()

    @property
    def enabled(self) -> bool:
        """Whether `__s3_pointer__` means anything; otherwise such a dict is data like any other."""
        return bool(self._buckets)

    def recognise(self, value: Any) -> bool:
        """Whether a field's value is such a pointer."""
        return self.enabled and isinstance(value, dict) and bool(value.get(S3_POINTER_KEY))

    def field(self, name: str, value: dict[str, Any]) -> ForeignField:
        """The field that a pointer stands for; Denied unless its bucket is listed, Invalid if it is malformed."""
        bucket, key, size, checksum = (value.get(each) for each in ("bucket", "key", "size_bytes", "checksum"))
        if (
            value[S3_POINTER_KEY] is not True
            or not set(value) <= _KNOWN_KEYS
            or type(bucket) is not str
            or type(key) is not str
            or not (size is None or (type(size) is int and size >= 0))
            or not (checksum is None or (type(checksum) is str and _CHECKSUM.fullmatch(checksum)))
        ):
            raise Invalid(
                f"the S3 pointer {shown(name)} is malformed",
                hint="it names a bucket and a key; a checksum is the first 8 digits of the MD5, or more of them",
                field=name,
            )
        if bucket not in self._buckets:
            raise Denied(
                f"the S3 pointer {shown(name)} leads to a bucket that is not listed",
                hint="list the bucket in payload_s3_buckets",
                bucket=bucket,
            )
        if size is not None and size > LARGEST_OBJECT_BYTES:
            raise Limit(
                f"the S3 pointer {shown(name)} leads to {size} bytes", hint=f"the limit is {LARGEST_OBJECT_BYTES}"
            )
        return ForeignField(name, bucket, check_key(key), size, checksum, self)

    def read(self, field: ForeignField) -> bytes:
        """The object's bytes, never more than the limit."""
        store = self._store(field.bucket)
        data = bytearray()
        for chunk in store.open_read(field.key):
            data += chunk
            if len(data) > LARGEST_OBJECT_BYTES:
                raise Limit(
                    f"s3://{field.bucket}/{field.key} is larger than {LARGEST_OBJECT_BYTES} bytes", key=field.key
                )
        if field.stated_bytes is not None and len(data) != field.stated_bytes:
            raise Corrupt(
                f"s3://{field.bucket}/{field.key} has {len(data)} bytes, its pointer says {field.stated_bytes}",
                key=field.key,
            )
        if field.checksum is not None:
            found = hashlib.md5(data, usedforsecurity=False).hexdigest()[: len(field.checksum)]
            if found != field.checksum.lower():
                raise Corrupt(
                    f"s3://{field.bucket}/{field.key} has the checksum {found}, its pointer says {field.checksum}",
                    key=field.key,
                )
        return bytes(data)

    def close(self) -> None:
        """Give back connections; safe to call twice."""
        with self._lock, ExitStack() as closing:
            for store in self._stores.values():
                closing.callback(store.close)
            self._stores = {}

    def _store(self, bucket: str) -> ObjectStore:
        with self._lock:
            if bucket not in self._stores:
                self._stores[bucket] = self._open_store(self._buckets[bucket])
            return self._stores[bucket]
