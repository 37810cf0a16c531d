"""Stored block bodies: small, readable for ever, and bounded when hostile."""

from __future__ import annotations

import random
import threading
import zlib
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from analemma import BlockId
from analemma.blocks.codec import MAX_BLOCK_BYTES, RAW, ZSTD, compress, decode_block, decode_blocks, decompress
from analemma.canon.identity import block_id
from analemma.errors import Corrupt

TEXT = b"version control for live state; " * 8
GOLDEN_FRAME = bytes.fromhex(
    "28b52ffd6000004d0100040276657273696f6e20636f6e74726f6c20666f72206c6976652073746174653b200100e80e4a3d0107ca9790"
)
"""TEXT as it was stored with zstandard 0.25. Never regenerate: stores hold frames like this one."""


def sealed(frame: bytes) -> bytes:
    """A frame with its CRC: hostile ones come sealed too."""
    return frame + zlib.crc32(frame).to_bytes(4, "big")


def test_a_frame_written_long_ago_is_still_readable() -> None:
    assert decompress(ZSTD, GOLDEN_FRAME, len(TEXT)) == TEXT


@settings(deadline=None)
@given(st.binary(max_size=4000) | st.binary(min_size=1, max_size=40).map(lambda unit: unit * 100))
def test_what_is_compressed_comes_back(data: bytes) -> None:
    codec, stored = compress(data)
    assert len(stored) <= len(data)
    assert decompress(codec, stored, len(data)) == data
    assert decode_block(block_id(data), codec, stored, len(data)) == data


def test_bytes_that_do_not_shrink_by_a_twentieth_stay_raw() -> None:
    noise = random.Random(1).randbytes(5000)
    assert compress(noise) == (RAW, noise)
    assert compress(b"tiny" * 10) == (RAW, b"tiny" * 10)
    assert compress(noise + bytes(100))[0] == RAW
    assert compress(noise + bytes(2000))[0] == ZSTD


def test_a_frame_states_its_size() -> None:
    assert zstandard.get_frame_parameters(compress(TEXT)[1]).content_size == len(TEXT)


def test_a_frame_that_grows_beyond_its_row_is_refused_before_memory_is_set_aside() -> None:
    bomb = sealed(zstandard.ZstdCompressor().compress(bytes(200 << 20)))
    assert len(bomb) < 20_000
    for size in (10, len(bomb), 200 << 20, 1 << 60, -1):
        with pytest.raises(Corrupt):
            decompress(ZSTD, bomb, size)
    with pytest.raises(Corrupt):
        decompress(RAW, b"x", MAX_BLOCK_BYTES + 1)


def test_a_frame_that_hides_its_size_is_refused() -> None:
    silent = sealed(zstandard.ZstdCompressor(write_content_size=False).compress(TEXT))
    with pytest.raises(Corrupt):
        decompress(ZSTD, silent, len(TEXT))


@pytest.mark.parametrize("size", [0, 1, len(TEXT) - 1, len(TEXT) + 1])
@pytest.mark.parametrize("codec", [RAW, ZSTD])
def test_a_wrong_size_is_corrupt(codec: int, size: int) -> None:
    with pytest.raises(Corrupt):
        decompress(codec, TEXT if codec == RAW else GOLDEN_FRAME, size)


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
                decode_block(block, codec, bytes(damaged), len(text))
            assert caught.value.facts["block"] == block.hex()
    for shortened in (stored[:-1], stored + b"x", stored + stored, sealed(stored[:-4] + b"x"), b""):
        with pytest.raises(Corrupt):
            decode_block(block, codec, shortened, len(text))
    with pytest.raises(Corrupt):
        decode_block(BlockId(bytes(32)), codec, stored, len(text))


def test_a_codec_from_the_future_is_corrupt_with_a_hint() -> None:
    with pytest.raises(Corrupt, match="newer"):
        decompress(2, b"x", 1)


def test_threads_do_not_disturb_each_other() -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        data = random.Random(number).randbytes(50) * 200
        for _ in range(200):
            if decompress(*compress(data), len(data)) != data:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


Row = tuple[BlockId, int, bytes, int]


def many(count: int) -> tuple[list[Row], dict[BlockId, bytes]]:
    """Blocks of every sort: frames, raw ones, a large one, an empty one."""
    contents = [b"%d " % number * 200 for number in range(count)]
    contents += [b"", b"short", random.Random(1).randbytes(500), b"large " * 100_000]
    rows = []
    for content in contents:
        codec, stored = compress(content)
        rows.append((block_id(content), codec, stored, len(content)))
    return rows, {block_id(content): content for content in contents}


@pytest.mark.parametrize("count", [0, 5, 200])
def test_many_blocks_come_back_at_once(count: int) -> None:
    rows, contents = many(count)
    assert decode_blocks(rows) == contents
    assert decode_blocks([]) == {}


def hidden(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(content)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda row: (row[0], row[1], row[2][:-5] + bytes([row[2][-5] ^ 1]) + row[2][-4:], row[3]),
        lambda row: (row[0], row[1], sealed(row[2][:-6]), row[3]),
        lambda row: (row[0], row[1], b"", row[3]),
        lambda row: (row[0], row[1], row[2], row[3] - 1),
        lambda row: (row[0], row[1], row[2], row[3] + 1),
        lambda row: (row[0], row[1], row[2], 0),
        lambda row: (row[0], row[1], row[2], -1),
        lambda row: (row[0], row[1], row[2], MAX_BLOCK_BYTES + 1),
        lambda row: (row[0], 7, row[2], row[3]),
        lambda row: (row[0], row[1], sealed(hidden(b"100 " * 200)), row[3]),
        lambda row: (row[0], row[1], sealed(zstandard.ZstdCompressor().compress(bytes(row[3]))), row[3]),
        lambda row: (block_id(b"another"), row[1], row[2], row[3]),
    ],
    ids=[
        "a bit",
        "a piece of the frame",
        "all of it",
        "too few bytes claimed",
        "too many bytes claimed",
        "none claimed",
        "fewer than none claimed",
        "more than any block has claimed",
        "another codec",
        "a frame that hides its size",
        "another frame",
        "another id",
    ],
)
def test_one_damaged_block_among_many_is_found_and_named(spoil: Callable[[Row], Row]) -> None:
    rows, _ = many(200)
    rows[100] = spoil(rows[100])
    with pytest.raises(Corrupt) as caught:
        decode_blocks(rows)
    assert caught.value.facts["block"] == rows[100][0].hex()
