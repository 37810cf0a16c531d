"""Where a page ended, as text that callers hand back: it says which question it belongs to, and damage is noticed.

A cursor grants nothing. Who can ask the question can also make up a place in its answer; the check is against mistakes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Any, Final

from analemma.canon.canonical_json import canonical_json, parse_json
from analemma.errors import Invalid

_FORMAT: Final = 1
_CHECK_BYTES: Final = 8
_LONGEST: Final = 4096


def encode_cursor(question: tuple[Any, ...], place: str | int) -> str:
    """The cursor for what comes after a place in the answer to a question."""
    body = canonical_json([_FORMAT, place])
    return _encoded(_check(question, body) + body)


def decode_cursor(question: tuple[Any, ...], cursor: str) -> str | int:
    """The place that a cursor names; Invalid if it is damaged, or that of another question."""
    if not isinstance(cursor, str) or not 0 < len(cursor) <= _LONGEST:
        raise no_cursor()
    try:
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as exc:
        raise no_cursor() from exc
    check, body = data[:_CHECK_BYTES], data[_CHECK_BYTES:]
    if check != _check(question, body) or _encoded(data) != cursor:
        raise no_cursor()
    number, place = parse_json(body)
    if number != _FORMAT:
        raise no_cursor()
    found: str | int = place
    return found


def _encoded(data: bytes) -> str:
    """Base 64 as it stands in URLs. One text for one place: trailing bits could otherwise be anything."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _check(question: tuple[Any, ...], body: bytes) -> bytes:
    return hashlib.blake2b(canonical_json(list(question)) + b"\n" + body, digest_size=_CHECK_BYTES).digest()


def no_cursor() -> Invalid:
    """What whoever gives something else in the place of a cursor is told."""
    return Invalid("not a cursor of this query", hint="give `next_cursor` of a page of the same query, unchanged")
