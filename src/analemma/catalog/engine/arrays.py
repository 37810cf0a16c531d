"""What PostgreSQL's arrays are made from: lists that say what their elements are.

Callers give plain ones; a statement names the types, so that none is guessed from the elements.
"""

from __future__ import annotations


class Blobs(list["bytes | None"]):
    """A column of bytes."""


class Integers(list["int | None"]):
    """A column of 64-bit integers."""


class Texts(list["str | None"]):
    """A column of text."""


Column = Blobs | Integers | Texts
