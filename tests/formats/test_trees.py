"""The stored bytes of trees do not change: what was written by any release stays readable and is written the same
again."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from analemma import BlockId
from analemma.testing.strategies import shown
from tests.core.canon.memory_blocks import MemoryBlocks
from tests.core.entry_points.canon import admit_block
from tests.formats.golden_values import SMALL, describe

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "trees_1.json").read_text())


def block_id(data: bytes) -> BlockId:
    return BlockId(sha256(data).digest())


def test_values_are_written_as_they_always_were() -> None:
    assert describe() == GOLDEN


def test_old_blocks_are_read_as_they_always_were() -> None:
    for name, golden in GOLDEN["small"].items():
        blocks = MemoryBlocks()
        blocks.data = {block_id(data): data for data in map(bytes.fromhex, golden["blocks"])}
        assert shown(blocks.read(BlockId(bytes.fromhex(golden["root"])))) == shown(SMALL[name]), name


def test_old_blocks_may_enter_from_outside() -> None:
    for golden in GOLDEN["small"].values():
        for data in map(bytes.fromhex, golden["blocks"]):
            assert admit_block(data, block_id(data)).data == data
