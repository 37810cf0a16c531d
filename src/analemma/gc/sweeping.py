"""One tenant's part of a pass, step by step: snapshot, mark, look at every block, and act on them in batches.

It is a generator, so that whoever runs it can do something between any two transactions: keep the lease, stop, or, in
tests, everything else that could happen there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from analemma.canon.identity import BlockId
from analemma.catalog.collecting import Collecting, Pass, Snapshot
from analemma.catalog.port import TenantId
from analemma.gc.brakes import BrakeLimits, judge
from analemma.gc.marking import Read, mark
from analemma.gc.roots import ROOTS
from analemma.gc.surveying import Survey, batches, survey

_T = TypeVar("_T")

BATCH = 1000
"""Blocks per transaction."""

Step = tuple[str, int]
"""What was just done, and how far it is."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What there is to do in a tenant, and why nothing of it should be done, if there is a reason."""

    survey: Survey
    limit: int
    """Dooms below this may be followed by deletion."""
    problem: str | None


def deletion_limit(catalog: Collecting, number: int, grace_s: float, oldest_session: int | None) -> int:
    """Which dooms are old enough, in the pass of this number: those of earlier passes, before the oldest open session
    began, and with a grace period those that are at least that old."""
    limit = number if grace_s == 0 else min(number, catalog.grace_limit(grace_s))
    return limit if oldest_session is None else min(limit, oldest_session)


def look(
    catalog: Collecting,
    tenant: TenantId,
    seen: Snapshot,
    read: Read,
    *,
    number: int,
    grace_s: float,
    brakes: BrakeLimits,
    expiring: Collection[BlockId] = frozenset(),
) -> Generator[Step, None, Finding]:
    """Mark from a snapshot and sort all blocks. Changes nothing. Roots that are `expiring` count as gone."""
    roots = [root for table in ROOTS for root in seen.roots[table.table] if root not in expiring]
    marking = mark(roots, read)
    marks = yield from _as_steps("marking", marking)
    limit = deletion_limit(catalog, number, grace_s, seen.oldest_session)
    found = yield from _as_steps("scanning", survey(catalog.scan(tenant), catalog.scan_doomed(tenant), marks, limit))
    problem = judge(
        roots=len(roots),
        total=found.total,
        referenced=found.referenced,
        emptiness_is_unexplained=not roots and catalog.unexplained_emptiness(tenant),
        last=catalog.last_count(tenant),
        limits=brakes,
    )
    return Finding(found, limit, problem)


class Sweep:
    """What a pass does to one tenant's blocks. The counts say what was done so far, however it ends."""

    def __init__(
        self,
        catalog: Collecting,
        begun: Pass,
        tenant: TenantId,
        read: Read,
        *,
        grace_s: float = 0,
        brakes: BrakeLimits = BrakeLimits(),  # noqa: B008 - it cannot be changed
        force: bool = False,
        only: Collection[bytes] | None = None,
        batch: int = BATCH,
    ) -> None:
        """`force`: whatever the brakes say. `only`: delete no other blocks than these."""
        self._catalog = catalog
        self._pass = begun
        self._tenant = tenant
        self._read = read
        self._grace_s = grace_s
        self._brakes = brakes
        self._force = force
        self._only = only
        self._batch = batch
        self.total = self.referenced = self.cleared = self.doomed = self.deleted = self.bytes = 0
        self.problem: str | None = None

    def steps(self) -> Iterator[Step]:
        """Do it. Between any two steps no transaction is open."""
        tenant, begun = self._tenant, self._pass
        seen = begun.snapshot(tenant, ROOTS)
        yield "snapshot", sum(map(len, seen.roots.values()))
        found = yield from look(
            self._catalog,
            tenant,
            seen,
            self._read,
            number=begun.number,
            grace_s=self._grace_s,
            brakes=self._brakes,
        )
        self.total, self.referenced = found.survey.total, found.survey.referenced
        yield "scanned", self.total
        if found.problem is not None and not self._force:
            self.problem = found.problem
            return
        for batch in batches(found.survey.clear, self._batch):
            self.cleared += begun.clear(tenant, batch)
            yield "sparing", self.cleared
        for batch in batches(found.survey.doom, self._batch):
            self.doomed += begun.doom(tenant, batch)
            yield "marking to go", self.doomed
        for batch in batches(found.survey.delete, self._batch):
            chosen: Sequence[BlockId] = batch
            if self._only is not None:
                chosen = [block for block in batch if block in self._only]
            if chosen:
                count, freed = begun.delete(tenant, chosen, found.limit)
                self.deleted += count
                self.bytes += freed
            yield "deleting", self.deleted
        begun.count(tenant, self.total - self.deleted, self.referenced)


def _as_steps(stage: str, counting: Generator[int, None, _T]) -> Generator[Step, None, _T]:
    while True:
        try:
            count = next(counting)
        except StopIteration as done:
            result: _T = done.value
            return result
        yield stage, count


def finish(steps: Generator[Step, None, _T], tell: Callable[[str, int], None]) -> _T:
    """Do all steps; what they come to."""
    while True:
        try:
            stage, count = next(steps)
        except StopIteration as done:
            result: _T = done.value
            return result
        tell(stage, count)
