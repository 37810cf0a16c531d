"""How lists travel to PostgreSQL: as arrays, in its binary format.

psycopg's own list dumper inspects every element in Python, which for a commit costs more than the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from struct import Struct
from typing import Any

# Dimensions, whether there are NULLs, element type, length, lower bound.
_HEADER = Struct(">iiIii")
_LENGTH = Struct(">i")
_BIGINT = Struct(">iq")
_INTEGER = Struct(">ii")
_NULL = _LENGTH.pack(-1)
_BYTEA, _INT8, _INT4, _TEXT = 17, 20, 23, 25


class Array(bytes):
    """A list as PostgreSQL takes it. What its elements are is said by the statement, so that none is guessed."""


def integers(values: Sequence[int | None], element: int = _INT8) -> Array:
    """bigint[], or integer[]"""
    size, pack = (8, _BIGINT.pack) if element == _INT8 else (4, _INTEGER.pack)
    return _array(element, len(values), [_NULL if value is None else pack(size, value) for value in values])


def blobs(values: Sequence[bytes | None], element: int = _BYTEA) -> Array:
    """bytea[]"""
    pack = _LENGTH.pack
    parts = []
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            parts += (pack(len(value)), value)
    return _array(element, len(values), parts)


def texts(values: Sequence[str | None]) -> Array:
    """text[]"""
    return blobs([None if value is None else value.encode() for value in values], _TEXT)


ARRAYS: Mapping[str, Callable[[Sequence[Any]], Array]] = {
    "bigint": integers,
    "integer": partial(integers, element=_INT4),
    "bytea": blobs,
    "text": texts,
}
"""By the type of the elements."""


def _array(element: int, length: int, parts: list[bytes]) -> Array:
    header = _HEADER.pack(1, 1, element, length, 1) if length else _HEADER.pack(0, 0, element, 0, 1)[:12]
    return Array(b"".join([header, *parts]))


def as_array(kind: str, place: int | None, rows: Sequence[Any] | None) -> Array | None:
    """One column of the rows, or all that is given as one."""
    if rows is None:
        return None
    return ARRAYS[kind](rows if place is None else [row[place] for row in rows])
