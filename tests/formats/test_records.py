"""Records of versions keep their bytes, and those that were ever written are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from analemma import BlockId
from analemma.errors import Corrupt
from tests.core.entry_points.blocks import block_id
from tests.core.entry_points.state import (
    LONGEST,
    all_segments,
    decode_manifest,
    decode_receipt,
    decode_segments,
    find_segment,
    make_list,
    read_record,
)
from tests.formats import golden_records as golden

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("records_1.json").read_text(encoding="utf-8"))
SOME = BlockId(bytes(32))


def stored(name: str) -> bytes:
    return bytes.fromhex(GOLDEN[name])


def nothing(blocks: Sequence[BlockId]) -> dict[BlockId, bytes]:
    assert not blocks
    return {}


def read_journal(data: bytes) -> dict[str, Any]:
    return read_record(replace(golden.TAGGED, body=data, hash=sha256(data).digest()))


def test_records_have_the_bytes_that_they_always_had() -> None:
    assert golden.describe() == GOLDEN


def test_records_of_then_are_read() -> None:
    assert decode_manifest(SOME, stored("first_manifest")) == golden.FIRST
    assert decode_manifest(SOME, stored("full_manifest")) == golden.FULL
    assert decode_receipt(stored("receipt")) == golden.RECEIPT
    listed = decode_segments(SOME, stored("segments"))
    assert (listed.hash_version, all_segments(nothing, listed)) == (3, tuple(golden.SEGMENTS))
    tagged = read_journal(stored("tagged"))
    assert (tagged["kind"], tagged["version"], tagged["facts"]["tag"]) == ("tagged", None, "good")


def test_a_long_list_of_segments_of_then_is_read() -> None:
    blocks = {
        block_id(data): data
        for name in ("many_segments", "many_segments_and_one")
        for data in map(bytes.fromhex, GOLDEN[name])
    }

    def fetch(wanted: Sequence[BlockId]) -> dict[BlockId, bytes]:
        return {block: blocks[block] for block in wanted}

    for name, expected in (
        ("many_segments", golden.MANY),
        ("many_segments_and_one", [*golden.MANY[:150], golden.SEGMENTS[1], *golden.MANY[150:]]),
    ):
        listed = decode_segments(SOME, bytes.fromhex(GOLDEN[name][-1]))
        assert all_segments(fetch, listed) == tuple(expected)
        assert [find_segment(fetch, listed, number) for number in range(-1, 302)] == [
            None,
            *expected,
            *[None] * (302 - len(expected)),
        ]


def test_a_list_of_this_length_is_still_one_block() -> None:
    for count, blocks in ((0, 1), (1, 1), (LONGEST, 1), (LONGEST + 1, 3)):
        assert len(make_list(golden.MANY[:count])[1]) == blocks


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("receipt", lambda data: decode_manifest(SOME, data)),
        ("tagged", decode_receipt),
        ("full_manifest", lambda data: decode_segments(SOME, data)),
        ("segments", read_journal),
    ],
)
def test_a_record_of_another_kind_is_damage(name: str, read: Callable[[bytes], object]) -> None:
    with pytest.raises(Corrupt, match="kind"):
        read(stored(name))
