"""The blocks of a format 2 archive: how entries stand in directories, and chunks in files. All of it is a function of
the volume alone, so an unchanged directory is an unchanged block.

    ["archive-index", 1, [entry]]              the root: the volume's own directory
    ["archive-directory", 1, [entry, ...]]     some of the entries of a directory, in the order of their names
    ["archive-chunks", 1, [link, length, ...]] some of the chunks of a large file

An entry is [name, kind, mode, uid, gid, mtime_ns, size, content, attributes], and for a sparse file also its map. The
content of a directory is the links of its blocks; of a small file, its bytes; of any other, its chunks, which are the
same blocks as those of long bytes in a state; of a very large one, {"lists": links}; of a link, its target. Names,
targets and attributes are bytes, with the leading 0x00 that all bytes in blocks have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from analemma.archives.entries import Entry, EntryKind, check_extents, data_length
from analemma.canon.nodes import (
    SPECIALS,
    Block,
    BlockId,
    block_id,
    block_links,
    decode,
    decode_node,
    encode,
    from_cid,
    head_bytes,
    long_block,
    to_cid,
)
from analemma.errors import AnalemmaError, Corrupt

FORMAT = 1
INDEX = "archive-index"
DIRECTORY = "archive-directory"
CHUNKS = "archive-chunks"

INLINE_BYTES = 2048
"""A file of at most so many bytes stands in its directory's block."""
CHUNKS_IN_ENTRY = 256
CHUNKS_IN_LIST = 4096
TIMES_NS = range(-(1 << 63), 1 << 64)
"""What a number in a block can be: from 1677 to 2554."""
_SMALLEST_DIRECTORY_BLOCK = 4096
_LARGEST_DIRECTORY_BLOCK = 262_144
_ENTRIES_MASK = 0x3F
"""One name in 64 ends a block that is large enough."""

_CHUNK_HEAD: bytes = b"\x84" + encode("bytes") + bytes((0, SPECIALS))
"""How the block of every chunk begins; its length comes next."""
_KINDS: tuple[EntryKind, ...] = ("file", "directory", "symlink", "hardlink")

Wire = list[Any]
Content = bytes | list[Any] | dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a file."""

    id: BlockId
    length: int


def chunk_block(data: bytes) -> Block:
    """The block of a piece of a file."""
    return long_block("bytes", data)


def chunk_data(block: BlockId, data: bytes, length: int) -> bytes | memoryview:
    """The piece that a chunk's verified bytes hold, which should be of this length."""
    head = _CHUNK_HEAD + head_bytes(2, length + 1) + b"\0"
    if len(data) == len(head) + length and data.startswith(head):
        return memoryview(data)[len(head) :]  # As `chunk_block` wrote it; there is no need to copy it twice.
    node = decode_node(block, data)
    if node.kind != "bytes" or node.level != 0:
        raise Corrupt(f"block {block.hex()} is no chunk of a file", block=block.hex())
    body: bytes = node.body
    return body[1:]


def entry_wire(entry: Entry, content: Content) -> Wire:
    """An entry as it stands in its directory."""
    name = entry.path.rpartition(b"/")[2]
    attributes = [[b"\0" + key.encode("utf-8", "surrogateescape"), b"\0" + value] for key, value in entry.xattrs]
    wire: Wire = [
        b"\0" + name,
        _KINDS.index(entry.kind),
        entry.mode,
        entry.uid,
        entry.gid,
        entry.mtime_ns,
        entry.size,
        content,
        attributes,
    ]
    if entry.extents is not None:
        wire.append([number for extent in entry.extents for number in extent])
    return wire


def wire_name(wire: Wire) -> bytes:
    """The name of an entry."""
    name: bytes = wire[0]
    return name[1:]


