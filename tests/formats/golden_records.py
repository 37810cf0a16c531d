"""Records of versions whose bytes are pinned: manifests, the journal, receipts, lists of segments.
`python -m tests.formats.golden_records` prints the file; it is only ever added to."""

from __future__ import annotations

import json
from typing import Any

from analemma import BlockId
from tests.core.entry_points.state import (
    BranchKey,
    Head,
    Link,
    Manifest,
    Receipt,
    Segment,
    SegmentList,
    encode_manifest,
    encode_receipt,
    encode_segments,
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
SEGMENTS = SegmentList(
    (
        Segment(Link(named(8), "map", 1, 20, False)),
        Segment(Link(named(9), "map", 2, 30, False), {"id": "two", "type": "steps"}),
    ),
    3,
)


def describe() -> dict[str, Any]:
    """What is pinned."""
    return {
        "first_manifest": encode_manifest(FIRST).data.hex(),
        "full_manifest": encode_manifest(FULL).data.hex(),
        "first_receipt": encode_receipt(Receipt(KEY, named(5), 1, None, named(1), 1, bytes(32))).hex(),
        "receipt": encode_receipt(RECEIPT).hex(),
        "committed": COMMITTED.body.hex(),
        "tagged": TAGGED.body.hex(),
        "segments": encode_segments(SEGMENTS).data.hex(),
    }


if __name__ == "__main__":
    print(json.dumps(describe(), indent=1))
