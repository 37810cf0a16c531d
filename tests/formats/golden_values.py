"""Values whose stored bytes are pinned. `python -m tests.formats.golden_values` prints the file; it is only ever added
to."""

from __future__ import annotations

import datetime as dt
import json
import random
import uuid
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import libipld

from analemma.testing.strategies import EDGE_SCALARS, LOOK_ALIKES
from tests.core.canon.memory_blocks import MemoryBlocks

SMALL: dict[str, Any] = {
    "null": None,
    "negative zero": -0.0,
    "bytes": b"\x01\x71\x12\x20 and more",
    "empty map": {},
    "empty list": [],
    "scalars": EDGE_SCALARS,
    "look-alikes": LOOK_ALIKES,
    "map order": {"b": 1, "aa": 2, "a": 3, "é": 4, "": 5, "\U0001f600": 6},
    "lone empty key": {"": {"": 1}},
    "standard types": {
        "datetime": dt.datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Paris"), fold=1),
        "utc": dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        "offset": dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1), "CET")),
        "date": dt.date(2020, 2, 29),
        "time": dt.time(1, 2, 3, 4),
        "timedelta": dt.timedelta(days=-1, microseconds=5),
        "decimal": Decimal("1.10"),
        "uuid": uuid.UUID(int=7),
        "tuple": (1, "x"),
        "set": {3, 1, 2, 256},
        "frozenset": frozenset({"b", "a", "aa"}),
    },
    "linked text": {"text": "x" * 2046, "inline": "x" * 2045},
}


def large_values() -> dict[str, Any]:
    """Values that make trees of several levels."""
    pick = random.Random(1)
    return {
        "messages": {"messages": [{"role": "user", "content": pick.randbytes(300).hex()} for _ in range(3000)]},
        "wide map": {f"key {number}": {"n": number, "text": pick.randbytes(20).hex()} for number in range(5000)},
        "identical items": ["the same item " * 8] * 10_000,
        "periodic items": [f"item {number % 7} " * 10 for number in range(10_000)],
        "long text": pick.randbytes(600_000).hex() + "€" * 200_000,
        "long bytes": pick.randbytes(1_500_000),
        "huge keys": {str(number) + "k" * 9000: number for number in range(50)},
    }


def cuts(data: bytes) -> list[int]:
    """Where long bytes are cut."""
    nodes = [libipld.decode_dag_cbor(block.data) for block in MemoryBlocks().made(data).blocks]
    ends, end = [], 0
    for kind, level, _, body in nodes:
        if (kind, level) == ("bytes", 0):
            end += len(body) - 1
            ends.append(end)
    return ends


def describe() -> dict[str, Any]:
    """Roots and blocks of all of them, and the cuts of a long text."""
    build = MemoryBlocks().made
    small = {}
    for name, value in SMALL.items():
        made = build(value)
        small[name] = {"root": made.root.id.hex(), "blocks": [block.data.hex() for block in made.blocks]}
    large = {}
    for name, value in large_values().items():
        made = build(value)
        large[name] = {"root": made.root.id.hex(), "blocks": len(made.blocks), "size": made.root.size}
    return {"small": small, "large": large, "cuts": cuts(random.Random(2).randbytes(3_000_000))}


if __name__ == "__main__":
    print(json.dumps(describe(), indent=1))
