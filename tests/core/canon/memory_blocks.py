"""Blocks in a dict, with the counters that tests of cost read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

from analemma import BlockId, Operation
from tests.core.entry_points.canon import Trees, standard_registry


class MemoryBlocks:
    def __init__(self) -> None:
        self.data: dict[BlockId, bytes] = {}
        self.fetches: list[int] = []
        self.trees = Trees(self.fetch, standard_registry())

    def fetch(self, blocks: Sequence[BlockId]) -> dict[BlockId, bytes]:
        assert len(set(blocks)) == len(blocks), "a block was asked for twice in one fetch"
        self.fetches.append(len(blocks))
        return {block: self.data[block] for block in blocks}

    def save(self, edited: Any) -> BlockId:
        """Keep the blocks of what was built or edited; its root."""
        for block in edited.blocks:
            assert sha256(block.data).digest() == block.id
            self.data[block.id] = block.data
        root: BlockId = edited.root.id
        return root

    def made(self, value: Any) -> Any:
        """What a value is built to; nothing is kept."""
        return self.trees.build(value)

    def read(self, root: BlockId) -> Any:
        return self.trees.read(root)

    def diff(self, old: BlockId, new: BlockId) -> list[Operation]:
        return self.trees.diff(old, new)

    def build(self, value: Any) -> BlockId:
        return self.save(self.trees.build(value))

    def edit(self, root: BlockId, operations: Iterable[Operation]) -> BlockId:
        return self.save(self.trees.edit(root, operations))

    def blocks_fetched(self) -> int:
        """Blocks fetched since the last call."""
        total = sum(self.fetches)
        self.fetches.clear()
        return total
