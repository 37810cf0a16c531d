"""What collecting archives would do and did, as plain data, and the brakes: numbers in, a reason out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from analemma.settings import Settings

SAMPLE = 20
MOST_MISSING = 3
"""So many archives that workspaces have may be gone from the store; more, and it is another bucket."""


@dataclass(frozen=True, slots=True)
class ArchiveCounts:
    """What a listing and the catalog say together. A unit is one archive: all objects below `workspace/op_id/`."""

    keys: int = 0
    """Objects that are part of a unit."""
    foreign: int = 0
    """Keys that we would not have written: never touched."""
    units: int = 0
    needed: int = 0
    """Those of the units that a workspace has or is about to have."""
    orphans: int = 0
    unknown: int = 0
    """Those of the orphans that this catalog never heard of: left alone, unless a run is forced."""
    missing: int = 0
    """Archives that a workspace has, and that the listing has nothing of."""
    protected: int = 0
    """What the catalog protects, listed or not."""
    kept: int = 0
    """Those of these that were complete before the listing began."""


def judge(counts: ArchiveCounts, *, last_needed: int | None, limits: Settings) -> str | None:
    """Why nothing should be collected, or None."""
    units, orphans = counts.units, counts.orphans
    if units and not counts.protected and counts.unknown == orphans:
        return f"there are {units} archives, and the catalog has heard of none of them"
    if counts.missing > MOST_MISSING and counts.missing * 2 > counts.kept:
        return f"{counts.missing} of {counts.kept} archives are not where they should be: this may be another bucket"
    if orphans >= limits.gc_brake_blocks and orphans > limits.gc_brake_unmarked * units:
        return f"{orphans} of {units} archives are nobody's, more than {limits.gc_brake_unmarked:.0%}"
    if last_needed is not None:
        fewer = last_needed - counts.protected
        if fewer >= limits.gc_brake_blocks and fewer > limits.gc_brake_drop * last_needed:
            return f"only {counts.protected} archives are needed, and {last_needed} were in the pass before"
    return None


@dataclass(frozen=True, slots=True)
class ArchiveGcPlan:
    """What a run would do now. Making it changed nothing."""

    store_id: str
    tenant: str
    made_at_us: int
    delay_s: float
    counts: ArchiveCounts
    to_mark: int
    """Units that would be marked as nobody's."""
    to_clear: int
    """Marks that would go: their unit is somebody's again, or gone."""
    to_delete: int
    delete_bytes: int
    waiting: int
    """Marked units that stay for now."""
    sample: tuple[str, ...]
    """Some of the units that would be deleted."""
    problem: str | None = None
    """Why nothing would be collected."""

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON has it."""
        return asdict(self)

    def describe(self) -> str:
        """The plan for people, one line for each fact."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield from _described(self.tenant, self.counts)
        if self.problem is not None:
            yield f"  nothing would be collected: {self.problem}"
            return
        why = f"nobody's for {self.delay_s:g} s, and in an earlier pass"
        yield f"  {self.to_delete} archives would be deleted ({self.delete_bytes} bytes): {why}"
        yield from (f"    {unit}" for unit in self.sample)
        yield f"  {self.to_mark} would be marked: they are nobody's now"
        if self.waiting:
            yield f"  {self.waiting} marked ones would wait for {self.delay_s:g} s to pass"


@dataclass(frozen=True, slots=True)
class ArchiveGcReport:
    """What a run did, or with `dry_run` would have done."""

    number: int
    """Of the pass; 0 if nothing was to be changed."""
    tenant: str
    counts: ArchiveCounts
    marked: int = 0
    cleared: int = 0
    waiting: int = 0
    claimed: int = 0
    refused: int = 0
    """Units that were due and were somebody's again, or not due, when they were to be claimed."""
    deleted: int = 0
    """Units of which every object is gone."""
    objects: int = 0
    bytes: int = 0
    failed: int = 0
    """Claimed units that could not be deleted, or not all of them: the next pass goes on."""
    problem: str | None = None
    kind: str | None = None
    """What kind of error the problem is."""
    stopped: bool = False
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        return self.problem is None

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return {**asdict(self), "ok": self.ok}

    def describe(self) -> str:
        """The report for people."""
        lines = [
            *_described(self.tenant, self.counts),
            f"  deleted {self.deleted} archives ({self.objects} objects, {self.bytes} bytes), "
            f"marked {self.marked}, {self.waiting} wait, spared {self.cleared + self.refused}",
        ]
        if self.failed:
            lines.append(f"  {self.failed} could not be deleted, and will be tried again")
        if self.stopped:
            lines.append("  stopped before its end")
        if self.problem is not None:
            lines.append(f"  problem: {self.problem}")
        return "\n".join(lines)


def as_report(plan: ArchiveGcPlan) -> ArchiveGcReport:
    """What a run would have done."""
    return ArchiveGcReport(
        number=0,
        tenant=plan.tenant,
        counts=plan.counts,
        marked=plan.to_mark,
        cleared=plan.to_clear,
        waiting=plan.waiting,
        claimed=plan.to_delete,
        deleted=plan.to_delete,
        bytes=plan.delete_bytes,
        problem=plan.problem,
        kind=None if plan.problem is None else "limit",
        dry_run=True,
    )


def _described(tenant: str, counts: ArchiveCounts) -> Iterator[str]:
    yield f"tenant {tenant}: {counts.units} archives in {counts.keys} objects, {counts.needed} of them needed"
    if counts.foreign:
        yield f"  {counts.foreign} objects are not ours, and are left alone"
    if counts.missing:
        yield f"  {counts.missing} archives that workspaces have are not in the object store"
