"""How columns travel to PostgreSQL: its binary array format, written directly.

psycopg's own list dumper inspects every element in Python, which for a commit costs more than the commit.
"""

from __future__ import annotations

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


class BlobsDumper(Dumper):
    """bytea[]"""

    format = Format.BINARY
    oid = BYTEA_ARRAY

    def dump(self, obj: Blobs) -> Buffer:
        if not obj:
            return _HEADER.pack(0, 0, BYTEA, 0, 1)[:12]
        pack = _LENGTH.pack
        parts = [_HEADER.pack(1, 1, BYTEA, len(obj), 1)]
        for value in obj:
            if value is None:
                parts.append(_NULL)
            else:
                parts.append(pack(len(value)))
                parts.append(value)
        return b"".join(parts)


class IntegersDumper(Dumper):
    """bigint[]"""

    format = Format.BINARY
    oid = INT8_ARRAY

    def dump(self, obj: Integers) -> Buffer:
        if not obj:
            return _HEADER.pack(0, 0, INT8, 0, 1)[:12]
        pack = _INTEGER.pack
        parts = [_NULL if value is None else pack(8, value) for value in obj]
        return _HEADER.pack(1, 1, INT8, len(obj), 1) + b"".join(parts)


class TextsDumper(Dumper):
    """text[]"""

    format = Format.BINARY
    oid = TEXT_ARRAY

    def dump(self, obj: Texts) -> Buffer:
        if not obj:
            return _HEADER.pack(0, 0, TEXT, 0, 1)[:12]
        parts = [_HEADER.pack(1, 1, TEXT, len(obj), 1)]
        for value in obj:
            if value is None:
                parts.append(_NULL)
            else:
                data = value.encode()
                parts += (_LENGTH.pack(len(data)), data)
        return b"".join(parts)


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
