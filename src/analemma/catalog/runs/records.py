"""What is kept of runs and of what their segments came to, as values: rows, and what is to become of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from analemma.canon.identity import BlockId
from analemma.catalog.engine.db import Row
from analemma.catalog.port import BranchKey
from analemma.errors import Conflict

SECOND_US = 1_000_000

Status = Literal["PENDING", "RUNNING", "WAITING_HUMAN", "COMPLETED", "FAILED", "CANCELLED"]
SegmentStatus = Literal["CONTINUE", "COMPLETE", "PAUSED", "FAILED"]
ENDED: frozenset[str] = frozenset({"COMPLETED", "FAILED", "CANCELLED"})


class FencedOut(Conflict):
    """The run is somebody else's by now, or was cancelled: nothing of what was to go with it is written."""


class RunRow(NamedTuple):
    """A run, and where it stands. `position`, `waiting`, `error` and `options` are JSON."""

    number: int
    execution: str
    owner: str
    workflow: str
    branch: str
    name: str
    document: bytes
    born: BlockId
    head: BlockId
    status: Status
    position: str
    waiting: str | None
    error: str | None
    options: str
    incarnation: int
    fence: int
    holder: str | None
    due_at_us: int | None
    deadline_us: int | None
    idempotency_key: str | None
    fingerprint: bytes
    queue: str
    priority: int
    created_at_us: int
    updated_at_us: int
    ended_at_us: int | None
    parent: int | None = None
    """The number of the run that began it and waits for it."""
    begun_at_us: int | None = None
    """When somebody first took it."""

    @property
    def key(self) -> BranchKey:
        """The branch that it writes to."""
        return BranchKey(self.owner, self.workflow, self.branch)


class SegmentRow(NamedTuple):
    """One execution of a segment. `position` and `error` are JSON; the position is that before it ran."""

    incarnation: int
    seq: int
    segment: str
    place: int
    iteration: int
    position: str
    status: SegmentStatus
    input: BlockId
    output: BlockId
    attempts: int
    error: str | None
    started_at_us: int
    ended_at_us: int


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run that is to be born."""

    execution: str
    key: BranchKey
    name: str
    document: bytes
    status: Status
    position: str
    options: str
    fingerprint: bytes
    holder: str | None = None
    due_in_s: float = 0.0
    """With a holder: how long the lease is. Without: when somebody is to begin it."""
    limit_s: float | None = None
    """How long it may take, from when somebody takes it."""
    idempotency_key: str | None = None
    incarnation: int = 1
    queue: str = ""
    priority: int = 0
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """Where a run goes."""

    run: int
    fence: int
    """Whose move it is."""
    position: str
    head: BlockId
    status: Status
    incarnation: int
    from_status: Status = "RUNNING"
    """Which it may have beside RUNNING."""
    waiting: str | None = None
    error: str | None = None
    kept: bool = True
    """Whether whoever moves it goes on holding it."""
    raised: bool = False
    """Whether the fence is raised, so that whoever holds it now does no more."""
    due_in_s: float | None = None
    """Held: a new lease; None: the lease as it is. Not held: when somebody is to look; None: never."""

    def parameters(self) -> dict[str, Any]:
        """As the statements take it."""
        return {
            "run": self.run,
            "fence": self.fence,
            "position": self.position,
            "head": self.head,
            "status": self.status,
            "from_status": self.from_status,
            "incarnation": self.incarnation,
            "waiting": self.waiting,
            "error": self.error,
            "kept": int(self.kept),
            "raised": int(self.raised),
            "due_in": as_us(self.due_in_s),
            "over": int(self.status in ENDED),
        }


@dataclass(frozen=True, slots=True)
class EndedSegment:
    """What a segment came to."""

    seq: int
    segment: str
    place: int
    iteration: int
    before: str
    """The position before it ran, as JSON."""
    status: SegmentStatus
    input: BlockId
    output: BlockId
    attempts: int = 1
    error: str | None = None
    took_us: int = 0

    def parameters(self, run: int, incarnation: int) -> dict[str, Any]:
        """As the statements take it."""
        return {
            "run": run,
            "incarnation": incarnation,
            "seq": self.seq,
            "segment": self.segment,
            "place": self.place,
            "iteration": self.iteration,
            "before": self.before,
            "segment_status": self.status,
            "input": self.input,
            "output": self.output,
            "attempts": self.attempts,
            "segment_error": self.error,
            "took": self.took_us,
        }


def run_row(row: Row) -> RunRow:
    """A row of `run`."""
    return RunRow._make(row)


def segment_row(row: Row) -> SegmentRow:
    """A row of `run_segments`."""
    return SegmentRow._make(row)


def fenced_out(run: int) -> FencedOut:
    """What whoever lost a run is told."""
    return FencedOut("the run is somebody else's by now, or was cancelled", hint="look at where it stands", run=run)


def as_us(seconds: float | None) -> int | None:
    """As the statements take it."""
    return None if seconds is None else round(seconds * SECOND_US)
