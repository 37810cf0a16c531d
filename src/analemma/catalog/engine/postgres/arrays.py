"""How columns travel to PostgreSQL: its binary array format, written directly.

psycopg's own list dumper inspects every element in Python, which for a commit costs more than the commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Any

from psycopg import Connection
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import BytesBinaryDumper, StrBinaryDumper

from analemma.catalog.engine.sql import Blobs, Integers, Texts

# Dimensions, whether there are NULLs, element type, length, lower bound.
_HEADER = Struct(">iiIii")
_LENGTH = Struct(">i")
_INTEGER = Struct(">iq")
_NULL = _LENGTH.pack(-1)

BYTEA, INT8, TEXT = 17, 20, 25
BYTEA_ARRAY, INT8_ARRAY, TEXT_ARRAY = 1001, 1016, 1009


class _ArrayDumper(Dumper):
    """One column. `element` is the type of what is in it."""

    format = Format.BINARY
    element: int

    def dump(self, obj: Any) -> Buffer:
        if not obj:
            return _HEADER.pack(0, 0, self.element, 0, 1)[:12]
        return _HEADER.pack(1, 1, self.element, len(obj), 1) + b"".join(self.parts(obj))

    def parts(self, values: Any) -> list[bytes]:
        """What the elements are sent as."""
        raise NotImplementedError


class BlobsDumper(_ArrayDumper):
    """bytea[]"""

    oid, element = BYTEA_ARRAY, BYTEA

    def parts(self, values: Iterable[bytes | None]) -> list[bytes]:
        pack = _LENGTH.pack
        parts = []
        for value in values:
            if value is None:
                parts.append(_NULL)
            else:
                parts += (pack(len(value)), value)
        return parts


class IntegersDumper(_ArrayDumper):
    """bigint[]"""

    oid, element = INT8_ARRAY, INT8

    def parts(self, values: Iterable[int | None]) -> list[bytes]:
        pack = _INTEGER.pack
        return [_NULL if value is None else pack(8, value) for value in values]


class TextsDumper(BlobsDumper):
    """text[]"""

    oid, element = TEXT_ARRAY, TEXT

    def parts(self, values: Iterable[Any]) -> list[bytes]:
        return super().parts([None if value is None else value.encode() for value in values])


def register(connection: Connection[Any]) -> None:
    """Make everything binary, and every integer a bigint.

    psycopg would choose an integer's type by its magnitude, and each choice would be another prepared statement.
    """
    adapters = connection.adapters
    adapters.register_dumper(int, Int8BinaryDumper)
    adapters.register_dumper(bytes, BytesBinaryDumper)
    adapters.register_dumper(str, StrBinaryDumper)
    adapters.register_dumper(Blobs, BlobsDumper)
    adapters.register_dumper(Integers, IntegersDumper)
    adapters.register_dumper(Texts, TextsDumper)
