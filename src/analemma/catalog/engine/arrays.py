"""Columns of values, for statements that take many rows in one go.

Plain lists would do, but their element type is then guessed from the elements, each time and for each column.
"""

from __future__ import annotations

from collections.abc import Sequence


class Blobs(list["bytes | None"]):
    """A column of bytes."""


class Integers(list["int | None"]):
    """A column of 64-bit integers."""


class Texts(list["str | None"]):
    """A column of text."""


Column = Blobs | Integers | Texts


def unless_empty(column: Column) -> Sequence[bytes | int | str | None] | None:
    """The column, or None when it says nothing: the database pads it with NULL by itself."""
    return column if any(value is not None for value in column) else None
