"""How a block's canonical bytes are stored: the codec numbers of block rows and pack entries.

0 is the bytes themselves. 1 is one zstd frame that states its content size, followed by the frame's CRC-32 (4 bytes,
big-endian): the block's SHA-256 proves the content, but a few bits of a frame can change without changing it, and
damage should be found before it grows. Numbers from 2 on are reserved for zstd with a dictionary."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from zlib import crc32

import zstandard

from analemma.canon.identity import BlockId, verify_block
from analemma.errors import Corrupt

RAW = 0
ZSTD = 1

ZSTD_LEVEL = 1
"""Measured on states of agents: half the time of level 3, and half a per cent more bytes."""
CRC_BYTES = 4
MAX_BLOCK_BYTES = 64 << 20
"""No block is this large. A row or a footer that claims more is damaged, and refused before memory is set aside."""

_SMALLEST_WORTH_TRYING = 64
"""Below this, a frame's own header eats what compression saves."""
_SMALLEST_WITH_LINKS = 384
"""The same for a block with links: it holds hashes, mostly. Of manifests and small roots none shrinks."""
_LARGEST_RATIO = 0.95
"""A block that shrinks less than this stays raw: every read would pay for decompression and storage gains nothing."""


class _Codecs(threading.local):
    """zstandard's objects hold large tables and are not thread-safe: one pair per thread, made once."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True, write_checksum=False)
        self.decompressor = zstandard.ZstdDecompressor()


_codecs = _Codecs()


def compress(data: bytes, *, linked: bool = False) -> tuple[int, bytes]:
    """The codec and the bytes to store; raw when zstd does not save at least 5 %, or cannot be expected to: `linked`
    says that the block links to others."""
    if len(data) < (_SMALLEST_WITH_LINKS if linked else _SMALLEST_WORTH_TRYING):
        return RAW, data
    frame = _codecs.compressor.compress(data)
    if len(frame) > len(data) * _LARGEST_RATIO:
        return RAW, data
    return ZSTD, frame + crc32(frame).to_bytes(CRC_BYTES, "big")


def decompress(codec: int, stored: bytes, size: int) -> bytes:
    """The `size` canonical bytes that were stored, never more: anything else is Corrupt."""
    if not 0 <= size <= MAX_BLOCK_BYTES:
        raise Corrupt(f"a block claims {size} bytes, and none is that large")
    if codec == RAW:
        data = stored
    elif codec == ZSTD:
        data = _inflate(stored, size)
    else:
        raise Corrupt(f"codec {codec} is unknown", hint="the store may come from a newer Analemma", codec=codec)
    if len(data) != size:
        raise Corrupt(f"a block holds {len(data)} bytes instead of {size}")
    return data


def decode_blocks(stored: Iterable[tuple[BlockId, int, bytes, int]]) -> dict[BlockId, bytes]:
    """The canonical bytes of many blocks, each given as `decode_block` takes it."""
    return {block: decode_block(block, codec, body, size) for block, codec, body, size in stored}


def decode_block(block: BlockId, codec: int, stored: bytes, size: int) -> bytes:
    """The block's canonical bytes, decompressed and checked against its id; Corrupt names the block."""
    try:
        data = decompress(codec, stored, size)
    except Corrupt as exc:
        raise Corrupt(f"block {block.hex()}: {exc.message}", hint=exc.hint, block=block.hex()) from exc
    return verify_block(block, data)


def _inflate(stored: bytes, size: int) -> bytes:
    frame = stored[:-CRC_BYTES]
    if crc32(frame).to_bytes(CRC_BYTES, "big") != stored[-CRC_BYTES:]:
        raise Corrupt("its stored bytes do not match their CRC", hint="restore it from a second copy")
    try:
        # The frame's own claim is checked first: zstandard allocates what the frame says and ignores our bound.
        if zstandard.frame_content_size(frame) != size:
            raise Corrupt("a zstd frame states another size than its row")
        return _codecs.decompressor.decompress(frame, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise Corrupt(f"not a zstd frame: {exc}", hint="restore it from a second copy") from exc
