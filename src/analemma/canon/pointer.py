"""Places in values as JSON pointers (RFC 6901), text for people and tuples of tokens for code; and what an operation
does there (RFC 6902)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from analemma.errors import Invalid

Path = tuple[str, ...]

MAXIMUM_DEPTH = 128
"""How deep containers may nest, and so the longest path. In what is stored, tags around tags count as well."""
LONGEST_INDEX = 20
"""Digits; no list is that long, and converting thousands of digits is slow or refused."""
_STRAY_TILDE = re.compile(r"~(?![01])")

OPERATIONS = ("put", "add", "replace", "remove", "discard")


class Operation(NamedTuple):
    """`add`, `replace` and `remove` mean what RFC 6902 says. `put` sets a field or an existing item, whatever was
    there; `discard` removes what is there, if anything is."""

    op: Literal["put", "add", "replace", "remove", "discard"]
    path: Path
    value: Any = None


def parse_pointer(text: str) -> Path:
    """`"/a~1b/0"` -> `("a/b", "0")`; `""` is the whole value."""
    if text == "":
        return ()
    if not text.startswith("/"):
        raise Invalid(f"not a JSON pointer: {text!r}", hint="a pointer is empty or starts with '/'", pointer=text)
    return tuple(_unescape(token, text) for token in text[1:].split("/"))


def format_pointer(path: Iterable[str | int]) -> str:
    """`("a/b", 0)` -> `"/a~1b/0"`."""
    return "".join(["/" + str(token).replace("~", "~0").replace("/", "~1") for token in path])


def list_index(token: str, length: int, *, inserting: bool = False) -> int:
    """Read a token as a position in a list of this length; `-` is the place after the last item, for inserting."""
    if inserting and token == "-":
        return length
    if not token.isascii() or not token.isdigit() or (token[0] == "0" and token != "0"):
        raise Invalid(f"{token!r} is not a list index", hint="use a number without leading zeros, or '-' to append")
    if len(token) > LONGEST_INDEX:
        raise IndexError(token)
    index = int(token)
    if index > length or (index == length and not inserting):
        raise IndexError(index)
    return index


def _unescape(token: str, whole: str) -> str:
    if "~" not in token:
        return token
    if _STRAY_TILDE.search(token):
        raise Invalid(f"not a JSON pointer: {whole!r}", hint="write '~' as '~0' and '/' as '~1'", pointer=whole)
    return token.replace("~1", "/").replace("~0", "~")
