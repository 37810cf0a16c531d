"""The pack format: many stored blocks in one object, and how they are read.

    ANLMPACK, format byte | stored bodies, back to back | footer | footer length (8, big-endian), SHA-256 (32), ANLMPACK

The footer is DAG-CBOR: a list of [id, codec, offset, length, size]. The SHA-256 is that of everything before the
trailer. A catalog row names (object, offset, length), so ordinary reads never touch the footer; it is there so that a
pack can be read and checked without a catalog. `store.BlockStore` uploads them, and reads several at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import libipld

from analemma.blocks.port import ObjectStore, quote_metadata
from analemma.canon.nodes import ID_BYTES, BlockId
from analemma.errors import Corrupt, Invalid

MAGIC = b"ANLMPACK"
FORMAT = 1
HEADER = MAGIC + bytes([FORMAT])
TRAILER_BYTES = 8 + 32 + len(MAGIC)
UPLOAD_ID_BYTES = 16
MAX_BLOCK_BYTES = 64 << 20
"""No block is this large. A row or a footer that claims more is damaged, and refused before memory is set aside."""

COALESCE_GAP_BYTES = 64 << 10
"""Neighbouring ranges this close are read as one: a request costs more than the bytes between them."""
MAX_READ_BYTES = 16 << 20
"""One coalesced read stops growing here, so that reading many blocks stays bounded in memory."""

_MAX_QUOTED_BYTES = 300


@dataclass(frozen=True, slots=True)
class PackEntry:
    """Where one block lies in a pack."""

    id: BlockId
    codec: int
    offset: int
    length: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class Pack:
    """A finished pack, ready to upload. `sha256` is that of the whole object."""

    data: bytes
    entries: tuple[PackEntry, ...]
    sha256: bytes


class PackWriter:
    """Collects stored blocks."""

    def __init__(self) -> None:
        self.size = len(HEADER)
        """Bytes so far, without the footer."""
        self._parts: list[bytes] = [HEADER]
        self._entries: dict[BlockId, PackEntry] = {}

    def add(self, block: BlockId, codec: int, stored: bytes, size: int) -> PackEntry:
        """Append a block, by its bytes after `codec` and the length of its canonical ones; one that is already here is
        not stored twice."""
        known = self._entries.get(block)
        if known is not None:
            return known
        if len(block) != ID_BYTES or not stored or not 0 <= size <= MAX_BLOCK_BYTES:
            raise Invalid(f"block {block.hex()} cannot be packed: {size} bytes, {len(stored)} stored")
        entry = self._entries[block] = PackEntry(block, codec, self.size, len(stored), size)
        self._parts.append(stored)
        self.size += entry.length
        return entry

    def finish(self) -> Pack:
        """The pack of everything added; Invalid when nothing was."""
        if not self._entries:
            raise Invalid("a pack needs at least one block")
        entries = tuple(self._entries.values())
        footer = _encode_footer(entries)
        parts = [*self._parts, footer]
        # Each byte is hashed once and copied once: packs of archives are large.
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        trailer = len(footer).to_bytes(8, "big") + digest.digest() + MAGIC
        digest.update(trailer)
        return Pack(b"".join([*parts, trailer]), entries, digest.digest())


def build_pack(blocks: Iterable[tuple[BlockId, int, bytes, int]]) -> Pack:
    """All these blocks as one pack, each given as `PackWriter.add` takes it."""
    writer = PackWriter()
    for block in blocks:
        writer.add(*block)
    return writer.finish()


def pack_key(upload_id: bytes) -> str:
    """The object's name: the upload's id alone, so that a delete can never hit a later upload of equal content."""
    if len(upload_id) != UPLOAD_ID_BYTES:
        # Nobody types one: it was read from a row.
        raise Corrupt(
            f"an upload id has {UPLOAD_ID_BYTES} bytes, not {len(upload_id)}", hint="restore the row from a backup"
        )
    name = upload_id.hex()
    return f"packs/{name[:2]}/{name}"


def verify_pack(data: bytes) -> tuple[PackEntry, ...]:
    """Check every byte of a whole pack and return what it holds; Corrupt if any differs from what was written."""
    if not data.startswith(HEADER):
        raise Corrupt("not a pack: wrong header", hint="restore the object from a second copy")
    trailer = data[-TRAILER_BYTES:]
    if len(trailer) != TRAILER_BYTES or trailer[40:] != MAGIC:
        raise Corrupt("a pack has no trailer: it was cut short or overwritten", hint="restore it from a second copy")
    end = len(data) - TRAILER_BYTES
    footer_start = end - int.from_bytes(trailer[:8], "big")
    if not len(HEADER) <= footer_start < end:
        raise Corrupt("a pack states a footer longer than itself", hint="restore it from a second copy")
    if hashlib.sha256(memoryview(data)[:end]).digest() != trailer[8:40]:
        raise Corrupt("a pack does not match its own SHA-256", hint="restore the object from a second copy")
    return _decode_footer(data[footer_start:end], footer_start=footer_start)


def read_entries(store: ObjectStore, key: str, entries: Iterable[PackEntry]) -> dict[BlockId, bytes]:
    """The stored bytes of these blocks, in few range reads. Decode and verify them with `store.decode_blocks`."""
    wanted = sorted(entries, key=lambda entry: (entry.offset, entry.length))
    for entry in wanted:
        if entry.offset < len(HEADER) or not 0 < entry.length <= MAX_BLOCK_BYTES:
            raise Corrupt(f"block {entry.id.hex()} is said to lie outside its pack", block=entry.id.hex(), key=key)
    groups = coalesce(wanted)
    spans = [(group[0].offset, max(entry.end for entry in group) - group[0].offset) for group in groups]
    stored: dict[BlockId, bytes] = {}
    for group, span, data in zip(groups, spans, store.get_ranges(key, spans), strict=True):
        for entry in group:
            start = entry.offset - span[0]
            stored[entry.id] = data[start : start + entry.length]
    return stored


def coalesce(entries: Iterable[PackEntry]) -> list[list[PackEntry]]:
    """Group entries, sorted by offset, whose ranges are at most `COALESCE_GAP_BYTES` apart."""
    groups: list[list[PackEntry]] = []
    end = 0
    for entry in entries:
        if groups and entry.offset - end <= COALESCE_GAP_BYTES and entry.end - groups[-1][0].offset <= MAX_READ_BYTES:
            groups[-1].append(entry)
            end = max(end, entry.end)
        else:
            groups.append([entry])
            end = entry.end
    return groups


def object_metadata(
    pack: Pack, *, workflow_id: str | None, execution_id: str | None, created_at_us: int
) -> dict[str, str]:
    """What stands beside a pack for people and tools that look at the bucket; nothing here is ever trusted."""
    metadata = {
        "usage": "temp",
        "checksum": f"sha256:{pack.sha256.hex()}",
        "created_at": datetime.fromtimestamp(created_at_us / 1_000_000, UTC).isoformat(timespec="microseconds"),
    }
    whose = {"workflow_id": workflow_id, "execution_id": execution_id}
    return metadata | {name: _bounded(text) for name, text in whose.items() if text is not None}


def _encode_footer(entries: Iterable[PackEntry]) -> bytes:
    # The leading zero byte keeps libipld from writing an id that happens to look like a CID as a link.
    rows = [[b"\x00" + entry.id, entry.codec, entry.offset, entry.length, entry.size] for entry in entries]
    return libipld.encode_dag_cbor(rows)


def _decode_footer(footer: bytes, *, footer_start: int) -> tuple[PackEntry, ...]:
    try:
        rows = libipld.decode_dag_cbor(footer)
        # One way to write it: what decodes but would be encoded differently was not written by us.
        canonical = libipld.encode_dag_cbor(rows)
    except (ValueError, TypeError, RecursionError, OverflowError) as exc:
        raise Corrupt("a pack's footer cannot be read", hint="restore it from a second copy") from exc
    if canonical != footer or type(rows) is not list or not rows:
        raise Corrupt("a pack's footer is not a canonical list", hint="restore it from a second copy")
    entries = tuple(_decode_row(row) for row in rows)
    # Bodies fill the space between header and footer exactly: that rules out overlaps, gaps and bad bounds at once.
    expected_offset = len(HEADER)
    for entry in entries:
        if entry.offset != expected_offset:
            raise Corrupt("a pack's footer places a block outside the bodies", block=entry.id.hex())
        expected_offset = entry.end
    if expected_offset != footer_start:
        raise Corrupt("a pack's footer does not account for all of its bytes")
    if len({entry.id for entry in entries}) != len(entries):
        raise Corrupt("a pack's footer names a block twice")
    return entries


def _decode_row(row: object) -> PackEntry:
    if type(row) is list and len(row) == 5 and type(row[0]) is bytes and all(type(field) is int for field in row[1:]):
        prefixed, codec, offset, length, size = row
        if (
            len(prefixed) == ID_BYTES + 1
            and prefixed[0] == 0
            and codec >= 0
            and length > 0
            and 0 <= size <= MAX_BLOCK_BYTES
        ):
            return PackEntry(BlockId(prefixed[1:]), codec, offset, length, size)
    raise Corrupt("a pack's footer has a malformed entry", hint="restore the object from a second copy")


def _bounded(text: str) -> str:
    # Stores allow about 2 KB of ASCII in all. A name too long for that is still recognisable by its hash.
    if text.isprintable() and len(quote_metadata(text)) <= _MAX_QUOTED_BYTES:
        return text
    return "sha256:" + hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
