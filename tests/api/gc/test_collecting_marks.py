"""Marking follows every link, reads nothing that leads nowhere, and keeps little in memory."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest

from analemma import BlockId
from analemma.canon.nodes import block_links
from analemma.gc.marking import LeafSet, Marks, mark
from analemma.gc.surveying import survey
from tests.api.gc.collections import PLACE, blocks_of, text
from tests.stores import Store


def drain(steps: Any) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def test_marking_finds_what_a_walk_over_all_bytes_finds_and_reads_no_leaf(store: Store) -> None:
    with store.open() as app:
        state = {
            "rows": [{"note": text(f"{row}", 2500) if row % 50 == 0 else "x" * 40} for row in range(400)],
            "map": {f"k{number}": number for number in range(3000)},
            "text": text("long", 400_000),
        }
        app.kernel.save_state_delta(state, **PLACE, metadata={"large": text("metadata")})
        pointer = app.kernel.create_manifest(
            "flow", {"c": text("config")}, [{"s": text("one")}, {"s": 2}], owner_id="ann"
        )
        roots = [
            BlockId(bytes.fromhex(name)) for name in (app.kernel.history(**PLACE)[0].manifest_id, pointer.manifest_id)
        ]
        read: list[BlockId] = []

        def reading(ids: Any) -> dict[BlockId, bytes]:
            read.extend(ids)
            return app.default.blocks.read_uncached(ids)

        marks: Marks = drain(mark(roots, reading))
        everything = blocks_of(app.default, app)
        assert marks.missing(sorted(everything)) == []
        bodies = app.default.blocks.read_uncached(sorted(everything))
        leaves = {block for block, data in bodies.items() if not block_links(data)}
        # What is named without saying whether it leads further has to be looked at: configuration and metadata.
        assert len(leaves & set(read)) <= 4 < len(leaves)
        assert len(read) == len(set(read))


def test_a_leaf_set_holds_what_was_added_in_few_bytes() -> None:
    generator = random.Random(1)
    ids = sorted(BlockId(generator.randbytes(32)) for _ in range(200_000))
    tracemalloc.start()
    leaves = LeafSet()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(3):
        for block in ids[::2]:
            leaves.add(block)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert leaves.missing(ids) == ids[1::2]
    assert grown < 100_000 * 24 + 256 * 4096 * 16


@pytest.mark.parametrize("doom_page", [1, 2, 5])
@pytest.mark.parametrize("page", [1, 2, 3, 7])
def test_a_survey_sorts_by_mark_and_doom(page: int, doom_page: int) -> None:
    blocks = [BlockId(bytes([number]) * 32) for number in range(1, 8)]
    marks = Marks()
    marks.nodes.update(blocks[:2])
    marks.leaves.add(blocks[2])
    dooms = [(blocks[1], 1), (BlockId(b"\x02" * 31 + b"\x03"), 1), (blocks[4], 4), (blocks[5], 5), (blocks[6], 9)]
    pages = [blocks[start : start + page] for start in range(0, len(blocks), page)]
    doom_pages = [dooms[start : start + doom_page] for start in range(0, len(dooms), doom_page)]
    found = drain(survey(iter(pages), iter(doom_pages), marks, 5))
    assert (found.total, found.referenced, found.waiting) == (7, 3, 2)
    assert (bytes(found.clear), bytes(found.doom), bytes(found.delete)) == (blocks[1], blocks[3], blocks[4])
