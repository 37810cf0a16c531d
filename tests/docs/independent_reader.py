"""A second implementation of the stored format, written from docs/design/blocks-and-trees.md alone.

It shares no code with Analemma: a decoder for the CBOR that blocks use, SHA-256, zstd, and SQL for a handful of rows.
If it cannot check a store, either the page or the store is wrong.
"""

from __future__ import annotations

import hashlib
import sqlite3
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

CID_PREFIX = bytes.fromhex("01711220")
PACK_MAGIC = b"ANLMPACK"


class Damaged(Exception):
    """Something is not as the page says."""


@dataclass(frozen=True)
class Cid:
    """A link: tag 42 around a CID."""

    block: bytes


def parse_cbor(data: bytes) -> Any:
    """One DAG-CBOR item that is the whole of `data`."""
    value, end = _item(data, 0)
    if end != len(data):
        raise Damaged("bytes after the end")
    return value


def _item(data: bytes, at: int) -> tuple[Any, int]:
    major, low = data[at] >> 5, data[at] & 31
    at += 1
    if major == 7:
        if low == 27:
            return struct.unpack(">d", data[at : at + 8])[0], at + 8
        return {20: False, 21: True, 22: None}[low], at
    width = {24: 1, 25: 2, 26: 4, 27: 8}.get(low, 0)
    number = int.from_bytes(data[at : at + width], "big") if width else low
    at += width
    if major == 0:
        return number, at
    if major == 1:
        return -1 - number, at
    if major == 2:
        return data[at : at + number], at + number
    if major == 3:
        return data[at : at + number].decode(), at + number
    if major == 4:
        items = []
        for _ in range(number):
            item, at = _item(data, at)
            items.append(item)
        return items, at
    if major == 5:
        fields = {}
        for _ in range(number):
            key, at = _item(data, at)
            fields[key], at = _item(data, at)
        return fields, at
    if number != 42:
        raise Damaged(f"tag {number}")
    cid, at = _item(data, at)
    if cid[:5] != b"\0" + CID_PREFIX or len(cid) != 37:
        raise Damaged("not a dag-cbor sha2-256 CID")
    return Cid(cid[5:]), at


