"""Records of versions keep their bytes, and those that were ever written are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from analemma import BlockId
from analemma.errors import Corrupt
from tests.core.entry_points.state import decode_manifest, decode_receipt, decode_segments, read_record
from tests.formats import golden_records as golden

GOLDEN: dict[str, str] = json.loads(Path(__file__).with_name("records_1.json").read_text(encoding="utf-8"))
SOME = BlockId(bytes(32))


def stored(name: str) -> bytes:
    return bytes.fromhex(GOLDEN[name])


def read_journal(data: bytes) -> dict[str, Any]:
    return read_record(replace(golden.TAGGED, body=data, hash=sha256(data).digest()))


def test_records_have_the_bytes_that_they_always_had() -> None:
    assert golden.describe() == GOLDEN


def test_records_of_then_are_read() -> None:
    assert decode_manifest(SOME, stored("first_manifest")) == golden.FIRST
    assert decode_manifest(SOME, stored("full_manifest")) == golden.FULL
    assert decode_receipt(stored("receipt")) == golden.RECEIPT
    assert decode_segments(SOME, stored("segments")) == golden.SEGMENTS
    tagged = read_journal(stored("tagged"))
    assert (tagged["kind"], tagged["version"], tagged["facts"]["tag"]) == ("tagged", None, "good")


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
