"""One tenant's part of a pass, step by step: snapshot, mark, look at every block, and act on them in batches.

It is a generator, so that whoever runs it can do something between any two transactions: keep the lease, stop, or, in
tests, everything else that could happen there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from analemma.canon.identity import ID_BYTES, BlockId
from analemma.catalog.collecting import Collecting, Pass, Snapshot
from analemma.catalog.port import TenantId
from analemma.clock import Clock
from analemma.gc.brakes import judge
from analemma.gc.marking import Read, mark
from analemma.gc.roots import MANIFESTS, ROOTS
from analemma.gc.surveying import Survey, batches, survey
from analemma.settings import Settings

_T = TypeVar("_T")

BATCH = 2500
"""Blocks in the first transaction. The fewer there are, the more often the same pages of a table are written: ids are
random."""
SMALLEST_BATCH = 100
LARGEST_BATCH = 10_000
LONGEST_S = 0.03
"""How long a transaction should take, about."""

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
    return limit if oldest_session is None else min(limit, oldest_session)  # guard: gc.session


def look(
    catalog: Collecting,
    tenant: TenantId,
    seen: Snapshot,
    read: Read,
    *,
    number: int,
    grace_s: float,
    settings: Settings,
    expiring: Collection[BlockId] = frozenset(),
) -> Generator[Step, None, Finding]:
    """Mark from a snapshot and sort all blocks. Changes nothing. Versions that are `expiring` count as gone."""
    # A version that another table names is kept by that, whether or not it expires.
    gone: dict[str, Collection[BlockId]] = {MANIFESTS.table: expiring}
    roots = [root for table in ROOTS for root in seen.roots[table.table] if root not in gone.get(table.table, ())]
    marking = mark(roots, read)
    marks = yield from _as_steps("marking", marking)
    limit = deletion_limit(catalog, number, grace_s, seen.oldest_session)
    surveying = survey(catalog.scan_pages(tenant), catalog.scan_doomed_pages(tenant), marks, limit)
    found = yield from _as_steps("scanning", surveying)
    problem = judge(
        roots=len(roots),
        total=found.total,
        referenced=found.referenced,
        emptiness_is_unexplained=not roots and catalog.unexplained_emptiness(tenant),
        last=catalog.last_count(tenant),
        limits=settings,
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
        settings: Settings,
        force: bool = False,
        only: Collection[bytes] | None = None,
        batch: int = BATCH,
        clock: Clock | None = None,
    ) -> None:
        """`force`: whatever the brakes say. `only`: delete no other blocks than these. `batch`: blocks per
        transaction; with a clock only in the first, and then as many as time allows."""
        self._catalog = catalog
        self._pass = begun
        self._tenant = tenant
        self._read = read
        self._grace_s = grace_s
        self._settings = settings
        self._force = force
        self._only = only
        self._batch = batch
        self._clock = clock
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
            settings=self._settings,
        )
        self.total, self.referenced = found.survey.total, found.survey.referenced
        yield "scanned", self.total
        if found.problem is not None and not self._force:
            self.problem = found.problem
            return
        for batch in self._batches(found.survey.clear):
            self.cleared += begun.clear(tenant, batch)
            yield "sparing", self.cleared
        for batch in self._batches(found.survey.doom):
            self.doomed += begun.doom(tenant, batch)
            yield "marking to go", self.doomed
        for batch in self._batches(found.survey.delete):
            chosen: Sequence[BlockId] = batch
            if self._only is not None:
                chosen = [block for block in batch if block in self._only]
            if chosen:
                count, freed = begun.delete(tenant, chosen, found.limit)
                self.deleted += count
                self.bytes += freed
            yield "deleting", self.deleted
        begun.count(tenant, self.total - self.deleted, self.referenced)

    def _batches(self, ids: bytearray) -> Iterator[list[BlockId]]:
        """As many at a time as take about `LONGEST_S`: on SQLite all other writers wait for the transaction."""
        place = 0
        while place < len(ids):
            end = place + self._batch * ID_BYTES
            started = 0.0 if self._clock is None else self._clock.monotonic()
            yield from batches(ids[place:end], self._batch)
            place = end
            if self._clock is not None:
                took = max(self._clock.monotonic() - started, 1e-6)
                wanted = int(self._batch * min(2.0, LONGEST_S / took))
                self._batch = max(SMALLEST_BATCH, min(LARGEST_BATCH, wanted))


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