def read_entry(wire: Wire, above: bytes) -> Entry:
    """An entry of the directory at `above`; ValueError or TypeError if it is malformed."""
    name, kind, mode, uid, gid, mtime_ns, size, content, attributes, *rest = wire
    if not all(type(number) is int for number in (kind, mode, uid, gid, mtime_ns, size)) or min(kind, size) < 0:
        raise ValueError("an entry holds no number where one belongs")
    if b"/" in name:
        raise ValueError("a name with a slash")
    path = above + b"/" + name[1:] if above else name[1:]
    entry = Entry(
        path=path,
        kind=_KINDS[kind],
        mode=mode & 0o7777,
        uid=uid,
        gid=gid,
        mtime_ns=mtime_ns,
        size=size if kind == 0 else 0,
        target=content[1:] if kind > 1 else b"",
        xattrs=tuple((key[1:].decode("utf-8", "surrogateescape"), value[1:]) for key, value in attributes),
        extents=check_extents(zip(rest[0][::2], rest[0][1::2], strict=True), size) if rest else None,
    )
    if kind == 0 and type(content) is bytes and len(content) - 1 != data_length(entry):
        raise ValueError("a file of another length than its entry says")
    return entry


def file_content(chunks: list[Chunk], emit: Callable[[Block], None]) -> Content:
    """What stands in the entry of a file that is not small; long lists become blocks of their own."""
    if len(chunks) <= CHUNKS_IN_ENTRY:
        return _flat(chunks)
    lists: list[bytes] = []
    for start in range(0, len(chunks), CHUNKS_IN_LIST):
        block = _block([CHUNKS, FORMAT, _flat(chunks[start : start + CHUNKS_IN_LIST])])
        emit(block)
        lists.append(to_cid(block.id))
    return {"lists": lists}


def directory_blocks(wires: list[Wire]) -> list[Block]:
    """The blocks of a directory's entries. Where one ends is a matter of names: a new file changes one block."""
    blocks: list[Block] = []
    held: list[Wire] = []
    size = 0
    for wire in wires:
        held.append(wire)
        # Small files are what makes entries large; the rest is about so much.
        size += 100 + (len(wire[7]) if type(wire[7]) is bytes else 40 * len(wire[7]))
        ends = size >= _SMALLEST_DIRECTORY_BLOCK and not crc32(wire[0]) & _ENTRIES_MASK
        if ends or size >= _LARGEST_DIRECTORY_BLOCK:
            blocks.append(_block([DIRECTORY, FORMAT, held]))
            held, size = [], 0
    if held:
        blocks.append(_block([DIRECTORY, FORMAT, held]))
    return blocks


def directory_content(blocks: list[Block]) -> Content:
    """What stands in the entry of a directory."""
    return [to_cid(block.id) for block in blocks]


def index_block(root: Wire) -> Block:
    """The block that leads to everything else."""
    return _block([INDEX, FORMAT, [root]])


def read_block(block: BlockId, data: bytes, kind: str) -> list[Any]:
    """The body of one of these blocks, from its verified bytes."""
    try:
        found, number, body = decode(data)
        if found != kind or number != FORMAT or type(body) is not list:
            raise ValueError(f"kind {found!r}, format {number!r}")
    except (ValueError, TypeError, AnalemmaError) as exc:
        raise Corrupt(f"block {block.hex()} is no {kind}: {exc}", block=block.hex()) from exc
    return body


def read_links(content: Any) -> list[BlockId]:
    """The blocks of a directory, or of a list of chunks."""
    return [from_cid(cid) for cid in content]


def read_chunks(flat: list[Any]) -> list[Chunk]:
    """The chunks of a file, or some of them."""
    chunks = [Chunk(from_cid(cid), length) for cid, length in zip(flat[::2], flat[1::2], strict=True)]
    if not all(type(chunk.length) is int and chunk.length > 0 for chunk in chunks):
        raise ValueError("a chunk without a length")
    return chunks


def _flat(chunks: list[Chunk]) -> list[Any]:
    return [part for chunk in chunks for part in (to_cid(chunk.id), chunk.length)]


def _block(value: list[Any]) -> Block:
    data: bytes = encode(value)
    return Block(block_id(data), data, tuple(block_links(data)))
