"""Rows of tasks: what branches and items of a run's groups came to, recorded by whoever has the run's fence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from analemma.canon.identity import BlockId
from analemma.catalog.engine.db import Engine, Transaction
from analemma.catalog.entities.bodies import add_bodies
from analemma.catalog.port import PreparedBlocks, TenantId
from analemma.catalog.runs.runs import RunRow, fenced_out
from analemma.failpoints import declare, hit

BEFORE_RECORD = declare("task.before_record", "tasks of a group have run, and nothing says so")
AFTER_RECORD = declare("task.after_record", "tasks of a group are recorded, but whoever waits does not know")

PAGE: Final = 1000

TaskStatus = Literal["DONE", "FAILED"]


class TaskRow(NamedTuple):
    """What a task came to. `error` is JSON."""

    item: int
    status: TaskStatus
    root: BlockId | None
    error: str | None = None
    attempts: int = 1


class TaskRows:
    """The tasks of one incarnation of a run, for whoever holds it."""

    def __init__(self, engine: Engine, tenant: TenantId, held: RunRow) -> None:
        self._engine = engine
        self._tenant = tenant
        self._run, self._incarnation, self._fence = held.number, held.incarnation, held.fence

    def load(self, seq: int) -> dict[int, TaskRow]:
        """What is known of the tasks of one execution of a segment, by their items."""
        found: dict[int, TaskRow] = {}
        place = {"run": self._run, "incarnation": self._incarnation, "seq": seq}
        for page in self._engine.pages("run_tasks", {"after": -1}, limit=PAGE, **place):
            found.update({row[0]: TaskRow(*row) for row in page})
        return found

    def group_seq(self, segment: str, before: int) -> int | None:
        """Where a segment was last executed before a place."""
        place = {"run": self._run, "incarnation": self._incarnation}
        seq: int | None = self._engine.value("last_run_segment", **place, segment=segment, before=before)
        return seq

    def record(self, seq: int, rows: Sequence[TaskRow], blocks: PreparedBlocks) -> None:
        """Record tasks, with the blocks of their results; what was done before stays as it was. FencedOut, and nothing
        is recorded, if the run is somebody else's."""
        hit(BEFORE_RECORD)
        listed = [(self._run, self._incarnation, seq, *row) for row in rows]

        def write(tx: Transaction) -> None:
            if tx.one("hold_run", run=self._run, fence=self._fence) is None:
                raise fenced_out(self._run)
            tx.execute_many("put_run_task", listed)
            add_bodies(tx, self._tenant, *blocks)

        self._engine.write(write)
        hit(AFTER_RECORD)
