"""What goes with a run's going on or ending, whoever sees to it; and the runs that stand above and below one that is
run here: a run that waits for another is not held, so whoever runs it in one process has to run both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from analemma.catalog.port import BranchKey, RowChange
from analemma.catalog.runs.runs import ENDED, EndedSegment, Move, RunRow, Status, as_us
from analemma.errors import AnalemmaError, Timeout, Unavailable
from analemma.flows.held_runs import Held, RunnerParts
from analemma.flows.run_kernel import Standing
from analemma.flows.runs import SUBFLOW, read_waiting


def workflow_status(parts: RunnerParts, key: BranchKey, status: str) -> RowChange:
    """What a workflow's own row says of its run."""
    said = {"owner": key.owner, "workflow": key.workflow, "name": None, "status": status, "now": parts.clock.now_us()}
    return RowChange("set_workflow", {"tenant": parts.tenant, **said}, None)


def moved(
    row: RunRow,
    status: Status,
    *,
    from_status: Status = "RUNNING",
    due_in_s: float | None = None,
    error: str | None = None,
    waiting: str | None = None,
) -> Move:
    """The run where it is, in another status, held by nobody: whoever was at it is fenced out."""
    return Move(
        row.number,
        row.fence,
        row.position,
        row.head,
        status,
        row.incarnation,
        from_status=from_status,
        waiting=waiting,
        error=error,
        kept=False,
        raised=True,
        due_in=as_us(due_in_s),
    )


def changed(parts: RunnerParts, row: RunRow, move: Move, ended: EndedSegment | None = None) -> list[RowChange]:
    """For a commit, or by itself: a move of a run, with what its segment came to, if one ended. A commit whose
    `advance_run` finds no row is that of a worker that was fenced out. If the run ends with it, whoever waits for it is
    told before, being locked before whom it waits for, and its workflow behind."""
    if ended is None:
        change = RowChange("move_run", move._asdict())
    else:
        change = RowChange("advance_run", {**move._asdict(), **ended._asdict()}, commit="commit_segment")
    if move.status not in ENDED:
        return [change]
    woken = [] if row.parent is None else [RowChange("wake_parent", {"run": row.parent}, None)]
    said = "IDLE" if move.status == "CANCELLED" else move.status
    return [*woken, change, workflow_status(parts, row.key, said)]


def beginning_again(parts: RunnerParts, row: RunRow) -> list[RowChange]:
    """What else changes when a run that failed goes on: its workflow runs, and one whose time was over gets it anew."""
    if row.status != "FAILED":
        return []
    status = workflow_status(parts, row.key, "RUNNING")
    if row.deadline_us is None:
        return [status]
    try:
        limit = parts.kernel.plan(parts.kernel.stand_on(row.head)).timeout_s
    except (Unavailable, Timeout):
        raise
    except AnalemmaError:
        # Its manifest is damaged, or not its own: whoever takes it up says so.
        return [status]
    return [*parts.rows.restart_deadline(row.number, limit, late=True), status]


class GoOn(Protocol):
    """Runs what was claimed; where it stands then, or None if it could not be taken up."""

    def __call__(self, row: RunRow, standing: Standing | None) -> Held | None: ...


class Family:
    """Runs here what a run waits for, and then the run itself, until nothing of them can go on."""

    def __init__(self, parts: RunnerParts, claim: Callable[[RunRow], RunRow | None], go_on: GoOn) -> None:
        self._parts = parts
        self._claim = claim
        self._go_on = go_on

    def below(self, held: Held) -> None:
        """What a run waits for, which may wait for others; and then what is left of it."""
        current: Held | None = held
        while current is not None:
            begun, current.begun = current.begun, None
            row = self._parts.rows.get(current.row.execution)
            if row is None or not self._child(row, begun):
                return
            row = self._parts.rows.get(row.execution)
            claimed = None if row is None or not _follows(row) else self._claim(row)
            current = None if claimed is None else self._go_on(claimed, None)

    def above(self, row: RunRow) -> None:
        """Whoever waits for a run that has ended here."""
        number = row.parent
        while number is not None:
            child = self._parts.rows.get(row.execution)
            parent = self._parts.engine.row(RunRow, "run_of_number", number=number)
            if child is None or child.status not in ENDED or parent is None or not _follows(parent):
                return
            claimed = self._claim(parent)
            held = None if claimed is None else self._go_on(claimed, None)
            if held is None:
                return
            self.below(held)
            row, number = parent, parent.parent

    def _child(self, row: RunRow, begun: tuple[RunRow, Any] | None) -> bool:
        """Run the child that a run waits for; whether it has ended."""
        waiting = read_waiting(row)
        if not _follows(row) or waiting is None or waiting.child is None:
            return False
        if begun is not None:
            held = self._go_on(*begun)
        else:
            child = self._parts.rows.get(waiting.child)
            if child is None or child.status in ENDED:
                return True
            if child.status == "RUNNING" and child.holder is None and child.waiting is None:
                # It failed, and is tried again after a while.
                self._parts.clock.sleep(max(0.0, ((child.due_at_us or 0) - child.updated_at_us) / 1_000_000))
            claimed = self._claim(child) if child.status in ("PENDING", "RUNNING") else None
            held = None if claimed is None else self._go_on(claimed, None)
        if held is not None:
            self.below(held)
        child = self._parts.rows.get(waiting.child)
        return child is None or child.status in ENDED


def _follows(row: RunRow) -> bool:
    """Whether it waits for another run."""
    waiting = read_waiting(row)
    return row.status == "RUNNING" and row.holder is None and waiting is not None and waiting.kind == SUBFLOW
