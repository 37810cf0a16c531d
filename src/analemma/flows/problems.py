"""What is wrong with a workflow document: each problem with its node and its place, all of them in one error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from analemma.contracts.located import Located
from analemma.contracts.problems import SHOWN_IN_MESSAGE, Problem
from analemma.contracts.reporting import Place, Reporter
from analemma.errors import Invalid


@dataclass(frozen=True, slots=True)
class WorkflowProblem(Problem):
    """One thing that is wrong, and the node that it is wrong with."""

    node: str | None = None

    def __str__(self) -> str:
        about = "" if self.node is None else f"node {self.node}: "
        return f"{self.place}: {about}{self.reason}" + (f" ({self.hint})" if self.hint else "")


class WorkflowProblems(Invalid):
    """A workflow that cannot be run. `problems` has every one, ordered by line."""

    problems: tuple[WorkflowProblem, ...]

    def __init__(self, problems: Iterable[WorkflowProblem]) -> None:
        found = tuple(problems)
        shown = "; ".join(map(str, found[:SHOWN_IN_MESSAGE]))
        more = len(found) - SHOWN_IN_MESSAGE
        count = "1 problem" if len(found) == 1 else f"{len(found)} problems"
        super().__init__(
            f"{count} in the workflow: {shown}" + (f"; and {more} more" if more > 0 else ""),
            hint="analemma flow validate lists all of them",
            problems=found,
        )


@dataclass(slots=True)
class WorkflowReporter(Reporter):
    """Takes problems of one document. A place that begins with a node's number is that node's."""

    found: list[WorkflowProblem] = field(default_factory=list)
    odd: list[WorkflowProblem] = field(default_factory=list)

    def at(self, place: Place, reason: str, hint: str | None = None) -> None:
        self.found.append(self._problem(self.node.line_of(*place), place, reason, hint))

    def at_key(self, place: Place, reason: str, hint: str | None = None) -> None:
        self.found.append(self._problem(self.node.key_line_of(*place), place, reason, hint))

    def warn(self, place: Place, reason: str, hint: str | None = None) -> None:
        self.odd.append(self._problem(self.node.line_of(*place), place, reason, hint))

    def _problem(self, line: int | None, place: Place, reason: str, hint: str | None) -> WorkflowProblem:
        return WorkflowProblem(self.file, line, reason, hint, self._node_at(place))

    def _node_at(self, place: Place) -> str | None:
        if len(place) < 2 or place[0] != "nodes" or not isinstance(place[1], int):
            return None
        document: Located | None = self.node.parts.get("nodes")
        value = None if document is None else document.value[place[1]]
        known = value.get("id") if isinstance(value, dict) else None
        return known[:64] if isinstance(known, str) and known else f"number {place[1] + 1}"


def in_order(problems: Iterable[WorkflowProblem]) -> tuple[WorkflowProblem, ...]:
    """By line, each once."""
    return tuple(sorted(dict.fromkeys(problems), key=lambda each: each.line or 0))
