"""Where a run stands in its plan, as plain data, and where it goes next. Nothing here knows what segments do.

A plan is walked in its own order: what a segment leads to is marked, and the next marked segment runs. What nothing
marked is skipped, which is how the arm that a branch did not take falls away. Only a loop goes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from analemma.errors import Internal, Invalid, Limit
from analemma.flows.segments import Plan, Segment


@dataclass(frozen=True, slots=True)
class Done:
    """What the segment does was done."""


@dataclass(frozen=True, slots=True)
class Took:
    """A branch took an arm, counted from 0; the default is the last."""

    arm: int


@dataclass(frozen=True, slots=True)
class Again:
    """A loop decided whether its body runs (again)."""

    going_on: bool


Outcome = Done | Took | Again
DONE: Final = Done()


@dataclass(frozen=True, slots=True)
class Position:
    """Where a run stands."""

    at: str | None
    """The segment to run; None: the run is complete."""
    marked: frozenset[str]
    """Segments that something leads to and that did not run since, the one at hand among them."""
    iterations: tuple[tuple[str, int], ...]
    """The loops that are open, from the outside in, and how often the body of each began."""
    executed: int
    """How many segments ran, counting every time."""

    @property
    def complete(self) -> bool:
        """Whether nothing is left to run."""
        return self.at is None

    def to_value(self) -> dict[str, Any]:
        """As JSON, to be kept."""
        return {
            "at": self.at,
            "marked": sorted(self.marked),
            "iterations": [list(each) for each in self.iterations],
            "executed": self.executed,
        }


def position_from(value: Mapping[str, Any]) -> Position:
    """The position that was kept."""
    iterations = tuple((str(loop), int(count)) for loop, count in value["iterations"])
    return Position(value["at"], frozenset(value["marked"]), iterations, value["executed"])


def begin(plan: Plan, start: str | None = None) -> Position:
    """Before anything ran. Of several triggers, `start` is the one that set the run off; by default, the first."""
    if start is not None and start not in plan.starts:
        raise Invalid(f"no run begins at {start}", hint=f"runs begin at {', '.join(plan.starts)}")
    first = plan.entrances.get(start or plan.starts[0], start or plan.starts[0])
    return Position(first, frozenset({first}), (), 0)


def entered(plan: Plan, position: Position, since: int) -> Position:
    """The same place in a plan that segments were injected into after a hash version, before the segment at hand began:
    those that stand directly before it, or before another that something leads to, come first."""
    entrances = plan.entrances_since(since)
    # Loops that are open were entered before.
    inside = {loop for loop, _ in position.iterations}
    marked = frozenset(each if each in inside else entrances.get(each, each) for each in position.marked)
    at = position.at if position.at is None or position.at in inside else entrances.get(position.at, position.at)
    return replace(position, at=at, marked=marked)


def iterations_at(plan: Plan, position: Position) -> tuple[int, ...]:
    """How often the body of each loop around the segment at hand began, from the outside in, and of a loop its own:
    what tells one execution of a segment from another."""
    if position.at is None:
        return ()
    counts = dict(position.iterations)
    own = (position.at,) if plan.segment(position.at).type == "loop" else ()
    return tuple(counts.get(loop, 0) for loop in (*reversed(plan.loops_around(position.at)), *own))


def advance(plan: Plan, position: Position, outcome: Outcome = DONE) -> Position:
    """Where the run goes after the segment at hand; Limit if it has run more segments than its plan allows.

    >>> from analemma.flows.partitioning import partition
    >>> from analemma.flows.reading import read_workflow
    >>> plan = partition(read_workflow({"workflow": "w", "nodes": [{"id": "a", "type": "human", "choices": ["ok"]}]}))
    >>> advance(plan, begin(plan)).complete
    True
    """
    if position.at is None:
        raise Invalid("the run is complete")
    segment = plan.segment(position.at)
    targets, loop, iterations = _leaving(plan, segment, position, outcome)
    marked = set(position.marked - {segment.id})
    around = plan.loops_around(segment.id)
    for target in targets:
        goes_back = target in around
        marked.add(target if goes_back or segment.injected else plan.entrances.get(target, target))
    if segment.injected:
        # Whatever was injected behind it since stands before what it names.
        marked |= {each.id for each in plan.segments[plan.numbers[segment.id] + 1 :][:1]}
    executed = position.executed + 1
    at = _next(plan, segment, loop, marked)
    if at is not None and executed >= plan.iteration_limit:
        raise Limit(
            f"{executed} segments ran, and the run is not complete",
            hint="raise limits.max_iterations, if this is no loop without end",
            limit=plan.iteration_limit,
            segment=segment.id,
        )
    if at is not None:
        marked.add(at)
    return Position(at, frozenset(marked), iterations, executed)


def _leaving(
    plan: Plan, segment: Segment, position: Position, outcome: Outcome
) -> tuple[tuple[str, ...], str | None, tuple[tuple[str, int], ...]]:
    """Where a segment leads, the loop that this is in, and the loops that are then open."""
    match segment.type, outcome:
        case "branch", Took(arm) if 0 <= arm < len(segment.arms):
            return segment.arms[arm], segment.loop, position.iterations
        case "loop", Again(going_on):
            counts = dict(position.iterations)
            if not going_on:
                counts.pop(segment.id, None)
                return segment.next, segment.loop, tuple(counts.items())
            assert segment.body is not None
            counts[segment.id] = counts.get(segment.id, 0) + 1
            return (segment.body,), segment.id, tuple(counts.items())
        case (("branch" | "loop"), _):
            raise Invalid(f"{outcome!r} is no outcome of a {segment.type}", segment=segment.id)
        case _, Done():
            return segment.next, segment.loop, position.iterations
    raise Invalid(f"{outcome!r} is no outcome of {segment.type}", segment=segment.id)


def _next(plan: Plan, segment: Segment, loop: str | None, marked: set[str]) -> str | None:
    """The next marked segment behind this one, but not beyond the loop that it stands in; else that loop again."""
    for each in plan.segments[plan.numbers[segment.id] + 1 :]:
        if loop is not None and loop not in plan.loops_around(each.id):
            break
        if each.id in marked:
            return each.id
    if loop is not None:
        if loop not in marked:
            raise Internal(f"nothing leads on from {segment.id}, nor back to {loop}")
        return loop
    trailing = plan.appended
    if not trailing or segment.id == trailing[-1]:
        return None
    return trailing[trailing.index(segment.id) + 1] if segment.id in trailing else trailing[0]
