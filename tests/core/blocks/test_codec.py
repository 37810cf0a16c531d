"""Stored block bodies: small, readable for ever, and bounded when hostile."""

from __future__ import annotations

import random
import threading
import zlib
from collections.abc import Callable, Iterable

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from analemma import BlockId
from analemma.errors import Corrupt, Limit
from analemma.testing.refusals import refuses
from tests.core.entry_points.blocks import Block, BlockRow, block_id, compress, decode_blocks, inline_rows

RAW, ZSTD = 0, 1

TEXT = b"version control for live state; " * 8
GOLDEN_FRAME = bytes.fromhex(
    "28b52ffd6000004d0100040276657273696f6e20636f6e74726f6c20666f72206c6976652073746174653b200100e80e4a3d0107ca9790"
)
"""TEXT as it was stored with zstandard 0.25. Never regenerate: stores hold frames like this one."""


Row = tuple[BlockId, int, bytes, int]


def sealed(frame: bytes) -> bytes:
    """A frame with its CRC: hostile ones come sealed too."""
    return frame + zlib.crc32(frame).to_bytes(4, "big")


def decode_all(rows: Iterable[Row]) -> dict[BlockId, bytes]:
    """What rows of the catalog hold."""
    return decode_blocks(
        BlockRow(block, size, codec, stored, None, None, None, None) for block, codec, stored, size in rows
    )


def decode(block: BlockId, codec: int, stored: bytes, size: int) -> bytes:
    return decode_all([(block, codec, stored, size)])[block]


def test_a_frame_written_long_ago_is_still_readable() -> None:
    assert decode(block_id(TEXT), ZSTD, GOLDEN_FRAME, len(TEXT)) == TEXT


@settings(deadline=None)
@given(st.binary(max_size=4000) | st.binary(min_size=1, max_size=40).map(lambda unit: unit * 100))
def test_what_is_compressed_comes_back(data: bytes) -> None:
    codec, stored = compress(data)
    assert len(stored) <= len(data)
    assert decode(block_id(data), codec, stored, len(data)) == data


def test_bytes_that_do_not_shrink_by_a_twentieth_stay_raw() -> None:
    noise = random.Random(1).randbytes(5000)
    assert compress(noise) == (RAW, noise)
    assert compress(b"tiny" * 10) == (RAW, b"tiny" * 10)
    assert compress(noise + bytes(100))[0] == RAW
    assert compress(noise + bytes(2000))[0] == ZSTD


def test_a_frame_states_its_size() -> None:
    assert zstandard.get_frame_parameters(compress(TEXT)[1]).content_size == len(TEXT)


def test_a_frame_that_grows_beyond_its_row_is_refused() -> None:
    bomb = sealed(zstandard.ZstdCompressor().compress(bytes(200 << 20)))
    block = block_id(bytes(200 << 20))
    assert len(bomb) < 20_000
    for size in (10, len(bomb), 200 << 20, 1 << 60, -1):
        with pytest.raises(Corrupt):
            decode(block, ZSTD, bomb, size)
    with pytest.raises(Corrupt):
        decode(block_id(b"x"), RAW, b"x", 1 << 60)


def test_a_frame_that_hides_its_size_is_refused() -> None:
    with pytest.raises(Corrupt):
        decode(block_id(TEXT), ZSTD, sealed(hidden(TEXT)), len(TEXT))


def test_a_wrong_size_is_corrupt() -> None:
    for codec, stored in ((RAW, TEXT), (ZSTD, GOLDEN_FRAME)):
        for size in (0, 1, len(TEXT) - 1, len(TEXT) + 1):
            assert refuses(decode, block_id(TEXT), codec, stored, size, error=Corrupt), (codec, size)