class Store:
    """One tenant of a store whose catalog is a SQLite file, read without Analemma."""

    def __init__(self, folder: Path, tenant: str) -> None:
        self.objects = folder / "objects"
        self.sql = sqlite3.connect(folder / "catalog.db")
        (self.tenant,) = self.sql.execute("SELECT id FROM tenant WHERE name = ?", (tenant,)).fetchone()
        self.seen: set[bytes] = set()

    def close(self) -> None:
        self.sql.close()

    def block(self, block: bytes) -> bytes:
        """A block's bytes, from its row or its pack, checked against its name."""
        query = "SELECT size, codec, body, upload, object_offset, object_length FROM block WHERE tenant = ? AND id = ?"
        row = self.sql.execute(query, (self.tenant, block)).fetchone()
        if row is None:
            raise Damaged(f"block {block.hex()} is missing")
        size, codec, body, upload, offset, length = row
        if body is None:
            name = upload.hex()
            body = (self.objects / "packs" / name[:2] / name).read_bytes()[offset : offset + length]
        data = zstandard.ZstdDecompressor().decompress(body) if codec == 1 else body
        if len(data) != size or hashlib.sha256(data).digest() != block:
            raise Damaged(f"block {block.hex()} holds other bytes")
        self.seen.add(block)
        return data

    def node(self, block: bytes) -> tuple[str, int, int, Any]:
        """`[kind, level, flags, body]`."""
        kind, level, flags, body = parse_cbor(self.block(block))
        return kind, level, flags, body

    def value(self, block: bytes) -> Any:
        """What a tree stands for. Tagged values come back as (name, payload)."""
        kind, level, _, body = self.node(block)
        if level:
            parts = [self.value(entry[0].block) for entry in body]
            if kind == "list":
                return [item for part in parts for item in part]
            if kind == "map":
                return {key: item for part in parts for key, item in part.items()}
            return ("" if kind == "text" else b"").join(parts)
        if kind == "list":
            return [self.content(item) for item in body]
        if kind == "map":
            return {key: self.content(item) for key, item in body.items()}
        return self.content(body)

    def content(self, wire: Any) -> Any:
        """A piece of content: plain JSON, marked bytes, or a special."""
        if isinstance(wire, bytes):
            if wire[:1] != b"\0":
                raise Damaged("bytes without their marker")
            return wire[1:]
        if isinstance(wire, list):
            return [self.content(item) for item in wire]
        if not isinstance(wire, dict):
            return wire
        if set(wire) != {""}:
            return {key: self.content(item) for key, item in wire.items()}
        head, *rest = wire[""]
        if isinstance(head, Cid):
            kind, count, size, branching = rest
            if self.measure(head.block) != (kind, count, size, branching):
                raise Damaged(f"a link to {head.block.hex()} says something else than its target")
            return self.value(head.block)
        if head == "map":
            return {"": self.content(rest[0])}
        return -0.0 if head == "float" else (head, self.content(rest[0]))

    def measure(self, block: bytes) -> tuple[str, int, int, int]:
        """Kind, count, size and branching of a tree, from its blocks."""
        data = self.block(block)
        kind, level, flags, body = parse_cbor(data)
        size = len(data)
        if level:
            for cid, count, below, entry_flags, *_ in body:
                measured = self.measure(cid.block)
                if measured != (kind, count, below, entry_flags & 1):
                    raise Damaged(f"an index entry of {block.hex()} is wrong")
                size += below
            return kind, sum(entry[1] for entry in body), size, 1
        size += sum(link[3] for link in _links(list(body.values()) if kind == "map" else body))
        if kind == "text":
            body = body.encode()
        elif kind == "bytes":
            body = body[1:]
        return kind, 1 if kind == "value" else len(body), size, flags & 1

    def check_branch(self, owner: str, workflow: str, branch: str = "main") -> Any:
        """Check journal, head, manifest row, manifest block and every block of the state; the state."""
        key = (self.tenant, owner, workflow, branch)
        where = "WHERE tenant = ? AND owner = ? AND workflow = ? AND branch = ?"
        head = self.sql.execute(f"SELECT manifest, version, journal_seq, journal_tip FROM head {where}", key).fetchone()  # noqa: S608
        tip, seq, last = None, 0, None
        rows = f"SELECT seq, kind, manifest, body, hash, created_at FROM journal {where} ORDER BY seq"  # noqa: S608
        for number, kind, manifest, body, digest, at in self.sql.execute(rows, key):
            name, format_number, record = parse_cbor(body)
            before = None if record["before"] is None else record["before"][1:]
            named = None if record["manifest"] is None else record["manifest"][1:]
            said = (name, format_number, record["seq"], record["kind"], named, record["at"])
            if hashlib.sha256(body).digest() != digest or said != ("journal", 1, number, kind, manifest, at):
                raise Damaged(f"journal record {number}")
            if (number, before) != (seq + 1, tip) or key[1:] != tuple(
                record[x] for x in ("owner", "workflow", "branch")
            ):
                raise Damaged(f"journal record {number} does not follow")
            seq, tip = number, digest
            if record["version"] is not None:
                last = (manifest, record["version"])
        if last is None or head != (*last, seq, tip):
            raise Damaged("the head is not where the journal ends")
        name, format_number, manifest = parse_cbor(self.block(head[0]))
        columns = "owner, workflow, branch, version, parent, root, created_at, execution, segment, message"
        by_id = f"SELECT {columns} FROM manifest WHERE tenant = ? AND id = ?"  # noqa: S608
        row = self.sql.execute(by_id, (self.tenant, head[0])).fetchone()
        root = manifest["root"][""][0].block
        parent = None if manifest["parent"] is None else manifest["parent"][1:]
        repeated = {**manifest, "parent": parent, "root": root}
        if (name, format_number) != ("manifest", 1) or row != tuple(repeated[x] for x in columns.split(", ")):
            raise Damaged("the manifest's row differs from its block")
        if key[1:] != row[:3] or head[1] != row[3]:
            raise Damaged("the head points to a manifest of another branch or version")
        return self.content(manifest["root"])


def _links(wire: Any) -> list[list[Any]]:
    """The bodies of all links inside a piece of content."""
    if isinstance(wire, list):
        return [link for item in wire for link in _links(item)]
    if not isinstance(wire, dict):
        return []
    if set(wire) == {""}:
        return [wire[""]] if isinstance(wire[""][0], Cid) else _links(wire[""][1])
    return _links(list(wire.values()))


def check_pack(data: bytes) -> dict[bytes, bytes]:
    """A pack without a catalog: every stored body by block id, decompressed and checked."""
    if data[:9] != PACK_MAGIC + b"\x01" or data[-8:] != PACK_MAGIC:
        raise Damaged("not a pack")
    length = int.from_bytes(data[-48:-40], "big")
    if hashlib.sha256(data[:-48]).digest() != data[-40:-8]:
        raise Damaged("the pack does not match its own hash")
    blocks = {}
    for marked, codec, offset, stored, size in parse_cbor(data[-48 - length : -48]):
        body = data[offset : offset + stored]
        block = zstandard.ZstdDecompressor().decompress(body) if codec == 1 else body
        if len(block) != size or hashlib.sha256(block).digest() != marked[1:]:
            raise Damaged(f"block {marked[1:].hex()}")
        blocks[marked[1:]] = block
    return blocks
