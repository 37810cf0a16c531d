"""Semantic versions (semver.org, 2.0.0): text in, something that can be ordered out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import total_ordering
from typing import Final

from analemma.errors import Invalid

_NUMBER: Final = r"(0|[1-9][0-9]{0,8})"
_VERSION: Final = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}"
    r"(?:-((?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*))?"
)
MAXIMUM_LENGTH: Final = 64


class Level(IntEnum):
    """How large a step is."""

    NONE = 0
    PATCH = 1
    MINOR = 2
    MAJOR = 3


@total_ordering
@dataclass(frozen=True, slots=True)
class SemanticVersion:
    """MAJOR.MINOR.PATCH, perhaps with a pre-release. No build metadata: it would name one version twice."""

    major: int
    minor: int
    patch: int
    prerelease: str = ""

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}" + (f"-{self.prerelease}" if self.prerelease else "")

    def __lt__(self, other: SemanticVersion) -> bool:
        return self._order() < other._order()

    def step_to(self, other: SemanticVersion) -> Level:
        """Which of the numbers a later version raises first; NONE if it is not later."""
        if other <= self:
            return Level.NONE
        if other.major != self.major:
            return Level.MAJOR
        return Level.MINOR if other.minor != self.minor else Level.PATCH

    def _order(self) -> tuple[int, int, int, bool, list[tuple[bool, int, str]]]:
        # A release is later than its pre-releases; numbers come before words.
        parts = self.prerelease.split(".") if self.prerelease else []
        order = [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
        return self.major, self.minor, self.patch, not parts, order


def parse_semver(text: str) -> SemanticVersion:
    """`"1.4.0"` -> SemanticVersion(1, 4, 0); Invalid for anything else than a semantic version."""
    found = _VERSION.fullmatch(text) if len(text) <= MAXIMUM_LENGTH else None
    if found is None:
        raise Invalid(f"not a semantic version: {text!r}", hint="write MAJOR.MINOR.PATCH, as in 1.4.0")
    return SemanticVersion(int(found[1]), int(found[2]), int(found[3]), found[4] or "")
