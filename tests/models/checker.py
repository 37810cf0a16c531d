"""A small explicit-state model checker: every state that any interleaving can reach, looked at once, breadth first.

Breadth first because the first violation found is then one that nothing shorter leads to: the trace is the argument."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


class Step(NamedTuple, Generic[S]):
    """One thing that can happen next: what it is, in words, and the state it leads to."""

    says: str
    state: S


class Model(Protocol[S]):
    """What is checked."""

    def initial(self) -> S:
        """Where everything begins."""

    def steps(self, state: S) -> Iterable[Step[S]]:
        """Everything that can happen next. None: the state is at rest."""

    def violation(self, state: S) -> str | None:
        """What is wrong with a state, if anything is."""


@dataclass(frozen=True)
class Trace:
    """How a violation comes about, in as few steps as there can be."""

    steps: tuple[str, ...]
    violation: str

    def __str__(self) -> str:
        lines = [f"{number:3}. {step}" for number, step in enumerate(self.steps, 1)]
        return "\n".join([*lines, f"  => {self.violation}"])


@dataclass
class Exploration:
    """What a search found."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    at_rest: int = 0
    said: set[str] = field(default_factory=set)
    """Everything that happened somewhere: a model in which nothing interesting can happen proves nothing."""
    trace: Trace | None = None
    """None: there is no violation, in any reachable state."""


class TooManyStates(Exception):
    """The bound was reached before all states were seen: no conclusion can be drawn."""


def explore(
    model: Model[S], *, most_states: int = 5_000_000, check_rest: Callable[[S], str | None] | None = None
) -> Exploration:
    """Look at every reachable state, or stop at the first violation. `check_rest` is asked about states in which
    nothing can happen any more."""
    first = model.initial()
    # How each state was first reached; insertion order is the order of the search.
    reached: dict[S, tuple[S, str] | None] = {first: None}
    waiting: deque[tuple[S, int]] = deque([(first, 0)])
    found = Exploration()
    while waiting:
        state, depth = waiting.popleft()
        found.states += 1
        found.depth = depth
        wrong = model.violation(state)
        resting = True
        if wrong is None:
            for says, after in model.steps(state):
                resting = False
                found.transitions += 1
                found.said.add(says)
                if after not in reached:
                    reached[after] = (state, says)
                    waiting.append((after, depth + 1))
            if resting:
                found.at_rest += 1
                wrong = None if check_rest is None else check_rest(state)
        if wrong is not None:
            found.trace = Trace(_way_to(state, reached), wrong)
            return found
        if len(reached) > most_states:
            raise TooManyStates(f"more than {most_states:,} states")
    return found


def _way_to(state: S, reached: dict[S, tuple[S, str] | None]) -> tuple[str, ...]:
    way: list[str] = []
    came = reached[state]
    while came is not None:
        before, says = came
        way.append(says)
        came = reached[before]
    return tuple(reversed(way))
