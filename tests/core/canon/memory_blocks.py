"""Blocks in a dict, with the counters that tests of cost read."""

from __future__ import annotations

from collections.abc import Sequence

from analemma import BlockId
from analemma.canon.editing import Edited
from analemma.canon.identity import verify_block
from analemma.canon.standard_types import standard_registry
from analemma.canon.tree import Trees


class MemoryBlocks:
    def __init__(self) -> None:
        self.data: dict[BlockId, bytes] = {}
        self.fetches: list[int] = []
        self.trees = Trees(self.fetch, standard_registry())

    def fetch(self, blocks: Sequence[BlockId]) -> dict[BlockId, bytes]:
        assert len(set(blocks)) == len(blocks), "a block was asked for twice in one fetch"
        self.fetches.append(len(blocks))
        return {block: verify_block(block, self.data[block]) for block in blocks}

    def save(self, edited: Edited) -> BlockId:
        for block in edited.blocks:
            self.data[block.id] = verify_block(block.id, block.data)
        return edited.root.id

    def blocks_fetched(self) -> int:
        """Blocks fetched since the last call."""
        total = sum(self.fetches)
        self.fetches.clear()
        return total
