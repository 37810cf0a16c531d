"""Records of versions whose bytes are pinned: manifests, the journal, receipts, lists of segments.
`python -m tests.formats.golden_records` prints the file; it is only ever added to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from analemma import BlockId
from tests.core.entry_points.state import (
    BranchKey,
    Head,
    Link,
    Manifest,
    Receipt,
    Segment,
    encode_manifest,
    encode_receipt,
    insert_segment,
    make_list,
    next_record,
)

KEY = BranchKey("ann", "trip", "idée")
AT_US = 1_700_000_000_000_000


def named(number: int) -> BlockId:
    """Some block's name."""
    return BlockId(bytes([number]) * 32)


FIRST = Manifest(BranchKey("ann", "trip"), 1, None, Link(named(1), "map", 2, 40, False), AT_US, bytes(range(16)))
FULL = Manifest(
    KEY,
    7,
    named(2),
    Link(named(1), "map", 3, 99, True),
    AT_US + 1,
    bytes(16),
    execution="run-1",
    segment=-4,
    message="why",
    metadata={"model": "m-1", "n": 2},
    config=named(3),
    segments=named(4),
)
RECEIPT = Receipt(KEY, named(5), 7, named(2), named(1), 9, bytes([6]) * 32)
HEAD = Head(KEY, named(2), 6, 8, bytes([7]) * 32)
COMMITTED = next_record(KEY, None, kind="committed", manifest=named(5), at_us=AT_US, version=1)
TAGGED = next_record(
    KEY,
    HEAD,
    kind="tagged",
    manifest=named(2),
    at_us=AT_US,
    facts={"tag": "good", "message": None, "moved_from": None},
)
SEGMENTS = [
    Segment(Link(named(8), "map", 1, 20, False)),
    Segment(Link(named(9), "map", 2, 30, False), {"id": "two", "type": "steps"}),
]
MANY = [Segment(Link(named(number % 256), "map", 1, number, False), number % 3 or None) for number in range(300)]


def map_of(stored: dict[BlockId, bytes], blocks: Sequence[BlockId]) -> dict[BlockId, bytes]:
    """Some of these blocks."""
    return {block: stored[block] for block in blocks}


def describe() -> dict[str, Any]:
    """What is pinned."""
    listed, of_many = make_list(MANY)
    stored = {block.id: block.data for block in of_many}
    _, with_one_more = insert_segment(
        lambda blocks: {block: stored[block] for block in blocks}, listed, 150, SEGMENTS[1]
    )
    return {
        "first_manifest": encode_manifest(FIRST).data.hex(),
        "full_manifest": encode_manifest(FULL).data.hex(),
        "first_receipt": encode_receipt(Receipt(KEY, named(5), 1, None, named(1), 1, bytes(32))).hex(),
        "receipt": encode_receipt(RECEIPT).hex(),
        "committed": COMMITTED.body.hex(),
        "tagged": TAGGED.body.hex(),
        "segments": make_list(SEGMENTS, 3)[1][-1].data.hex(),
        "many_segments": [block.data.hex() for block in of_many],
        "many_segments_and_one": [block.data.hex() for block in with_one_more],
    }


if __name__ == "__main__":
    print(json.dumps(describe(), indent=1))
