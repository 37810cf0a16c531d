"""The pack format: what is written reads back, and every damage is noticed."""

from __future__ import annotations

import hashlib
import random

import libipld
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analemma import BlockId
from analemma.errors import Corrupt, Invalid, NotFound
from analemma.testing.refusals import refuses
from tests.core.entry_points.blocks import (
    MemoryStore,
    PackEntry,
    block_id,
    build_pack,
    compress,
    decode_block,
    read_entries,
    verify_pack,
)

MAGIC = b"ANLMPACK"
HEADER = MAGIC + b"\x01"
TRAILER_BYTES = 8 + 32 + len(MAGIC)
BODIES = [b"first block", b"version control for live state; " * 8, random.Random(3).randbytes(500)]
GOLDEN_PACK = bytes.fromhex(
    "414e4c4d5041434b01666972737420626c6f636b28b52ffd6000004d0100040276657273696f6e20636f6e74726f6c20666f"
    "72206c6976652073746174653b200100e80e4a3d0107ca979082855821002af7909ca08f18facc556624b02e1a5c683bb0f5"
    "57137b1ef7e0028fc457715c00090b0b85582100a94ec10cb69641a36ca3a28ab42a5eb9aa005a02e2911bcb58de9228ed2f"
    "5c30011418371901000000000000000054a6c1861d62f94350e2898e7e6f45e89753afe47f54b73302e97efacaf6c8578841"
    "4e4c4d5041434b"
)
"""BODIES[:2] as format 1 wrote them. Never regenerate: stores hold packs like this one."""


def stored(body: bytes) -> tuple[BlockId, int, bytes, int]:
    codec, data = compress(body)
    return block_id(body), codec, data, len(body)


def body_of(entry: PackEntry, data: bytes) -> bytes:
    return decode_block(entry.id, entry.codec, data, entry.size)


def sealed(bodies: bytes, footer: bytes) -> bytes:
    """A pack with a valid trailer around any footer."""
    whole = HEADER + bodies + footer
    return whole + len(footer).to_bytes(8, "big") + hashlib.sha256(whole).digest() + MAGIC


def test_a_pack_written_long_ago_is_still_readable_and_written_the_same_today() -> None:
    entries = verify_pack(GOLDEN_PACK)
    for entry, body in zip(entries, BODIES[:2], strict=True):
        assert body_of(entry, GOLDEN_PACK[entry.offset : entry.end]) == body
    raw = [(block_id(body), 0, body, len(body)) for body in BODIES]
    assert build_pack(raw).sha256.hex() == "d61d0146c54ef6ea4d924d3ee7b07b56003158ed983ce247458096c6cd922cd9"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=12, unique=True))
def test_every_block_of_a_pack_reads_back(bodies: list[bytes]) -> None:
    pack = build_pack(map(stored, bodies))
    assert pack.sha256 == hashlib.sha256(pack.data).digest()
    assert verify_pack(pack.data) == pack.entries
    store = MemoryStore()
    store.put("packs/x", pack.data)
    read = read_entries(store, "packs/x", pack.entries)
    assert [body_of(entry, read[entry.id]) for entry in pack.entries] == bodies


def test_the_footer_of_a_pack_with_many_blocks_is_found() -> None:
    pack = build_pack(stored(b"%d" % number) for number in range(5000))
    assert len(verify_pack(pack.data)) == 5000


def test_an_id_that_looks_like_a_cid_is_kept_as_it_is() -> None:
    cid_like = BlockId(b"\x01\x71\x12\x20" + bytes(28))
    pack = build_pack([(cid_like, 0, b"x", 1)])
    assert verify_pack(pack.data)[0].id == cid_like


def test_the_same_block_is_stored_once() -> None:
    pack = build_pack([stored(BODIES[0]), stored(BODIES[1]), stored(BODIES[0])])
    assert pack.data == build_pack([stored(BODIES[0]), stored(BODIES[1])]).data


def test_what_cannot_be_a_pack_is_refused_when_writing() -> None:
    with pytest.raises(Invalid):
        build_pack([])
    with pytest.raises(Invalid):
        build_pack([(BlockId(b"short"), 0, b"x", 1)])


