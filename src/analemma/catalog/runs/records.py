"""What is kept of runs and of what their segments came to, as values: rows, and what is to become of them."""

from __future__ import annotations

from typing import Literal, NamedTuple

from analemma.canon.identity import BlockId
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


class NewRun(NamedTuple):
    """A run that is to be born."""

    execution: str
    owner: str
    workflow: str
    branch: str
    name: str
    document: bytes
    status: Status
    position: str
    options: str
    fingerprint: bytes
    holder: str | None = None
    due_in: int | None = 0
    """With a holder: how long the lease is. Without: when somebody is to begin it. In microseconds."""
    limit: int | None = None
    """How long it may take, from when somebody takes it; in microseconds."""
    idempotency_key: str | None = None
    incarnation: int = 1
    queue: str = ""
    priority: int = 0
    parent: int | None = None


class Move(NamedTuple):
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
    due_in: int | None = None
    """Held: a new lease; None: the lease as it is. Not held: when somebody is to look; None: never. In microseconds."""


class EndedSegment(NamedTuple):
    """What a segment came to."""

    seq: int
    segment: str
    place: int
    iteration: int
    before: str
    """The position before it ran, as JSON."""
    segment_status: SegmentStatus
    input: BlockId
    output: BlockId
    attempts: int = 1
    segment_error: str | None = None
    took: int = 0
    """In microseconds."""


def fenced_out(run: int, **facts: str) -> FencedOut:
    """What whoever lost a run is told."""
    said = "the run is somebody else's by now, or was cancelled"
    return FencedOut(said, hint="look at where it stands", run=run, **facts)


def as_us(seconds: float | None) -> int | None:
    """As the statements take it."""
    return None if seconds is None else round(seconds * SECOND_US)
