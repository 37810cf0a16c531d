"""Running again from an earlier point: in place, after a rollback, or on a fork."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from analemma.canon.nodes import BlockId
from analemma.catalog.port import RowChange
from analemma.catalog.runs.runs import NewRun, RunRow, SegmentRow, as_us
from analemma.errors import Conflict, Invalid, NotFound
from analemma.flows.continuing import changed, moved, workflow_status
from analemma.flows.held_runs import RunnerParts
from analemma.flows.run_kernel import Standing
from analemma.flows.subflows import end_strays
from analemma.state.arguments import branch_key, check_version

SHORT: Final = 8
"""So much of a run's id names the branch that it is forked to."""


def choose_segment(
    segments: Sequence[SegmentRow], from_segment: int | str | None, from_version: BlockId | None
) -> SegmentRow:
    """The execution of a segment to begin with: the last of the segment that is named, or the first that began with the
    version."""
    if from_segment is not None:
        found = [row for row in segments if from_segment in (row.segment, row.place)]
        if not found:
            raise NotFound(f"the run has not executed segment {from_segment}", hint="see run.segments")
        return found[-1]
    begun = [row for row in segments if row.input == from_version]
    if not begun:
        raise NotFound("no segment of the run began with this version", hint="see run.segments")
    return begun[0]


class Rerunning:
    """Makes runs stand where they stood before."""

    def __init__(self, parts: RunnerParts) -> None:
        self._parts = parts

    def point(
        self, row: RunRow, segments: Sequence[SegmentRow], from_segment: int | str | None, from_version: int | None
    ) -> SegmentRow:
        """Where to begin again; Conflict while somebody is at it."""
        if row.status in ("RUNNING", "PENDING"):
            raise Conflict(f"the run {row.execution} is {row.status}", hint="cancel it first")
        if (from_segment is None) == (from_version is None):
            raise Invalid("a rerun begins at a segment or at a version", hint="pass from_segment or from_version")
        if from_segment is not None and type(from_segment) not in (int, str):
            raise Invalid(f"{from_segment!r} names no segment", hint="a number from 0, or an id")
        manifest = None
        if from_version is not None:
            manifest = self._parts.kernel.version_manifest(row.key, check_version(from_version))
        return choose_segment(segments, from_segment, manifest)

    def in_place(self, row: RunRow, at: SegmentRow) -> tuple[RunRow, Standing]:
        """Roll back to what the segment began with, and hold the run in its next incarnation."""
        parts = self._parts
        target = self._target(row, at)
        limit = parts.kernel.plan(target).timeout_s

        def rows(manifest: BlockId) -> list[RowChange]:
            move = moved(row, "RUNNING", from_status=row.status, due_in_s=0.0)._replace(
                position=at.position, head=manifest, incarnation=row.incarnation + 1
            )
            status = workflow_status(parts, row.key, "RUNNING")
            restarted = parts.rows.restart_deadline(row.number, limit)
            # What was executed before that place is what the next incarnation has executed.
            taken = {"run": row.number, "incarnation": row.incarnation, "next": row.incarnation + 1, "below": at.seq}
            return [*changed(parts, row, move), RowChange("take_over_segments", taken, None), *restarted, status]

        standing = parts.kernel.roll_back(target, target.state.version, row.execution, rows)
        moved_row = self._found(row.execution)
        # Now: it may be long until somebody takes up the run, who ends what is left if we die here.
        end_strays(parts, moved_row)
        return moved_row, standing

    def forked(self, row: RunRow, at: SegmentRow, branch: str | None) -> tuple[RunRow, Standing]:
        """A run of its own that goes on from what the segment began with, on a branch of its own."""
        parts = self._parts
        source = self._target(row, at)
        execution = parts.entropy.random_bytes(16).hex()
        key = branch_key(row.owner, row.workflow, branch or f"rerun-{execution[:SHORT]}")
        options = {**json.loads(row.options), "forked_from": {"execution_id": row.execution, "seq": at.seq}}
        new = NewRun(
            execution=execution,
            **key._asdict(),
            name=row.name,
            document=row.document,
            status="PENDING",
            position=at.position,
            options=json.dumps(options, separators=(",", ":")),
            fingerprint=row.fingerprint,
            limit=as_us(parts.kernel.plan(source).timeout_s),
            queue=row.queue,
            priority=row.priority,
        )
        standing = parts.kernel.fork_run(source, key, execution, lambda manifest: parts.rows.add(new, manifest))
        return self._found(execution), standing

    def _target(self, row: RunRow, at: SegmentRow) -> Standing:
        """What the segment began with, to be run with the run's own document."""
        return self._parts.kernel.stand_on_state(at.input, BlockId(row.document), row.head)

    def _found(self, execution: str) -> RunRow:
        row = self._parts.rows.get(execution)
        if row is None:
            raise NotFound(f"there is no run {execution}", hint="runs() lists them", execution=execution)
        return row
