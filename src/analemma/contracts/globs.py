"""Names with wildcards, as contracts write them: `runs/*` and `**`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

SEPARATOR: Final = "/"
_PIECE: Final = re.compile(r"\*+|[^*]")


def matches(patterns: Iterable[str], name: str) -> bool:
    """Whether one of the patterns stands for the name. `*` is any characters but `/`, `**` any characters at all.

    >>> matches(["runs/*"], "runs/7"), matches(["runs/*"], "runs/7/tools"), matches(["runs/**"], "runs/7/tools")
    (True, False, True)
    """
    return any(pattern == name if not is_glob(pattern) else _matches(pattern, name) for pattern in patterns)


def is_glob(pattern: str) -> bool:
    """Whether it may stand for more than one name."""
    return "*" in pattern


def why_no_glob(pattern: str) -> str | None:
    """Why a text is no pattern; None if it is one."""
    return "has more than two `*` in a row" if "***" in pattern else None


def _matches(pattern: str, name: str) -> bool:
    # All ways at once, a character at a time: trying one after the other can take for ever.
    pieces = _pieces(pattern)
    places = _reached({0}, pieces)
    for character in name:
        after = set()
        for place in places:
            piece = pieces[place] if place < len(pieces) else ""
            if piece == "**" or (piece == "*" and character != SEPARATOR):
                after.add(place)
            elif piece == character and piece != "*":
                after.add(place + 1)
        places = _reached(after, pieces)
        if not places:
            return False
    return len(pieces) in places


def _reached(places: set[int], pieces: tuple[str, ...]) -> set[int]:
    """These, and those behind wildcards that stand for nothing."""
    found = set()
    for place in places:
        found.add(place)
        while place < len(pieces) and pieces[place] in ("*", "**"):
            place += 1
            found.add(place)
    return found


@lru_cache(maxsize=1024)
def _pieces(pattern: str) -> tuple[str, ...]:
    return tuple(_PIECE.findall(pattern))
