"""Where a list differs from what it was, as gaps between stretches that were kept."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import compress, count
from operator import is_not
from typing import Any

from analemma.canon.align import Gap, align
from analemma.canon.edit import Runs


def shell_gaps(runs: Runs, length: int) -> list[Gap]:
    """Of a list that is known as runs of the items it had, of which there were so many, and of new ones."""
    gaps: list[Gap] = []
    old = new = fresh = 0
    for run in [*runs, range(length, length)]:
        if isinstance(run, list):
            fresh += len(run)
            continue
        if run.start > old or fresh:
            gaps.append(Gap(old, run.start, new, new + fresh))
        new += fresh + len(run)
        old, fresh = run.stop, 0
    return gaps


def loaded_gaps(old: Sequence[Any], new: Sequence[Any]) -> list[Gap]:
    """Of items that are all at hand. The same is what is the same object: equal ones may differ in type."""
    shorter = min(len(old), len(new))
    start = next(compress(count(), map(is_not, old, new)), shorter)
    if start == len(old) == len(new):
        return []
    most = shorter - start
    end = min(most, next(compress(count(), map(is_not, reversed(old), reversed(new))), most))
    middle = align(
        list(map(id, old[start : len(old) - end])),
        list(map(id, new[start : len(new) - end])),
    )
    return [Gap(*[place + start for place in gap]) for gap in middle]


def new_place(gaps: Sequence[Gap], place: int) -> int | None:
    """Where an item stands that stood at this place; None if it was not kept."""
    before = bisect_right(gaps, place, key=lambda gap: gap.old_stop)
    if before < len(gaps) and place >= gaps[before].old_start:
        return None
    return place + (gaps[before - 1].new_stop - gaps[before - 1].old_stop if before else 0)
