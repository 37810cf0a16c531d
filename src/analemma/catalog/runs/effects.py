"""Rows of what a run does outside of its own commits, by whoever has its fence: effects, begun and then done or failed,
and what the tasks of its groups came to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from analemma.canon.nodes import BlockId
from analemma.catalog.engine.db import Engine, Statements, Transaction, send
from analemma.catalog.entities.entities import add_bodies
from analemma.catalog.port import PreparedBlocks, RowChange, TenantId
from analemma.catalog.runs.runs import Move, RunRow, change_runs, fenced_out, moving
from analemma.failpoints import declare, hit

BEFORE_INTENT = declare("effect.before_intent", "an effect is about to be begun, and nothing is recorded")
AFTER_INTENT = declare("effect.after_intent", "an effect is about to happen, and it is recorded that it is")
BEFORE_RESULT = declare("effect.before_result", "an effect has happened, and nothing says so")
AFTER_RESULT = declare("effect.after_result", "an effect has happened and is recorded")

BEFORE_RECORD = declare("task.before_record", "tasks of a group have run, and nothing says so")
AFTER_RECORD = declare("task.after_record", "tasks of a group are recorded, but whoever waits does not know")

PAGE: Final = 1000

TaskStatus = Literal["DONE", "FAILED"]
EffectState = Literal["intent", "done", "failed"]


class EffectRow(NamedTuple):
    """What is known of an effect. Its result is a tree (`result`), or the one block of it
    behind its hash (`body`)."""

    key: str
    state: EffectState
    result: BlockId | None = None
    body: bytes | None = None
    attempts: int = 1


class TaskRow(NamedTuple):
    """What a task came to. `error` is JSON."""

    item: int
    status: TaskStatus
    root: BlockId | None
    error: str | None = None
    attempts: int = 1


class RunRecords:
    """What one incarnation of a run recorded, for whoever holds it: effects, and tasks of groups."""

    def __init__(self, engine: Engine, tenant: TenantId, held: RunRow) -> None:
        self._engine = engine
        self._tenant = tenant
        self._run, self._fence = held.number, held.fence
        self._place = {"run": held.number, "incarnation": held.incarnation}

    def effects(self, prefix: str) -> dict[str, EffectRow]:
        """All effects whose key begins with this, by their keys."""
        rows = self._engine.rows(EffectRow, "effects", **self._place, low=prefix, high=f"{prefix}\U0010ffff")
        return {row.key: row for row in rows}

    def begin(self, key: str) -> EffectRow:
        """It is about to happen; or what an attempt that was late made of it. FencedOut if the run is somebody
        else's."""
        asked = {**self._place, "fence": self._fence, "key": key}
        hit(BEFORE_INTENT)
        # Sent twice, it has the same effect.
        found = send(lambda: self._engine.write(lambda tx: tx.one("begin_effect", **asked), alone=True))
        if found is None:
            return self.standing(key)
        hit(AFTER_INTENT)
        return EffectRow(key, "intent", attempts=found[0])

    def end(self, row: EffectRow, blocks: PreparedBlocks) -> EffectRow:
        """What it came to, as it stands from now on: an attempt that was late may have said so before. FencedOut if the
        run is somebody else's."""
        hit(BEFORE_RESULT)
        touched = self._send("end_effect", row, blocks, attempt=row.attempts)
        hit(AFTER_RESULT)
        return row if touched == 1 else self.standing(row.key)

    def put(self, row: EffectRow, blocks: PreparedBlocks) -> EffectRow:
        """What happened without having begun, or is told by somebody else; as it stands from now on."""
        return row if self._send("put_effect", row, blocks) == 1 else self.standing(row.key)

    def put_within(self, tx: Transaction, row: EffectRow) -> None:
        """The same in a transaction of what happened; FencedOut, and with it nothing happens."""
        if tx.execute("put_effect", **self._place, fence=self._fence, **_known(row)) != 1:
            raise fenced_out(self._run)

    def standing(self, key: str) -> EffectRow:
        """What is known of one effect; FencedOut if the run is somebody else's."""
        found = self.effects(key).get(key)
        if found is None or not self._is_held(self._engine):
            raise fenced_out(self._run, key=key)
        return found

    def _is_held(self, source: Statements) -> bool:
        return source.one("hold_run", run=self._run, fence=self._fence) is not None

    def _send(self, statement: str, row: EffectRow, blocks: PreparedBlocks, **more: int) -> int:
        """How many rows it touched."""

        def write(tx: Transaction) -> int:
            touched = tx.execute(statement, **self._place, fence=self._fence, **_known(row), **more)
            if touched == 1:
                add_bodies(tx, self._tenant, *blocks)
            return touched

        # Sent twice, it has the same effect.
        return send(lambda: self._engine.write(write, alone=not any(blocks)))

    def tasks(self, seq: int) -> dict[int, TaskRow]:
        """What is known of the tasks of one execution of a segment, by their items."""
        pages = self._engine.pages("run_tasks", {"after": -1}, limit=PAGE, **self._place, seq=seq)
        return {row[0]: TaskRow(*row) for page in pages for row in page}

    def group_seq(self, segment: str, before: int) -> int | None:
        """Where a segment was last executed before a place."""
        seq: int | None = self._engine.value("last_run_segment", **self._place, segment=segment, before=before)
        return seq

    def put_tasks(self, seq: int, rows: Sequence[TaskRow], blocks: PreparedBlocks) -> None:
        """Record tasks, with the blocks of their results; what was done before stays as it was. FencedOut, and nothing
        is recorded, if the run is somebody else's."""
        hit(BEFORE_RECORD)
        listed = [(*self._place.values(), seq, *row) for row in rows]

        def write(tx: Transaction) -> None:
            if not self._is_held(tx):
                raise fenced_out(self._run)
            tx.execute_many("put_run_task", listed)
            add_bodies(tx, self._tenant, *blocks)

        self._engine.write(write)
        hit(AFTER_RECORD)


def _known(row: EffectRow) -> dict[str, Any]:
    return {"key": row.key, "state": row.state, "result": row.result, "body": row.body}


def settle_effect(
    engine: Engine, tenant: TenantId, move: Move, row: EffectRow, blocks: PreparedBlocks, *beside: RowChange
) -> None:
    """Move a run that waits, say what came of the effect that it waits for, and whatever else changes, together;
    FencedOut if somebody else moved it."""

    def settle(tx: Transaction) -> None:
        change_runs(tx, [RowChange("move_run", move._asdict())])
        fence = move.fence + int(move.raised)
        tx.execute("put_effect", run=move.run, incarnation=move.incarnation, fence=fence, **_known(row))
        add_bodies(tx, tenant, *blocks)
        change_runs(tx, beside)

    moving(engine, settle)
