"""A run in somebody's hands, and what those are made of who run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from analemma.canon.nodes import BlockId
from analemma.catalog.runs.runs import RunRow, RunRows, Status
from analemma.context import Context
from analemma.flows.handlers import Handlers
from analemma.flows.keeping import position_text
from analemma.flows.leases import Leases, RunLease
from analemma.flows.run_kernel import ReadyPlan, RunKernel, Standing
from analemma.flows.runs import Waiting
from analemma.flows.segment_running import ReadyNode, SegmentRunner
from analemma.flows.segments import Plan, Segment
from analemma.flows.walking import Position

if TYPE_CHECKING:
    from analemma.flows.remote_tasks import Elsewhere


@dataclass(frozen=True)
class RunnerParts(Context):
    """What a runner is made of."""

    kernel: RunKernel
    rows: RunRows
    leases: Leases
    handlers: Handlers
    segment_runners: Mapping[str, SegmentRunner]
    holder: str
    elsewhere: Callable[[], Elsewhere]
    """How tasks get to other processes, found out when they have to."""


@dataclass(slots=True)
class Held:
    """A run in our hands."""

    row: RunRow
    """As it was when it was taken."""
    lease: RunLease
    standing: Standing
    ready: ReadyPlan
    position: Position
    own: BlockId
    """The version that the run itself last made."""
    fresh: bool
    """Whether the segment at hand has never begun before."""
    deadline: float | None = None
    executor: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    waiting: Waiting | None = None
    status: Status = "RUNNING"
    kept_position: tuple[Position, str] | None = None
    here: bool = False
    """Whether what it begins is run here, too."""
    begun: tuple[RunRow, Standing] | None = None
    """A run that it has begun and waits for, held by us."""

    @property
    def plan(self) -> Plan:
        """What it runs."""
        return self.ready.plan

    def nodes_of(self, segment: Segment) -> tuple[ReadyNode, ...]:
        """The nodes of a segment."""
        return self.ready.nodes_of(segment)

    def position_text(self) -> str:
        """Its position, as it is kept."""
        known = self.kept_position
        if known is None or known[0] is not self.position:
            text = position_text(self.position, self.standing.segments, self.plan.hash_version)
            known = self.kept_position = self.position, text
        return known[1]
