"""Pending writes of LangGraph's threads belong to the version: one that is gone back to, or forked, waits for what it
waited for, and what had finished beside it is not done again.

A task's id follows from the id of its checkpoint. So a version that is gone back to has a row of its own, with the
greatest id, and calls itself as the checkpoint that it repeats, with dashes behind that: LangGraph leaves dashes out
when it makes ids of tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from analemma.canon.nodes import BlockId
from analemma.catalog.engine.db import Transaction
from analemma.catalog.langgraph.threads import (
    ANSWERED,
    ID_BYTES,
    RESUMED,
    CheckpointRow,
    ThreadRows,
    Written,
    following,
)
from analemma.catalog.port import BranchKey, RowChange

INTERRUPT, RESUME, ERROR, HANDLED = "__interrupt__", "__resume__", "__error__", "__error_source_node__"

_SYNTHETIC = re.compile(r"0000\d{4}-")
"""Ids under which LangGraph stores writes that no task made, or that a later one of the same run did."""


def carry(
    rows: ThreadRows, source: BlockId, begun: BranchKey, key: BranchKey, made: BlockId, at_us: int
) -> list[RowChange]:
    """For a commit that makes a version of the branch `begun` the newest of another, or of the same: what makes it the
    checkpoint that it was, with what was pending then. Nothing if it is none, or if the branch is no such namespace."""
    if key.branch != begun.branch:
        return []
    place = rows.key(begun.workflow, begun.branch)
    row = rows.engine.row(CheckpointRow, "checkpoint_of_version", **place, manifest=source)
    if row is None:
        return []
    if key.workflow != begun.workflow:
        return _forked(rows, row, key.workflow, made)
    changes, waiting = _with_pending(rows, row, _repeating(rows, row, made, at_us))
    for each in _below(rows, row.thread, waiting):
        # Its own newest is further, once what it waited for has come.
        newest, _ = rows.newest(each.thread, each.branch)
        if newest is None or each.checkpoint != newest.checkpoint:
            changes += _with_pending(rows, each, _repeating(rows, each, each.manifest, None))[0]
    return changes


def adopt(rows: ThreadRows, row: CheckpointRow, said: str) -> None:
    """Make a checkpoint of the head that somebody else left, with what is pending on the one that it says to be; the id
    follows from the version, so doing it twice does nothing."""
    rows.check_row(row)
    source = rows.find(row.thread, row.branch, said)
    made = row._replace(alias=_alias(rows, row, said), deltas=None if source is None else source.deltas)
    pending = [] if source is None else _pending(rows, source, made)

    def write(tx: Transaction) -> None:
        if tx.execute("adopt_version", **rows.key(), **made._asdict()) == 1:
            rows.put_writes(tx, made.thread, made.branch, pending)

    rows.engine.write(write)


def _waited_for(writes: Iterable[Written]) -> list[Written]:
    """Of what was written on top of a checkpoint that is continued, what a thread that stood there waited for: an
    interrupt, or a failure, and what had finished beside it."""
    by_task: dict[str, list[Written]] = {}
    for written in writes:
        by_task.setdefault(written.task, []).append(written)
    waiting = {task for task, each in by_task.items() if _waits(each)}
    kept: list[Written] = []
    for task, each in by_task.items() if waiting else ():
        if task not in waiting:
            kept += [written for written in each if _is_result(written)]
            continue
        kept += [written for written in each if written.channel in (INTERRUPT, ERROR) or written.place == ANSWERED]
        # With its last question a task repeats the answers to those before.
        kept += [written._replace(place=RESUMED) for written in each if written.place == ANSWERED]
    return kept


def _forked(rows: ThreadRows, row: CheckpointRow, thread: str, made: BlockId) -> list[RowChange]:
    """A thread of its own, with the line of checkpoints that led here: their rows, none of their state."""
    changes = _line(rows, row, thread)
    own, waiting = _with_pending(rows, row, row._replace(thread=thread, manifest=made))
    changes += own
    for each in _below(rows, row.thread, waiting):
        changes += _line(rows, each, thread) + _with_pending(rows, each, each._replace(thread=thread))[0]
    return changes


def _line(rows: ThreadRows, row: CheckpointRow, thread: str) -> list[RowChange]:
    above = rows.line(row)
    if not above:
        return []
    chosen = {**rows.key(row.thread, row.branch), "target": thread, "checkpoints": above}
    writes = RowChange("copy_line_writes", {**chosen, "end": "", "writers": []}, None)
    return [RowChange("copy_line", chosen, len(above)), writes]


def _below(rows: ThreadRows, thread: str, waiting: Sequence[str]) -> list[CheckpointRow]:
    """Where the graphs inside of waiting tasks wait themselves."""
    found: list[CheckpointRow] = []
    for branch in rows.branches(thread) if waiting else ():
        row = rows.engine.row(CheckpointRow, "waiting_checkpoint", **rows.key(thread, branch))
        if row is not None and any(f":{task}" in row.namespace for task in waiting):
            found.append(row)
    return found


def _with_pending(rows: ThreadRows, source: CheckpointRow, made: CheckpointRow) -> tuple[list[RowChange], list[str]]:
    """The row of a checkpoint that repeats another, and those of what is pending; which tasks wait."""
    rows.check_row(made)
    pending, place = _pending(rows, source, made), rows.key(made.thread, made.branch)
    waiting = sorted({each.task for each in pending if each.channel in (INTERRUPT, ERROR)})
    writes = [RowChange("put_write", {**place, **written._asdict()}, None) for written in pending]
    return [rows.put(made, base=None), *writes], waiting


def _pending(rows: ThreadRows, source: CheckpointRow, made: CheckpointRow) -> list[Written]:
    """What was pending on a checkpoint when a thread stood there, for one that repeats it."""
    place = rows.key(source.thread, source.branch)
    continued = rows.engine.one("continued", **place, checkpoint=source.checkpoint) is not None
    writes = rows.writes(source.thread, source.branch, source.checkpoint)
    pending = _waited_for(writes) if continued else writes
    return [written._replace(checkpoint=made.checkpoint, writer=None) for written in pending]


def _repeating(rows: ThreadRows, row: CheckpointRow, made: BlockId, at_us: int | None) -> CheckpointRow:
    """A row that repeats another as the newest of its namespace."""
    newest, _ = rows.newest(row.thread, row.branch)
    name = following(newest, made, at_us)
    return row._replace(checkpoint=name, manifest=made, run=None, alias=_alias(rows, row, row.alias or row.checkpoint))


def _alias(rows: ThreadRows, row: CheckpointRow, said: str) -> str | None:
    """The name with one dash more behind it than any other has."""
    said = said.rstrip("-")
    aliases = rows.engine.rows(str, "aliases", **rows.key(row.thread, row.branch))
    taken = [len(alias) for alias in aliases if alias.rstrip("-") == said]
    alias = said + "-" * (max(taken, default=len(said)) - len(said) + 1)
    return alias if len(alias.encode()) <= ID_BYTES else None


def _waits(writes: Sequence[Written]) -> bool:
    told = {written.channel for written in writes}
    return INTERRUPT in told or (ERROR in told and HANDLED not in told)


def _is_result(written: Written) -> bool:
    """Whether a task wrote it in the step itself: inputs and updates have no path, and what a run stored at its end is
    under ids of another kind."""
    path = written.task_path
    return bool(path) and not path.startswith("~~") and not _SYNTHETIC.match(written.task)
