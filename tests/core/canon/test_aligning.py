"""Aligning two sequences: always a correct alignment, whatever it costs to find the best one."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analemma.canon import aligning
from analemma.canon.aligning import Gap, align


def assert_aligned(old: Sequence[object], new: Sequence[object], gaps: list[Gap]) -> None:
    """Replacing every gap turns one sequence into the other, and between gaps both are the same."""
    rebuilt: list[object] = []
    at_old = at_new = 0
    for gap in gaps:
        assert at_old <= gap.old_start <= gap.old_stop <= len(old)
        assert at_new <= gap.new_start <= gap.new_stop <= len(new)
        assert gap.old_start < gap.old_stop or gap.new_start < gap.new_stop
        assert list(old[at_old : gap.old_start]) == list(new[at_new : gap.new_start])
        rebuilt += [*old[at_old : gap.old_start], *new[gap.new_start : gap.new_stop]]
        at_old, at_new = gap.old_stop, gap.new_stop
    assert [*rebuilt, *old[at_old:]] == list(new)


sequences = st.lists(st.integers(0, 6), max_size=40)


@given(sequences, sequences)
def test_what_lies_between_gaps_is_equal(old: list[int], new: list[int]) -> None:
    assert_aligned(old, new, align(old, new))


@given(sequences, sequences, st.integers(0, 3))
def test_an_exhausted_budget_still_gives_a_correct_alignment(old: list[int], new: list[int], passes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aligning, "ANCHOR_PASSES", passes)
        assert_aligned(old, new, align(old, new))


def staircase(steps: int) -> tuple[list[str], list[str]]:
    """Two sequences in which every pass finds one more element that occurs once on both sides."""
    shared = ["u"] + [name for number in range(steps) for name in (f"e{number + 1}", f"e{number}")]
    old = ["p", "p"] + [piece for name in shared for piece in (name, "S")]
    new = ["q", "q"] + [piece for name in shared for piece in (name, "T", "T")]
    return old, new


def test_a_staircase_is_aligned_in_time_proportional_to_its_length() -> None:
    old, new = staircase(4000)
    started = time.process_time()
    gaps = align(old, new)
    # Without a budget this takes half a minute; the bound leaves room for slow machines.
    assert time.process_time() - started < 8
    assert_aligned(old, new, gaps)