def test_damage_anywhere_in_a_stored_body_is_corrupt_and_names_the_block() -> None:
    text = " ".join(f"word{number % 37} {number * number}" for number in range(300)).encode()
    block = block_id(text)
    codec, stored = compress(text)
    for position in range(len(stored)):
        for bit in range(8):
            # Some bits of a zstd frame can flip without changing what it holds; those must be noticed too.
            damaged = bytearray(stored)
            damaged[position] ^= 1 << bit
            with pytest.raises(Corrupt) as caught:
                decode(block, codec, bytes(damaged), len(text))
            assert caught.value.facts["block"] == block.hex()
    for shortened in (stored[:-1], stored + b"x", stored + stored, sealed(stored[:-4] + b"x"), b""):
        with pytest.raises(Corrupt):
            decode(block, codec, shortened, len(text))
    with pytest.raises(Corrupt):
        decode(BlockId(bytes(32)), codec, stored, len(text))


def test_a_codec_from_the_future_is_corrupt_with_a_hint() -> None:
    with pytest.raises(Corrupt, match="newer"):
        decode(block_id(b"x"), 2, b"x", 1)


def test_threads_do_not_disturb_each_other() -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        data = random.Random(number).randbytes(50) * 200
        for _ in range(200):
            if decode(block_id(data), *compress(data), len(data)) != data:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def many(count: int) -> tuple[list[Row], dict[BlockId, bytes]]:
    """Blocks of every sort: frames, raw ones, a large one, an empty one."""
    contents = [b"%d " % number * 200 for number in range(count)]
    contents += [b"", b"short", random.Random(1).randbytes(500), b"large " * 100_000]
    rows = []
    for content in contents:
        codec, stored = compress(content)
        rows.append((block_id(content), codec, stored, len(content)))
    return rows, {block_id(content): content for content in contents}


def test_many_blocks_come_back_at_once() -> None:
    for count in (0, 5, 200):
        rows, contents = many(count)
        assert decode_all(rows) == contents
    assert decode_all([]) == {}


def hidden(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(content)


SPOILED: dict[str, Callable[[Row], Row]] = {
    "a bit": lambda row: (row[0], row[1], row[2][:-5] + bytes([row[2][-5] ^ 1]) + row[2][-4:], row[3]),
    "a piece of the frame": lambda row: (row[0], row[1], sealed(row[2][:-6]), row[3]),
    "all of it": lambda row: (row[0], row[1], b"", row[3]),
    "too few bytes claimed": lambda row: (row[0], row[1], row[2], row[3] - 1),
    "too many bytes claimed": lambda row: (row[0], row[1], row[2], row[3] + 1),
    "none claimed": lambda row: (row[0], row[1], row[2], 0),
    "fewer than none claimed": lambda row: (row[0], row[1], row[2], -1),
    "more than any block has claimed": lambda row: (row[0], row[1], row[2], 1 << 40),
    "another codec": lambda row: (row[0], 7, row[2], row[3]),
    "a frame that hides its size": lambda row: (row[0], row[1], sealed(hidden(b"100 " * 200)), row[3]),
    "another frame": lambda row: (row[0], row[1], sealed(zstandard.ZstdCompressor().compress(bytes(row[3]))), row[3]),
    "another id": lambda row: (block_id(b"another"), row[1], row[2], row[3]),
}


def test_one_damaged_block_among_many_is_found_and_named() -> None:
    good, _ = many(200)
    unnoticed = []
    for what, spoil in SPOILED.items():
        rows = [*good[:100], spoil(good[100]), *good[101:]]
        try:
            decode_all(rows)
        except Corrupt as exc:
            if exc.facts["block"] == rows[100][0].hex():
                continue
        unnoticed.append(what)
    assert unnoticed == []


def test_a_block_that_no_reader_would_take_is_not_stored() -> None:
    """No verb makes one: values, and lists of segments, are cut long before."""
    data = bytes((64 << 20) + 1)
    with pytest.raises(Limit, match="67108864"):
        inline_rows([Block(BlockId(bytes(32)), data, ())])
