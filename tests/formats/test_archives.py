"""Stored bytes of archives that must never change: headers of tars, and the blocks of format 2."""

from __future__ import annotations

import hashlib

from analemma.archives.entries import Entry, Totals
from analemma.archives.index_blocks import (
    Chunk,
    Content,
    chunk_block,
    directory_blocks,
    directory_content,
    entry_wire,
    file_content,
    index_block,
)
from analemma.archives.metas import BLOCKS, TAR_ZST, Meta, decode_meta, encode_meta
from analemma.archives.tar_writing import end_of_archive, entry_header
from analemma.canon.nodes import Block

ROOT = Entry(b"", "directory", 0o755, 1000, 1000, 1_700_000_000_000_000_001)
ENTRIES = (
    Entry(b"plain", "file", 0o644, 0, 0, 1_700_000_000_000_000_000, size=5),
    Entry(b"n\xff" * 60, "file", 0o4755, 3_000_000, 7, -1_500_000_000, size=9, xattrs=(("user.a=b%", b"\x00\xff"),)),
    Entry("schön".encode(), "symlink", 0o777, 0, 0, 1, target=b"plain"),
    Entry(b"again", "hardlink", 0o644, 0, 0, 0, target=b"plain"),
    Entry(b"holes", "file", 0o600, 0, 0, 0, size=1_000_000, extents=((4096, 10), (900_000, 20))),
    Entry(b"folder", "directory", 0o1777, 0, 0, 999),
)

HEADERS = "1dd683c436da946b3eff60a5e4ed7ebf95ca85838f35cabd1ebc5a0935b420bb"
INDEX = "02e49da8ffd8e9ecc8d5737a87c865c11299bd1a244771dd56c6bd7d513466ef"
LISTED = "42f0a3079725d9e6b08b4c99200fa72c3c6c41d4683fe1cbb6866f3e8e3d52e7"


def test_headers_of_tars_are_what_they_were() -> None:
    totals = Totals()
    stream = b"".join(entry_header(entry) for entry in (ROOT, *ENTRIES))
    for entry in (ROOT, *ENTRIES):
        totals.count(entry)
    assert hashlib.sha256(stream + end_of_archive(totals, ROOT)).hexdigest() == HEADERS


def test_blocks_of_indexes_are_what_they_were() -> None:
    chunk = chunk_block(b"data" * 1000)
    emitted: list[Block] = []
    content = file_content([Chunk(chunk.id, 4000)], emitted.append)
    contents: tuple[Content, ...] = (b"\0plain", content, b"\0plain", b"\0plain", b"\0" + b"x" * 30, [])
    wires = [entry_wire(entry, each) for entry, each in zip(ENTRIES, contents, strict=True)]
    blocks = directory_blocks(sorted(wires, key=lambda wire: bytes(wire[0])))
    assert emitted == [] and len(blocks) == 1
    assert blocks[0].links == (chunk.id,)
    assert index_block(entry_wire(ROOT, directory_content(blocks))).id.hex() == INDEX


def test_blocks_of_long_files_are_what_they_were() -> None:
    emitted: list[Block] = []
    content = file_content(
        [Chunk(chunk_block(b"%d" % number).id, number + 1) for number in range(5000)], emitted.append
    )
    assert isinstance(content, dict) and len(content["lists"]) == len(emitted) == 2
    assert hashlib.sha256(b"".join(block.id for block in emitted)).hexdigest() == LISTED


def test_markers_of_both_formats_are_read() -> None:
    counts = {"files": 1, "directories": 1, "links": 0, "bytes": 5}
    tar = Meta(TAR_ZST, "ws", "op", "home-0123456789abcdef.tar.zst", 10, "0" * 64, counts, fingerprint="f")
    blocks = Meta(BLOCKS, "ws", "op", "home.index", 10, "0" * 64, counts, root="1" * 64, stored=7, notes=("a note",))
    for meta in (tar, blocks):
        assert decode_meta(encode_meta(meta), workspace="ws", op_id="op") == meta
    later = encode_meta(tar).replace(b"{", b'{"said_by_a_later_release": 1,', 1)
    assert decode_meta(later, workspace="ws", op_id="op") == tar
