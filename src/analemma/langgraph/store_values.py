"""What the LangGraph store accepts: namespaces, keys, values, times to live, pages; and their stored form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any

import orjson

from analemma.canon.canonical_json import MAXIMUM_DEPTH, canonical_json, parse_json
from analemma.errors import Corrupt, Invalid, Limit

NAMESPACE_BYTES = 1024
KEY_BYTES = 1024
"""Both together fit one index entry of PostgreSQL (2,704 bytes)."""
VALUE_BYTES = 16 << 20
LONGEST_TTL_MINUTES = 1e9
"""About 1,900 years."""

_SEPARATOR = b"\0"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def encode_namespace(namespace: Any) -> bytes:
    """A namespace's labels as one key, in which byte order is the order of the tuples. Labels are text, not empty,
    without periods and zero characters, as `BaseStore` asks."""
    # Text is a sequence of labels too, but nobody means that.
    if isinstance(namespace, str | bytes):
        raise Invalid(f"the namespace is of type {type(namespace).__name__}", hint="give it as a tuple of labels")
    encoded = _SEPARATOR.join([_encode(label, "label of the namespace") for label in namespace])
    if len(encoded) > NAMESPACE_BYTES:
        raise Invalid(
            f"the namespace is {len(encoded)} bytes long",
            hint=f"the limit is {NAMESPACE_BYTES} bytes of UTF-8, with one byte between two labels",
        )
    return encoded


def decode_namespace(encoded: bytes) -> tuple[str, ...]:
    """The labels of a stored namespace."""
    return tuple(encoded.decode().split("\0"))


def check_key(key: Any) -> str:
    """The key, if it is short text."""
    size = len(_encode(key, "key"))
    if size > KEY_BYTES:
        raise Invalid(f"the key is {size} bytes long", hint=f"the limit is {KEY_BYTES} bytes of UTF-8")
    assert isinstance(key, str)
    return key


def encode_value(value: Any) -> bytes:
    """A value as JSON. Unlike canonical JSON it keeps the order of keys, and `1.0` stays a float."""
    if not isinstance(value, Mapping):
        raise Invalid(f"the value is of type {type(value).__name__}", hint="an item's value is a mapping")
    value = dict(value)
    try:
        canonical_json(value)
    except Invalid:
        # Perhaps only tuples and subclasses, which JSON has forms for; if not, the same complaint again.
        value = _plain(value, ())
        canonical_json(value)
    try:
        data = orjson.dumps(value)
    except TypeError:
        # It was checked above: what is left are integers beyond 64 bits.
        data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    if len(data) > VALUE_BYTES:
        raise Limit(
            f"the value is {len(data)} bytes of JSON",
            hint=f"the limit is {VALUE_BYTES}; keep large data in a thread's state, or elsewhere with its name here",
        )
    return data


def decode_value(data: bytes) -> dict[str, Any]:
    """The value that was stored."""
    try:
        value: dict[str, Any] = parse_json(data)
    except Invalid as exc:
        raise Corrupt(f"a stored value is {exc.message}", hint="restore it from a backup") from exc
    return value


def ttl_us(minutes: Any) -> int | None:
    """A time to live in microseconds; None: for ever."""
    if minutes is None:
        return None
    if isinstance(minutes, bool) or not isinstance(minutes, int | float):
        raise Invalid(f"the time to live is of type {type(minutes).__name__}", hint="give it as minutes")
    if not (isfinite(minutes) and 0 <= minutes <= LONGEST_TTL_MINUTES):
        raise Invalid(f"not a time to live: {minutes}", hint=f"give it as minutes, at most {LONGEST_TTL_MINUTES:.0f}")
    return round(minutes * 60_000_000)


def check_count(count: Any, what: str) -> int:
    """A limit or an offset."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise Invalid(f"not {what}: {count!r}", hint="give a whole number, zero or more")
    return count


def _encode(text: Any, what: str) -> bytes:
    if not isinstance(text, str):
        raise Invalid(f"the {what} is of type {type(text).__name__}", hint="give it as text")
    if "\0" in text:
        raise Invalid(f"the {what} holds a NUL character", hint="remove it")
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise Invalid(f"the {what} is not valid Unicode", hint="remove the lone surrogate") from exc


def _plain(value: Any, within: tuple[int, ...]) -> Any:
    """The value with lists for tuples, and the types of JSON for their subclasses. What has no form, or is inside of
    itself, stays as it is."""
    if len(within) > MAXIMUM_DEPTH or id(value) in within:
        return value
    if isinstance(value, dict):
        inside = (*within, id(value))
        return {str.__str__(k) if isinstance(k, str) else k: _plain(item, inside) for k, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, (*within, id(value))) for item in value]
    # By the base class: an enum's own conversions give its name.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else value
