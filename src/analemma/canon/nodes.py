"""The stored form of a tree: what a node's bytes are, and what a link says about its target.

A node is the DAG-CBOR array `[kind, level, flags, body]`. At level 0 the body is the content: a list of items, a map of
fields, a text, bytes, or (kind `value`) a lone scalar. Above, it is a list of index entries, one per child. Inside
content, everything that is not plain JSON stands in a map with the single key `""`:

    {"": [cid, kind, count, size, branching]}    a value in a tree of its own
    {"": ["datetime", payload]}                  a tagged value
    {"": ["map", value]}                         the user's own dict {"": value}
    {"": ["float", "-0.0"]}                      negative zero, which DAG-CBOR encoders lose

and bytes carry a leading 0x00, because encoders take bytes that parse as a CID for a link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import libipld

from analemma.canon.identity import BlockId, block_id, from_cid, to_cid
from analemma.errors import Corrupt

Kind = Literal["list", "map", "text", "bytes", "value"]
Wire = Any
"""A value in its stored form, as the DAG-CBOR codec takes and gives it."""

LINKS = 1
"""Flag: something here links to another block."""
SPECIALS = 2
"""Flag: something here is not plain JSON, so reading has to walk it."""
LEAF_HEAD_BYTES = 9
"""The most bytes a leaf of a list or map has before its content."""
FORCED = 4
"""Flag of an index entry: the child was cut because it was full, not at a natural boundary."""

encode: Any = libipld.encode_dag_cbor
decode: Any = libipld.decode_dag_cbor

SortKey = tuple[int, str]


def sort_key(key: str) -> SortKey:
    """DAG-CBOR's order of map keys: shorter first, then by bytes. (For equal lengths code points order as UTF-8
    does.)"""
    return (len(key) if key.isascii() else len(key.encode()), key)


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes on their way to the store, with the blocks they link to."""

    id: BlockId
    data: bytes
    links: tuple[BlockId, ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """A value that lives in a tree of its own."""

    id: BlockId
    kind: Kind
    count: int
    """Items of a list or map; bytes of a text (in UTF-8) or of bytes."""
    size: int
    """Bytes of all blocks of the tree, repeats counted each time."""
    branching: bool
    """Whether the target links to further blocks; a collector need not read it otherwise."""


Entry = tuple[bytes, int, Wire, str | None]
"""One entry of a node on its way into bytes: encoded, flags, as wire, and in maps its key (of an index entry: the
child's last key). A bare tuple, because editing a node makes one for each of its entries."""

Child = list[Any]
"""An index entry as stored: CID, count, size, flags, and in maps the last key."""


def child_id(child: Child) -> BlockId:
    """The block an index entry leads to."""
    return from_cid(child[0])


def child_link(kind: Kind, child: Child) -> Link:
    """An index entry seen as a link of its own."""
    return Link(from_cid(child[0]), kind, child[1], child[2], bool(child[3] & LINKS))


class Node(NamedTuple):
    """A decoded node. `body` is content at level 0 and a list of `Child` above."""

    kind: Kind
    level: int
    flags: int
    body: Any


class Special(NamedTuple):
    """A decoded `{"": [...]}`: exactly one of the two is set."""

    link: Link | None
    tag: tuple[str, Wire] | None


def is_special(wire: Wire) -> bool:
    """Whether this stands for something that is not a plain dict."""
    return type(wire) is dict and len(wire) == 1 and "" in wire


def read_special(wire: dict[str, Wire]) -> Special:
    """Take a special apart."""
    body = wire[""]
    if type(body) is not list or not body:
        raise Corrupt("a block holds a malformed tag")
    head = body[0]
    if type(head) is bytes and len(body) == 5:
        return Special(Link(from_cid(head), body[1], body[2], body[3], body[4] == 1), None)
    if type(head) is str and len(body) == 2:
        return Special(None, (head, body[1]))
    raise Corrupt("a block holds a malformed tag")


def link_wire(link: Link) -> Wire:
    """A link as it stands inside content."""
    return {"": [to_cid(link.id), link.kind, link.count, link.size, int(link.branching)]}


def wire_links(wire: Wire) -> list[Link]:
    """Every link inside a piece of content, in order."""
    found: list[Link] = []
    stack = [wire]
    while stack:
        item = stack.pop()
        if type(item) is dict:
            if is_special(item):
                special = read_special(item)
                if special.link is not None:
                    found.append(special.link)
                elif special.tag is not None:
                    stack.append(special.tag[1])
            else:
                stack.extend(item.values())
        elif type(item) is list:
            stack.extend(item)
    return found


def wire_flags(wire: Wire) -> int:
    """LINKS and SPECIALS of a piece of content."""
    flags = 0
    stack = [wire]
    while stack:
        item = stack.pop()
        cls = type(item)
        if cls is dict:
            if is_special(item):
                flags |= SPECIALS
                special = read_special(item)
                if special.link is not None:
                    return LINKS | SPECIALS
                if special.tag is not None:
                    stack.append(special.tag[1])
            else:
                stack.extend(item.values())
        elif cls is list:
            stack.extend(item)
        elif cls is bytes:
            flags |= SPECIALS
    return flags


def head_bytes(major: int, number: int) -> bytes:
    """The head of a CBOR item: major type and argument in the fewest bytes."""
    base = major << 5
    if number < 24:
        return bytes((base | number,))
    for extra, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << (8 * width):
            return bytes((base | extra,)) + number.to_bytes(width, "big")
    raise Corrupt("a CBOR argument is out of range")


_KIND_HEAD = {kind: b"\x84" + encode(kind) for kind in ("list", "map", "text", "bytes", "value")}


def leaf_block(kind: Kind, entries: Sequence[Entry]) -> tuple[Block, int]:
    """The leaf of a list or map, and the bytes of all trees it links to. Entries are encoded already: the node is their
    concatenation."""
    flags = 0
    links: list[Link] = []
    for _, marked, wire, _ in [entry for entry in entries if entry[1]]:
        flags |= marked
        if marked & LINKS:
            links += wire_links(wire)
    body = b"".join([entry[0] for entry in entries])
    data = b"".join(
        (_KIND_HEAD[kind], b"\x00", bytes((flags,)), head_bytes(5 if kind == "map" else 4, len(entries)), body)
    )
    return Block(block_id(data), data, tuple([link.id for link in links])), sum([link.size for link in links])


def content_block(kind: Kind, wire: Wire, flags: int, links: tuple[BlockId, ...] = ()) -> Block:
    """A leaf that is one piece: a text, bytes or a lone scalar."""
    data = b"".join((_KIND_HEAD[kind], b"\x00", bytes((flags,)), encode(wire)))
    return Block(block_id(data), data, links)


def index_block(kind: Kind, level: int, entries: Sequence[Entry]) -> tuple[Block, int]:
    """An inner node over these index entries, and the bytes of all nodes below it."""
    body = b"".join([entry[0] for entry in entries])
    data = b"".join((_KIND_HEAD[kind], encode(level), bytes((LINKS,)), head_bytes(4, len(entries)), body))
    children = [entry[2] for entry in entries]
    return Block(block_id(data), data, tuple([BlockId(child[0][4:]) for child in children])), sum(
        [child[2] for child in children]
    )


def index_entry(block: Block, *, count: int, below: int, forced: bool = False, last_key: str | None = None) -> Entry:
    """What the level above holds for a node."""
    flags = (LINKS if block.links else 0) | (FORCED if forced else 0)
    child: Child = [to_cid(block.id), count, len(block.data) + below, flags]
    if last_key is not None:
        child.append(last_key)
    return encode(child), LINKS, child, last_key


def decode_node(block: BlockId, data: bytes) -> Node:
    """Read a node's verified bytes; Corrupt when they are no node."""
    try:
        kind, level, flags, body = decode(data)
        if level:
            for child in body:
                from_cid(child[0])
        return Node(kind, level, flags, body)
    except (ValueError, TypeError, RecursionError) as exc:
        raise Corrupt(f"block {block.hex()} is not a tree node", block=block.hex()) from exc


def node_links(node: Node) -> list[Link]:
    """Everything a node links to."""
    if node.level:
        return [child_link(node.kind, child) for child in node.body]
    if not node.flags & LINKS:
        return []
    return [link for wire in node_wires(node) for link in wire_links(wire)]


def node_wires(node: Node) -> list[Wire]:
    """The pieces of content in a leaf. A map's body is not one itself: a field named "" must not be taken for a tag."""
    if node.kind == "map":
        return list(node.body.values())
    return node.body if node.kind == "list" else [node.body]


def node_link_ids(node: Node) -> list[BlockId]:
    """The blocks a node links to."""
    if node.level:
        return [BlockId(child[0][4:]) for child in node.body]
    return [link.id for link in node_links(node)]
