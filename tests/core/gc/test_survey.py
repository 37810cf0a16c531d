"""A survey sorts blocks by two streams of pages: of all blocks, and of those that are doomed."""

from __future__ import annotations

import itertools

from analemma import BlockId
from tests.core.entry_points.gc import Marks, Survey


def test_a_survey_sorts_by_mark_and_doom_however_pages_are_cut() -> None:
    blocks = [BlockId(bytes([number]) * 32) for number in range(1, 8)]
    marks = Marks()
    marks.nodes.update(blocks[:2])
    marks.leaves.add(blocks[2])
    dooms = [(blocks[1], 1), (BlockId(b"\x02" * 31 + b"\x03"), 1), (blocks[4], 4), (blocks[5], 5), (blocks[6], 9)]
    for page, doom_page in itertools.product([1, 2, 3, 7], [1, 2, 5]):
        pages = [blocks[start : start + page] for start in range(0, len(blocks), page)]
        doom_pages = [dooms[start : start + doom_page] for start in range(0, len(dooms), doom_page)]
        found = Survey()
        list(found.sort(pages, iter(doom_pages), marks, 5))
        assert (found.total, found.referenced, found.waiting) == (7, 3, 2), (page, doom_page)
        acted = (bytes(found.clear), bytes(found.doom), bytes(found.delete))
        assert acted == (blocks[1], blocks[3], blocks[4]), (page, doom_page)
