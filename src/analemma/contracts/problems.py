"""What is wrong with contracts: each problem with its place, all of them in one error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from analemma.errors import Invalid

SHOWN_IN_MESSAGE = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    file: str
    line: int | None
    """Counted from 1; None for what came as a dict."""
    reason: str
    hint: str | None = None

    @property
    def place(self) -> str:
        """`contracts.yaml:12`, as editors understand it."""
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}" + (f" ({self.hint})" if self.hint else "")


class ContractProblems(Invalid):
    """Contracts that cannot be used. `problems` has every one, ordered by file and line."""

    problems: tuple[Problem, ...]

    def __init__(self, problems: Iterable[Problem]) -> None:
        found = tuple(problems)
        shown = "; ".join(map(str, found[:SHOWN_IN_MESSAGE]))
        more = len(found) - SHOWN_IN_MESSAGE
        count = "1 problem" if len(found) == 1 else f"{len(found)} problems"
        super().__init__(
            f"{count} in contracts: {shown}" + (f"; and {more} more" if more > 0 else ""),
            hint="analemma contracts validate lists all of them",
            problems=found,
        )


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """By file and line, each once."""
    return tuple(sorted(dict.fromkeys(problems), key=lambda each: (each.file, each.line or 0)))
