"""How it is kept where a run stands, and what its segments came to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from analemma.canon.nodes import BlockId
from analemma.catalog.runs.runs import EndedSegment, SegmentStatus
from analemma.flows.runs import RunError
from analemma.flows.segments import Segment
from analemma.flows.walking import Position, iterations_at

if TYPE_CHECKING:
    from analemma.flows.held_runs import Held


def ended_segment(
    held: Held,
    segment: Segment,
    status: SegmentStatus,
    before: BlockId,
    after: BlockId,
    *,
    attempts: int = 1,
    took_us: int = 0,
    error: RunError | None = None,
) -> EndedSegment:
    """What the segment at hand came to, as it is kept."""
    iterations = iterations_at(held.plan, held.position)
    return EndedSegment(
        seq=held.position.executed,
        segment=segment.id,
        place=held.plan.numbers[segment.id],
        iteration=iterations[-1] if iterations else 0,
        before=held.position_text(),
        segment_status=status,
        input=before,
        output=after,
        attempts=attempts,
        segment_error=None if error is None else error.to_text(),
        took=took_us,
    )


def position_text(position: Position, segments: BlockId, hash_version: int) -> str:
    """A position as it is kept, with the list of segments that it is a place in."""
    place = {"segments": segments.hex(), "hash_version": hash_version}
    return orjson.dumps({**position.to_value(), **place}).decode()
