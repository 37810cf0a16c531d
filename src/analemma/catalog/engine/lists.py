"""How lists travel to a database: to PostgreSQL as arrays in its binary format, to SQLite as JSON.

psycopg's own list dumper inspects every element in Python, which for a commit costs more than the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from struct import Struct
from typing import Any

import orjson

from analemma.errors import Corrupt

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


def as_json(values: Sequence[Any] | None) -> str | None:
    """A list of numbers or texts, or of rows of them."""
    return None if values is None else orjson.dumps(list(values)).decode()


def joined(values: Sequence[bytes]) -> bytes:
    """JSON has no bytes: one value with all ids, one after the other, and a list of as many places."""
    together = b"".join(values)
    if len(together) != width(values) * len(values):
        # Ids from outside are checked where they come in, so some row has one that was cut or made longer.
        raise Corrupt(
            f"an id of {width(values)} bytes stands among others of another length: a row of the catalog is damaged",
            hint="run verify, which names the row; restore the catalog from a backup",
        )
    return together


def width(values: Sequence[bytes]) -> int:
    """The length of each id."""
    return len(values[0]) if values else 0


def places(values: Sequence[bytes]) -> str:
    """One for each id. Counting them up takes a third of the time that a recursion does."""
    return f"[{','.join('0' * len(values))}]"
