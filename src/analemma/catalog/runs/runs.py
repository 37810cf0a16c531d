"""Rows of runs and of what their segments came to. A run moves in the transaction of its segment's commit, by whoever
has its fence, so that where it stands and what it did are visible together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from analemma.canon.nodes import BlockId
from analemma.catalog.engine.db import Engine, Transaction, send
from analemma.catalog.kernel.commits import KEY_KEEP_US, change_row
from analemma.catalog.port import BranchKey, RowChange, TenantId
from analemma.errors import Conflict
from analemma.failpoints import declare, hit

BEFORE_ADVANCE = declare("run.before_advance", "a segment that changed nothing has ended, and nothing says so")
AFTER_ADVANCE = declare("run.after_advance", "a segment that changed nothing is recorded, but its worker does not know")
AFTER_CLAIM = declare("run.after_claim", "a run is taken, and nothing of it was done since")
BEFORE_MOVE = declare("run.before_move", "a run is to be cancelled, released or begun again, and nothing is written")
AFTER_MOVE = declare("run.after_move", "a run is cancelled, released or begun again, but nobody knows")
SECOND_US = 1_000_000
LAST = 1 << 62

Status = Literal["PENDING", "RUNNING", "WAITING_HUMAN", "COMPLETED", "FAILED", "CANCELLED"]
SegmentStatus = Literal["CONTINUE", "COMPLETE", "PAUSED", "FAILED"]
Result = TypeVar("Result")
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


class RunRows:
    """One tenant's runs."""

    def __init__(self, engine: Engine, tenant: TenantId, *, key_keep_us: int = KEY_KEEP_US) -> None:
        """A key counts so long after the end of its run at least, and for as long as the run's first version is
        there."""
        self._engine = engine
        self._tenant = tenant
        self._key_keep_us = key_keep_us

    def get(self, execution: str) -> RunRow | None:
        """One run."""
        return self._engine.row(RunRow, "run", tenant=self._tenant, execution=execution)

    def of_key(self, idempotency_key: str) -> RunRow | None:
        """The run that was born under a key that counts."""
        return self._engine.row(RunRow, "run_of_key", tenant=self._tenant, key=idempotency_key, keep=self._key_keep_us)

    def is_held(self, run: int, fence: int) -> bool:
        """Whether whoever has this fence may go on."""
        row = self._engine.one("run_standing", number=run)
        return row is not None and row[0] == "RUNNING" and row[1] == fence

    def add(self, new: NewRun, manifest: BlockId) -> list[RowChange]:
        """For a commit: the run that begins with its version, and where it is looked for. A key that counts no more is
        free before it; of two who come at once, the second finds the run of the first."""
        changes = [RowChange("add_run", {"tenant": self._tenant, "manifest": manifest, **new._asdict()})]
        if new.idempotency_key is not None:
            key = {"tenant": self._tenant, "key": new.idempotency_key, "keep": self._key_keep_us}
            changes.insert(0, RowChange("drop_old_run_key", key, None))
        if new.queue:
            lane = {"tenant": self._tenant, "queue": new.queue, "priority": new.priority}
            changes.append(RowChange("add_lane", lane, None))
        return changes

    def change_alone(self, changes: Sequence[RowChange]) -> None:
        """Make the same changes where there is no version to commit; FencedOut if the run is somebody else's."""
        hit(BEFORE_ADVANCE)

        def once() -> None:
            self._engine.write(lambda tx: change_runs(tx, changes), alone=len(changes) == 1)

        # Sent twice, it has the same effect.
        send(once)
        hit(AFTER_ADVANCE)

    def restart_deadline(self, run: int, limit_s: float | None, *, late: bool = False) -> list[RowChange]:
        """For a commit, or a move: the run as a whole has so long from now on; `late`: only if its time is over."""
        if limit_s is None:
            return []
        parameters = {"run": run, "limit": as_us(limit_s), "late": int(late)}
        return [RowChange("restart_deadline", parameters, None)]

    def move(self, *changes: RowChange) -> None:
        """Move a run without a segment, and what else changes with it, in this order; FencedOut if one of them is
        somebody else's."""
        moving(self._engine, lambda tx: change_runs(tx, changes))

    def cancel_children(
        self, run: int, status_of: Callable[[BranchKey], RowChange], *beside: RowChange, last: int = LAST
    ) -> set[int]:
        """End those that a run began, up to a number, if they go on, whoever holds them; which these were. What is
        `beside` comes first: FencedOut if that is of a run that is somebody else's."""

        def end(tx: Transaction) -> set[int]:
            change_runs(tx, beside)
            return cancel_below(tx, [run], status_of, last)

        return moving(self._engine, end)

    def renew(self, run: int, fence: int, *, lease_s: float) -> bool:
        """Hold it longer; False if it is somebody else's."""
        return self._engine.execute("renew_run", run=run, fence=fence, lease=as_us(lease_s)) == 1

    def release(self, run: int, fence: int, *, due_in_s: float = 0.0) -> None:
        """Give it back as it is."""
        self._engine.execute("release_run", run=run, fence=fence, due_in=as_us(due_in_s))

    def forget(self, *, ended_before_us: int) -> int:
        """Delete the rows of runs that ended long ago, with what they recorded; how many."""

        def delete(tx: Transaction) -> int:
            ended = [row[0] for row in tx.all("ended_runs", tenant=self._tenant, before=ended_before_us, limit=100)]
            gone = [row[0] for row in tx.all("forget_runs", numbers=ended, before=ended_before_us)] if ended else []
            for statement in ("forget_run_segments", "forget_run_tasks", "forget_effects") if gone else ():
                tx.execute(statement, numbers=gone)
            return len(gone)

        return self._engine.write(delete)


def moving(engine: Engine, move: Callable[[Transaction], Result]) -> Result:
    """Do something that moves runs without a segment."""
    hit(BEFORE_MOVE)
    done = engine.write(move)
    hit(AFTER_MOVE)
    return done


def claim_due(engine: Engine, *, tenant: TenantId | None, **taking: Any) -> list[tuple[TenantId, RunRow]]:
    """Take a run of a tenant, or of all, that somebody has to look at."""
    rows = engine.write(lambda tx: tx.all("claim_due_runs", tenant=tenant, **taking))
    hit(AFTER_CLAIM)
    return [(TenantId(row[0]), RunRow(*row[1:])) for row in rows]


def cancel_below(
    tx: Transaction, runs: Sequence[int], status_of: Callable[[BranchKey], RowChange], last: int = LAST
) -> set[int]:
    """End those that runs began, up to a number, and those that these began; which they were."""
    ended: set[int] = set()
    level = list(runs)
    while level:
        # From above, one by one: whoever is about to begin another finds itself cancelled, or that one is seen.
        children = [row for each in level for row in tx.all("cancel_children", run=each, last=last)]
        change_runs(tx, [status_of(BranchKey(*row[1:])) for row in children])
        level = [row[0] for row in children]
        ended.update(level)
        last = LAST
    return ended


def change_runs(tx: Transaction, changes: Sequence[RowChange]) -> None:
    """Make these changes; FencedOut if one of them finds that a run is somebody else's."""
    for change in changes:
        if not change_row(tx, change):
            raise fenced_out(change.parameters["run"])
