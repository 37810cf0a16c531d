"""How far a fanout is: for each dependency a walk through those that depend, in the order of their numbers.

A change that comes while a walk is under way makes it one round longer, ending where it is now: whoever was told before
the change is told again, and whoever was not is told once. Nothing here does input or output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, NamedTuple

LAST: Final = (1 << 63) - 1
"""No entity has a greater number."""


class Dependency(NamedTuple):
    """Entities of a type that name another in one of their indexes."""

    entity_type: str
    index_type: str

    def __str__(self) -> str:
        return f"{self.entity_type}.{self.index_type}"


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of those that were visited."""

    processed: int = 0
    """Compiled to something new."""
    skipped: int = 0
    """They had followed already, or there is nothing to compile them by."""
    failed: int = 0
    """They could not be compiled with the others; each has an event of its own, which says why."""

    def plus(self, other: Counts) -> Counts:
        return Counts(self.processed + other.processed, self.skipped + other.skipped, self.failed + other.failed)


@dataclass(frozen=True, slots=True)
class Walk:
    """How far one dependency is."""

    dependency: Dependency
    limit: int
    """So many are visited at once; what is beyond is left for later."""
    affected: int
    """How many there were when they were counted last."""
    cursor: int = 0
    """The last one that was visited in this round."""
    stop: int = 0
    """Where the round after this one ends; 0: there is none."""
    last_round: bool = False
    """Whether this is that round."""
    finished: bool = False
    visited: int = 0
    """Since the last change."""
    deferred: bool = False
    """Whether the limit was reached. It stays so until all is done, whatever changes meanwhile."""
    counts: Counts = Counts()

    @property
    def until(self) -> int:
        """The last one that this round may visit."""
        return self.stop if self.last_round else LAST

    def quota(self, page: int) -> int:
        """How many to visit next, at most."""
        return page if self.deferred else min(page, self.limit - self.visited)

    def again(self, affected: int, limit: int) -> Walk:
        """The walk after another change: once around from here."""
        begun = replace(self, affected=affected, limit=limit, visited=0, last_round=False, finished=False)
        return replace(begun, cursor=0, stop=0) if self.finished else replace(begun, stop=self.cursor)

    def after(self, visited: Sequence[int], counts: Counts, *, ended: bool) -> Walk:
        """The walk after a page; `ended` says that nobody is left in this round."""
        moved = replace(
            self,
            visited=self.visited + len(visited),
            cursor=visited[-1] if visited else self.cursor,
            counts=self.counts.plus(counts),
        )
        if not ended:
            return replace(moved, deferred=moved.deferred or moved.visited >= moved.limit)
        if moved.last_round or not moved.stop:
            return replace(moved, finished=True)
        turned = replace(moved, last_round=True, cursor=0)
        return replace(turned, deferred=turned.deferred or turned.visited >= turned.limit)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far all dependencies of one entity are."""

    walks: tuple[Walk, ...] = ()

    def again(self, affected: Mapping[Dependency, int], limits: Mapping[Dependency, int]) -> Progress:
        """After a change: those that are there now, each once around from where it is."""
        there = {walk.dependency: walk for walk in self.walks}
        names = sorted(there.keys() | affected.keys())
        return Progress(
            tuple(
                there.get(name, Walk(name, limits[name], 0)).again(affected.get(name, 0), limits[name])
                for name in names
            )
        )

    @property
    def next(self) -> Walk | None:
        """What to go on with: what is within its limit comes first."""
        left = [walk for walk in self.walks if not walk.finished]
        return min(left, key=lambda walk: walk.deferred, default=None)

    @property
    def deferred(self) -> bool:
        """Whether all that is left is beyond its limit."""
        found = self.next
        return found is not None and found.deferred

    @property
    def affected(self) -> int:
        """How many are affected, over all dependencies."""
        return sum(walk.affected for walk in self.walks)

    @property
    def counts(self) -> Counts:
        """What became of all of them."""
        total = Counts()
        for walk in self.walks:
            total = total.plus(walk.counts)
        return total

    @property
    def beyond(self) -> tuple[Walk, ...]:
        """Those that have more than their limit."""
        return tuple(walk for walk in self.walks if walk.deferred or walk.affected > walk.limit)

    def moved(self, walk: Walk) -> Progress:
        """With this walk in place of the one before it."""
        return Progress(tuple(walk if each.dependency == walk.dependency else each for each in self.walks))


def format_progress(progress: Progress) -> str:
    """As the catalog keeps it."""
    return json.dumps([asdict(walk) for walk in progress.walks], separators=(",", ":"), ensure_ascii=False)


def parse_progress(text: str) -> Progress:
    """As it was kept."""
    return Progress(
        tuple(
            Walk(**{**found, "dependency": Dependency(*found["dependency"]), "counts": Counts(**found["counts"])})
            for found in json.loads(text)
        )
    )
