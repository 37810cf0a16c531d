"""Pointers of the form `__s3_pointer__`, which other programs write: read only from buckets that the settings list."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from analemma.blocks.port import ObjectStore, check_key
from analemma.errors import Corrupt, Denied, Invalid, Limit
from analemma.payloads.json import S3_POINTER_KEY
from analemma.payloads.pointers import shown

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
    """A field's value in an object that another program wrote as JSON."""

    bucket: str
    key: str
    stated_bytes: int | None
    checksum: str | None
    """The first digits of its MD5."""
    source: ForeignObjects

    @property
    def size_bytes(self) -> int:
        """How much there is to load, as far as its pointer says."""
        return self.stated_bytes or 0

    def load(self) -> Any:
        """The value."""
        place, data = f"s3://{self.bucket}/{self.key}", bytearray()
        for chunk in self.source.open(self.bucket).open_read(self.key):
            data += chunk
            if len(data) > LARGEST_OBJECT_BYTES:
                raise Limit(f"{place} is larger than {LARGEST_OBJECT_BYTES} bytes", key=self.key)
        if self.stated_bytes not in (None, len(data)):
            raise Corrupt(f"{place} has {len(data)} bytes, its pointer says {self.stated_bytes}", key=self.key)
        if self.checksum is not None:
            found = hashlib.md5(data, usedforsecurity=False).hexdigest()[: len(self.checksum)]
            if found != self.checksum.lower():
                raise Corrupt(f"{place} has the checksum {found}, its pointer says {self.checksum}", key=self.key)
        try:
            return orjson.loads(data)
        except ValueError as exc:
            raise Corrupt(f"{place} is no JSON", key=self.key) from exc


class ForeignObjects:
    """The listed buckets, opened when first needed. With none listed nothing is ever read."""

    def __init__(self, buckets: dict[str, str], open_store: Callable[[str], ObjectStore]) -> None:
        self._buckets = buckets
        self._open_store = open_store
        self._stores: dict[str, ObjectStore] = {}

    def recognise(self, value: Any) -> bool:
        """Whether a field's value is such a pointer; with no bucket listed it is data like any other."""
        return bool(self._buckets) and isinstance(value, dict) and bool(value.get(S3_POINTER_KEY))

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
        return ForeignField(bucket, check_key(key), size, checksum, self)

    def open(self, bucket: str) -> ObjectStore:
        """The objects of a listed bucket."""
        store = self._stores.get(bucket)
        return store or self._stores.setdefault(bucket, self._open_store(self._buckets[bucket]))

    def close(self) -> None:
        """Give back connections; safe to call twice."""
        with ExitStack() as closing:
            while self._stores:
                closing.callback(self._stores.popitem()[1].close)