def test_damage_to_any_byte_is_corrupt() -> None:
    data = build_pack(map(stored, BODIES)).data
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        with pytest.raises(Corrupt):
            verify_pack(bytes(damaged))


def test_a_pack_cut_short_or_extended_is_corrupt() -> None:
    data = build_pack(map(stored, BODIES)).data
    for length in range(len(data)):
        with pytest.raises(Corrupt):
            verify_pack(data[:length])
    for damaged in (data + b"x", data[1:], b"", HEADER, data[: len(HEADER)] + data[-TRAILER_BYTES:]):
        with pytest.raises(Corrupt):
            verify_pack(damaged)


ID = b"\x00" + bytes(32)
OTHER = b"\x00" + bytes(31) + b"\x01"


LIES: list[object] = [
    [],
    {},
    [[ID, 0, 9, 10]],
    [[ID, 0, 9, 10, 10, 0]],
    [[ID, 0, 9, 11, 10]],
    [[ID, 0, 8, 10, 10]],
    [[ID, 0, 10, 9, 10]],
    [[ID, 0, 9, 5, 5]],
    [[ID, 0, 9, 10, 10], [OTHER, 0, 9, 10, 10]],
    [[ID, 0, 9, 6, 6], [OTHER, 0, 14, 5, 5]],
    [[ID, 0, 9, 5, 5], [ID, 0, 14, 5, 5]],
    [[ID, 0, 9, 0, 0], [OTHER, 0, 9, 10, 10]],
    [[ID, 0, 9, -10, 10]],
    [[ID, -1, 9, 10, 10]],
    [[ID, 0, 9, 10, -1]],
    [[ID, 0, 9, 10, 1 << 60]],
    [[ID, 0, 9, (1 << 63), 10]],
    [[ID[1:], 0, 9, 10, 10]],
    [[b"\x01" + bytes(32), 0, 9, 10, 10]],
    [["id", 0, 9, 10, 10]],
    [[ID, 0, 9.0, 10, 10]],
    [[ID, True, 9, 10, 10]],
    [ID],
    "text",
]


def test_a_footer_that_lies_is_corrupt() -> None:
    believed = []
    for rows in LIES:
        data = sealed(b"0123456789", libipld.encode_dag_cbor(rows))
        if not refuses(verify_pack, data, error=Corrupt):
            believed.append(rows)
    assert believed == []


def test_a_footer_that_is_not_written_our_way_is_corrupt() -> None:
    good = libipld.encode_dag_cbor([[ID, 0, 9, 10, 10]])
    assert verify_pack(sealed(b"0123456789", good))
    nested = b"\x81" * 200_000 + b"\x00"
    for footer in (b"\x98\x01" + good[1:], good + b"\x00", b"\xff", nested):
        with pytest.raises(Corrupt):
            verify_pack(sealed(b"0123456789", footer))


def test_entries_are_read_in_whatever_order_they_are_asked_for() -> None:
    bodies = [random.Random(number).randbytes(20_000) for number in range(20)]
    pack = build_pack((block_id(body), 0, body, len(body)) for body in bodies)
    store = MemoryStore()
    store.put("packs/x", pack.data)
    for chosen in ((4, 0, 2), (0, 19), range(20), ()):
        wanted = [pack.entries[index] for index in chosen]
        assert read_entries(store, "packs/x", wanted) == {pack.entries[index].id: bodies[index] for index in chosen}


def test_a_range_outside_the_pack_is_corrupt() -> None:
    store = MemoryStore()
    store.put("packs/x", build_pack(map(stored, BODIES)).data)
    spans = [(0, 10), (8, 1), (-5, 3), (9, 0), (9, -1), (9, 1 << 40), (1 << 40, 5)]
    entries = [PackEntry(BlockId(bytes(32)), 0, offset, length, 10) for offset, length in spans]
    assert [each for each in entries if not refuses(read_entries, store, "packs/x", [each], error=Corrupt)] == []


def test_a_missing_pack_is_not_found() -> None:
    with pytest.raises(NotFound):
        read_entries(MemoryStore(), "packs/x", [PackEntry(BlockId(bytes(32)), 0, 9, 1, 1)])
