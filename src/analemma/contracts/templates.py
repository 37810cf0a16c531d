"""Texts with placeholders, `{tenantId}__{entityId}`: which placeholders they may have, and what they become."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from analemma.errors import Invalid

_PIECE: Final = re.compile(r"\{(\w+|/[^{}]+)\}|([^{}]+)")


PATH_MARK: Final = "/"
"""What a placeholder begins with that is a path."""


@dataclass(frozen=True, slots=True)
class Template:
    """A text with placeholders."""

    text: str
    pieces: tuple[tuple[bool, str], ...]
    """Each a placeholder's name (True) or text that stays (False)."""

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(piece for is_placeholder, piece in self.pieces if is_placeholder)

    def render(self, values: Mapping[str, str]) -> str:
        """The text with every placeholder filled in."""
        return "".join(values[piece] if is_placeholder else piece for is_placeholder, piece in self.pieces)


def parse_template(text: str, allowed: Collection[str], *, paths: bool = False) -> Template:
    """Read a text; Invalid for stray braces and for placeholders that are not among those allowed. With `paths`, those
    that begin with `/` are: each is a path to one value."""
    pieces: list[tuple[bool, str]] = []
    position = 0
    while position < len(text):
        piece = _PIECE.match(text, position)
        if piece is None:
            raise Invalid(f"a stray brace in {text!r}", hint="placeholders are written {name}")
        pieces.append((True, piece[1]) if piece[1] else (False, piece[2]))
        position = piece.end()
    template = Template(text, tuple(pieces))
    unknown = [
        name for name in template.placeholders if name not in allowed and not (paths and name.startswith(PATH_MARK))
    ]
    if unknown:
        known = ", ".join(f"{{{name}}}" for name in allowed)
        raise Invalid(f"unknown placeholder {{{unknown[0]}}} in {text!r}", hint=f"there are {known}")
    return template
