"""Collects the problems of one contract, each with the line of what it is about."""

from __future__ import annotations

from dataclasses import dataclass, field

from analemma.contracts.located import Located
from analemma.contracts.problems import Problem

Place = tuple[str | int, ...]
"""A path into a contract's document: `("slices", 0, "type")`."""


@dataclass(slots=True)
class Reporter:
    """Takes problems of one document."""

    file: str
    node: Located
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def at(self, place: Place, reason: str, hint: str | None = None) -> None:
        """Something is wrong with the value there."""
        self.problems.append(Problem(self.file, self.node.line_of(*place), reason, hint))

    def at_key(self, place: Place, reason: str, hint: str | None = None) -> None:
        """Something is wrong with the key there."""
        self.problems.append(Problem(self.file, self.node.key_line_of(*place), reason, hint))

    def warn(self, place: Place, reason: str, hint: str | None = None) -> None:
        """Something is odd, but works."""
        self.warnings.append(Problem(self.file, self.node.line_of(*place), reason, hint))
