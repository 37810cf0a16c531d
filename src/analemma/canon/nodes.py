"""The stored form of values: nodes of trees, the content of their leaves, and what a link says about its target. Trees
are cut into nodes by `build.Cutter`.

A node is the DAG-CBOR array `[kind, level, flags, body]`. At level 0 the body is the content: a list of items, a map of
fields, a text, bytes, or (kind `value`) a lone scalar. Above, it is a list of index entries, one per child.

In content, plain JSON stands for itself. Everything else stands in a map with the single key `""`:

    {"": [cid, kind, count, size, branching]}    a value in a tree of its own
    {"": ["datetime", payload]}                  a tagged value
    {"": ["map", value]}                         the user's own dict {"": value}
    {"": ["float", "-0.0"]}                      negative zero, which DAG-CBOR encoders lose

and bytes carry a leading 0x00, because encoders take bytes that parse as a CID for a link.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import repeat
from operator import ge
from typing import Any, Literal, NamedTuple, NewType, get_args

import libipld

from analemma.canon.pointer import MAXIMUM_DEPTH
from analemma.errors import Corrupt, Invalid

BlockId = NewType("BlockId", bytes)
"""What a block is called: the SHA-256 of exactly its bytes. Shown to people as 64 hexadecimal digits."""

ID_BYTES = 32
_ID = re.compile(r"[0-9a-f]{64}")
CID_PREFIX = b"\x01\x71\x12\x20"
"""CID version 1, codec dag-cbor, hash sha2-256, 32 bytes of it."""
_new_tuple = tuple.__new__
"""Makes a named tuple without its constructor, which takes several times as long; every field must be given."""


def parse_block_id(text: str) -> BlockId:
    """Read the 64 hexadecimal digits people type."""
    if not isinstance(text, str) or _ID.fullmatch(text) is None:
        raise Invalid(f"not a block id: {text!r}", hint="an id is 64 lower-case hexadecimal digits")
    return BlockId(bytes.fromhex(text))


def block_id(data: bytes) -> BlockId:
    """The id of these bytes."""
    # Not BlockId(...): that is a call, and all it does is to return what it is given.
    return sha256(data).digest()  # type: ignore[return-value]


def verify_block(block: BlockId, data: bytes) -> bytes:
    """Return `data` if it is what `block` names; raise Corrupt otherwise."""
    if sha256(data).digest() != block:  # guard: block.hash
        raise Corrupt(
            f"block {block.hex()} holds other bytes than its name says",
            hint="restore it from a second copy",
            block=block.hex(),
        )
    return data


def to_cid(block: BlockId) -> bytes:
    """The CID bytes that stand for this block in a link."""
    return CID_PREFIX + block


def from_cid(cid: bytes) -> BlockId:
    """The block that a link's CID bytes name."""
    if len(cid) != 36 or not cid.startswith(CID_PREFIX):
        raise Corrupt("a link does not hold a dag-cbor sha2-256 CID")
    return cid[4:]  # type: ignore[return-value]


Kind = Literal["list", "map", "text", "bytes", "value"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Wire = Any
"""A value in its stored form, as the DAG-CBOR codec takes and gives it."""

LINKS = 1
"""Flag: something here links to another block."""
SPECIALS = 2
"""Flag: something here is not plain JSON, so reading has to walk it."""

LARGEST_NUMBER = 2**63 - 1
"""The largest count or size that a link can promise."""

encode: Any = libipld.encode_dag_cbor
decode: Any = libipld.decode_dag_cbor

SortKey = tuple[int, str]


def sort_key(key: str) -> SortKey:
    """DAG-CBOR's order of map keys: shorter first, then by bytes. (For equal lengths code points order as UTF-8
    does.)"""
    return (len(key) if key.isascii() else len(key.encode()), key)


class Link(NamedTuple):
    """A value that lives in a tree of its own."""

    id: BlockId
    kind: Kind
    count: int  # type: ignore[assignment]
    """Items of a list or map; bytes of a text (in UTF-8) or of bytes."""
    size: int
    """Bytes of all blocks of the tree, repeats counted each time."""
    branching: bool
    """Whether the target links to further blocks; a collector need not read it otherwise."""


Tag = tuple[str, Wire]
"""A name and the payload that it stands around."""


def is_special(wire: Wire) -> bool:
    """Whether this stands for something that is not a plain dict."""
    return type(wire) is dict and len(wire) == 1 and "" in wire


def read_special(wire: dict[str, Wire]) -> Link | Tag:
    """What a special is; Corrupt when it is neither a link nor a tag."""
    body = wire[""]
    if type(body) is list:
        if len(body) == 5:
            cid, kind, count, size, branching = body
            if (
                type(cid) is bytes
                and type(kind) is str
                and kind in KINDS
                and type(count) is type(size) is type(branching) is int
                and 0 <= count <= LARGEST_NUMBER
                and 0 <= size <= LARGEST_NUMBER
                and 0 <= branching <= 1
            ):
                return _new_tuple(Link, (from_cid(cid), kind, count, size, branching == 1))
        elif len(body) == 2 and type(body[0]) is str and body[0]:
            return body[0], body[1]
    raise Corrupt("a block holds a malformed tag")


def wire_link(wire: Wire) -> Link | None:
    """The link that this is, if it is one."""
    if not is_special(wire):
        return None
    found = read_special(wire)
    return found if isinstance(found, Link) else None


def link_wire(link: Link) -> Wire:
    """A link as it stands inside content."""
    if link.count > LARGEST_NUMBER or link.size > LARGEST_NUMBER:
        raise Corrupt(f"block {link.id.hex()} promises more than can be counted", block=link.id.hex())
    return {"": [to_cid(link.id), link.kind, link.count, link.size, int(link.branching)]}


def wire_specials(wire: Wire) -> Iterator[Link | Tag | bytes]:
    """Everything in a piece of content that is not plain JSON; of what stands around another, both."""
    stack = [wire]
    while stack:
        item = stack.pop()
        cls = type(item)
        if cls is dict:
            if is_special(item):
                special = read_special(item)
                yield special
                if not isinstance(special, Link):
                    stack.append(special[1])
            else:
                stack.extend(item.values())
        elif cls is list:
            stack.extend(item)
        elif cls is bytes:
            yield item


def wire_links(wire: Wire) -> list[Link]:
    """Every link inside a piece of content."""
    return [each for each in wire_specials(wire) if isinstance(each, Link)]


def wire_flags(wire: Wire) -> int:
    """LINKS and SPECIALS of a piece of content."""
    flags = 0
    for each in wire_specials(wire):
        flags |= LINKS | SPECIALS if isinstance(each, Link) else SPECIALS
    return flags


def encode_stored(wire: Wire) -> bytes:
    """Content that was read from a block, encoded again; Corrupt when it has no canonical form."""
    try:
        return encode(wire)  # type: ignore[no-any-return]
    except (ValueError, TypeError, RecursionError) as exc:
        raise Corrupt("a block holds content that cannot be encoded again") from exc


def too_deep(block: BlockId | None = None) -> Corrupt:
    """The error for content nested deeper than anything that can be stored."""
    where = "a block" if block is None else f"block {block.hex()}"
    facts = {} if block is None else {"block": block.hex()}
    return Corrupt(f"{where} is nested deeper than {MAXIMUM_DEPTH}", **facts)


@dataclass(frozen=True, slots=True)
class Stored:
    """Content of a stored tree, to be put somewhere else without being read.

    An edit links to its blocks without emitting them, so whoever commits the result holds on to a version that has
    them. No state gives one out, and nothing but an edit takes one."""

    wire: Wire
    nesting: int
    """Containers inside containers that it holds, at most: where it stands must leave room for them."""


class StandIn:
    """A container that is stored as the plain one it stands for."""

    __slots__ = ()

    def to_plain(self) -> Any:
        """All of it as plain dicts and lists."""
        raise NotImplementedError


LEAF_HEAD_BYTES = 9
"""The most bytes a leaf of a list or map has before its content."""
FORCED = 4
"""Flag of an index entry: the child was cut because it was full, not at a natural boundary."""

HIGHEST_LEVEL = 64
"""No tree is higher: with two children per node it would have more items than can be counted."""


class Block(NamedTuple):
    """Bytes on their way to the store, with the blocks they link to."""

    id: BlockId
    data: bytes
    links: tuple[BlockId, ...] = ()


Entry = tuple[bytes, int, Wire, str | None]
"""One entry of a node on its way into bytes: encoded, flags, as wire, and in maps its key (of an index entry: the
child's last key). A bare tuple, because editing a node makes one for each of its entries."""

NodeParts = tuple[Kind, int, int, Sequence[Entry]]
"""What a new node was made of: kind, level, the count that links to it give, and entries."""

Child = list[Any]
"""An index entry as stored: CID, count, size, flags, and in maps the last key."""


def child_id(child: Child) -> BlockId:
    """The block an index entry leads to. (That it holds a CID was checked when its node was decoded.)"""
    block: BlockId = child[0][4:]
    return block


def child_link(kind: Kind, child: Child) -> Link:
    """An index entry seen as a link of its own. (As above: it holds a CID.)"""
    return _new_tuple(Link, (child[0][4:], kind, child[1], child[2], bool(child[3] & LINKS)))


class Node(NamedTuple):
    """A decoded node. `body` is content at level 0 and a list of `Child` above."""

    kind: Kind
    level: int
    flags: int
    body: Any
    length: int
    """What a link to this node gives as its count: items, or bytes of a text or of bytes."""


def block_links(data: bytes) -> list[BlockId]:
    """Every block that a block of any kind links to: links are the only bytes in a block that do not start with 0x00.
    Corrupt when the data is no DAG-CBOR."""
    found: list[BlockId] = []
    try:
        stack = [decode(data)]
    except (ValueError, TypeError, RecursionError) as exc:
        raise Corrupt("a block is not DAG-CBOR") from exc
    while stack:
        item = stack.pop()
        if type(item) is bytes:
            if item[:1] != b"\0":
                found.append(from_cid(item))
        elif type(item) is list:
            stack.extend(item)
        elif type(item) is dict:
            stack.extend(item.values())
    return found


def head_bytes(major: int, number: int) -> bytes:
    """The head of a CBOR item: major type and argument in the fewest bytes."""
    base = major << 5
    if number < 24:
        return bytes((base | number,))
    for extra, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << (8 * width):
            return bytes((base | extra,)) + number.to_bytes(width, "big")
    raise Corrupt("a CBOR argument is out of range")


_KIND_HEAD = {kind: b"\x84" + encode(kind) for kind in KINDS}
_LEAF_HEADS = {flags: bytes((0, flags)) for flags in (0, SPECIALS, LINKS, LINKS | SPECIALS)}
"""Level and flags, encoded."""
_INDEX_FLAGS = bytes((LINKS,))


def leaf_block(kind: Kind, entries: Sequence[Entry]) -> tuple[Block, int]:
    """The leaf of a list or map, and the bytes of all trees it links to. Entries are encoded already: the node is their
    concatenation."""
    flags = 0
    links: list[Link] = []
    for entry in entries:
        marked = entry[1]
        if marked:
            flags |= marked
            if marked & LINKS:
                links += wire_links(entry[2])
    head = head_bytes(5 if kind == "map" else 4, len(entries))
    data = b"".join([_KIND_HEAD[kind], _LEAF_HEADS[flags], head, *[entry[0] for entry in entries]])
    block = _new_tuple(Block, (block_id(data), data, tuple([link.id for link in links])))
    return block, sum([link.size for link in links])


def content_block(kind: Kind, wire: Wire, flags: int, links: tuple[BlockId, ...] = ()) -> Block:
    """A leaf that is one piece: a text, bytes or a lone scalar."""
    data = b"".join((_KIND_HEAD[kind], b"\x00", bytes((flags,)), encode(wire)))
    return Block(block_id(data), data, links)


def long_block(kind: Kind, piece: bytes) -> Block:
    """A chunk of a text, as UTF-8, or of bytes. Put together by hand: the bytes are there already."""
    if kind == "text":
        head = b"\x00\x00" + head_bytes(3, len(piece))
    else:
        head = b"\x00" + bytes((SPECIALS,)) + head_bytes(2, len(piece) + 1) + b"\0"
    data = b"".join((_KIND_HEAD[kind], head, piece))
    return Block(block_id(data), data)


def index_block(kind: Kind, level: int, entries: Sequence[Entry]) -> tuple[Block, int, int]:
    """An inner node over these index entries, the bytes of all nodes below it, and the items."""
    # Columns, and not entry by entry: an edit makes each node above it again, and they have a hundred entries.
    encoded, _, children, _ = zip(*entries, strict=True)
    data = b"".join((_KIND_HEAD[kind], encode(level), _INDEX_FLAGS, head_bytes(4, len(entries)), *encoded))
    cids, counts, sizes = list(zip(*children, strict=True))[:3]
    return (
        _new_tuple(Block, (block_id(data), data, tuple([cid[4:] for cid in cids]))),
        sum(sizes),
        sum(counts),
    )


def index_entry(block: Block, *, count: int, below: int, forced: bool = False, last_key: str | None = None) -> Entry:
    """What the level above holds for a node."""
    flags = (LINKS if block[2] else 0) | (FORCED if forced else 0)
    size = len(block[1]) + below
    if count > LARGEST_NUMBER or size > LARGEST_NUMBER:
        # Sizes of subtrees that were not read are taken from their links, which a forged block can make add up to this.
        raise Corrupt(f"block {block.id.hex()} promises more than can be counted", block=block.id.hex())
    child: Child = [to_cid(block.id), count, size, flags]
    if last_key is not None:
        child.append(last_key)
    return encode(child), LINKS, child, last_key


def node_entries(node: Node, data: bytes) -> list[Entry]:
    """The entries of a node as they would be written again; Corrupt when they have no canonical form."""
    try:
        if node.level:
            keyed = node.kind == "map"
            return [(encode(child), LINKS, child, child[4] if keyed else None) for child in node.body]
        wires = content_wires(node.body)
        flags = map(wire_flags, wires) if node.flags else repeat(0)
        if node.kind == "map":
            return [
                (encode(key) + encode(wire), flag, wire, key)
                for (key, wire), flag in zip(node.body.items(), flags, strict=False)
            ]
        return list(zip(map(encode, wires), flags, wires, repeat(None), strict=False))
    except (ValueError, TypeError, RecursionError) as exc:
        block = block_id(data).hex()
        raise Corrupt(f"block {block} holds content that cannot be encoded again", block=block) from exc


def node_from_parts(parts: NodeParts) -> Node:
    """The node that was made of these, as decoding it would give it."""
    kind, level, count, entries = parts
    flags = LINKS if level else 0
    if not level:
        for entry in entries:
            flags |= entry[1]
    keyed = kind == "map" and not level
    body = {entry[3]: entry[2] for entry in entries} if keyed else [entry[2] for entry in entries]
    return _new_tuple(Node, (kind, level, flags, body, count))


_LEAF_FLAGS = (0, SPECIALS, LINKS | SPECIALS)
_ENTRY_FLAGS = frozenset({0, LINKS, FORCED, LINKS | FORCED})
_TEXTS = {str}
_CID_LENGTHS = {36}
_ALWAYS_FINE = frozenset({str, float, bool, type(None)})
"""Types of content that nothing can be wrong with, wherever it stands in a container."""
_CID_PREFIX_COLUMNS = [{byte} for byte in CID_PREFIX]


def decode_node(block: BlockId, data: bytes) -> Node:
    """Read a node's verified bytes; Corrupt when they are no node.

    A hash says that bytes are what was written, not that we wrote them. So everything the algorithms rely on is checked
    here, once: the shape of the node, of its index entries and of its flags. Not checked is what would take a walk of
    the content; blocks from outside are walked when they are admitted, by `check_node`."""
    try:
        kind, level, flags, body = decode(data)
        cls = type(body)
        if type(level) is not int or type(flags) is not int:
            count = -1
        elif level:
            count = _index_count(kind, level, flags, body)
        elif (kind == "list" and cls is list) or (kind == "map" and cls is dict):
            count = len(body)
            if flags == 0:
                # Plain content is handed out as it is, so a special in it would pass for the user's data. Its first two
                # bytes are always the same where we wrote them, and looking for one at a time is far quicker.
                if 0xA1 in data and 0x60 in data and b"\xa1\x60" in data and any(map(wire_flags, content_wires(body))):
                    count = -1
            elif flags not in _LEAF_FLAGS:
                count = -1
        else:
            count = _content_count(kind, flags, body)
    except (ValueError, TypeError, RecursionError) as exc:
        raise Corrupt(f"block {block.hex()} is not a tree node", block=block.hex()) from exc
    if count < 0:
        raise Corrupt(f"block {block.hex()} is not a tree node", block=block.hex())
    # Not Node(...): that takes longer than all the checks.
    return _new_tuple(Node, (kind, level, flags, body, count))


def content_wires(body: Any) -> Any:
    """The items of a list or the fields of a map. The map itself is none of them: a field named "" must not be taken
    for a tag."""
    return body if type(body) is list else body.values()


def _content_count(kind: Any, flags: int, body: Any) -> int:
    """What a leaf that is one piece holds, -1 when it is none."""
    cls = type(body)
    if kind == "text" and cls is str and flags == 0:
        return len(body) if body.isascii() else len(body.encode())
    if kind == "bytes" and cls is bytes and flags == SPECIALS and body[:1] == b"\0":
        return len(body) - 1
    # Lists, maps, texts and bytes have kinds of their own.
    if kind != "value" or flags not in _LEAF_FLAGS or cls in (list, str, bytes):
        return -1
    return -1 if cls is dict and not is_special(body) else 1


def _index_count(kind: Any, level: int, flags: int, body: Any) -> int:
    """The items below an index node, -1 when it is none. Works by columns, because every child is looked at: whatever
    else a child may be, only a list has a CID in the first."""
    keyed = kind == "map"
    if not (keyed or kind in ("list", "text", "bytes")) or not 0 < level <= HIGHEST_LEVEL or flags != LINKS:
        return -1
    columns = list(zip(*body, strict=True))
    if len(columns) != (5 if keyed else 4) or (keyed and set(map(type, columns[4])) != _TEXTS):
        return -1
    cids, counts, sizes, entry_flags = columns[:4]
    joined = b"".join(cids)
    if set(map(len, cids)) != _CID_LENGTHS or [set(joined[at::36]) for at in range(4)] != _CID_PREFIX_COLUMNS:
        return -1
    if not _ENTRY_FLAGS.issuperset(entry_flags) or type(sum(entry_flags)) is not int:
        return -1
    total, size = sum(counts), sum(sizes)
    # A sum of integers is one. An empty node stands only for an empty value, never among others.
    if type(total) is not int or type(size) is not int or min(counts) < 1 or min(sizes) < 1:
        return -1
    return total if total <= LARGEST_NUMBER and size <= LARGEST_NUMBER else -1


def is_tree_node(data: bytes) -> bool:
    """Whether a block's bytes begin as those of a tree's node do."""
    return data.startswith(tuple(_KIND_HEAD.values()))


def check_node(block: BlockId, node: Node) -> None:
    """Walk all of a node: Corrupt unless we could have written its content under these flags. What it says about other
    blocks is checked where they are read."""
    if node.level:
        if any(bool in map(type, child[1:4]) for child in node.body):
            raise Corrupt(f"block {block.hex()} is not a tree node", block=block.hex())
        keys = [sort_key(child[4]) for child in node.body] if node.kind == "map" else []
        if any(map(ge, keys, keys[1:])):
            raise Corrupt(f"block {block.hex()} is an index out of order", block=block.hex())
        return
    if node.kind in ("text", "bytes"):
        return
    flags = 0
    nested = 0 if node.kind == "value" else 1
    stack: list[tuple[Wire, int]] = [(wire, nested) for wire in _leaf_wires(node)]
    while stack:
        wire, depth = stack.pop()
        cls = type(wire)
        if cls is dict and is_special(wire):
            flags |= SPECIALS
            special = read_special(wire)
            if isinstance(special, Link):
                flags |= LINKS
                if special.kind == "value" or special.size == 0:
                    raise Corrupt(f"block {block.hex()} holds a malformed link", block=block.hex())
            else:
                name, payload = special
                if name == "float" and payload != "-0.0":
                    raise Corrupt(f"block {block.hex()} holds a malformed tag", block=block.hex())
                stack.append((payload, depth + 1 if name == "map" or _is_tag(payload) else depth))
        elif cls is dict or cls is list:
            if depth >= MAXIMUM_DEPTH:
                raise too_deep(block)
            inner = wire if cls is list else wire.values()
            stack += [(each, depth + 1) for each in inner if type(each) not in _ALWAYS_FINE]
        elif cls is bytes:
            flags |= SPECIALS
            if wire[:1] != b"\0":
                raise Corrupt(f"block {block.hex()} holds bytes without their marker", block=block.hex())
        elif cls is int and wire < -LARGEST_NUMBER - 1:
            raise Corrupt(f"block {block.hex()} holds an integer out of range", block=block.hex())
        if depth > MAXIMUM_DEPTH:
            raise too_deep(block)
    if flags != node.flags:
        raise Corrupt(f"block {block.hex()} has flags that its content does not have", block=block.hex())


def _is_tag(wire: Wire) -> bool:
    """Whether this is a tag that counts as a level of nesting when it stands in another."""
    if type(wire) is not dict or not is_special(wire):
        return False
    special = read_special(wire)
    return not isinstance(special, Link) and special[0] not in ("map", "float")


def last_key(node: Node) -> str | None:
    """What an index entry gives as the last key of this node; None where that is not a map's."""
    if node.kind != "map" or not node.body:
        return None
    return node.body[-1][4] if node.level else next(reversed(node.body))  # type: ignore[no-any-return]


def check_shape(block: BlockId, node: Node, kind: Kind, count: int, level: int | None = None) -> Node:
    """The node, if it is what leads here as far as a walk relies on it: its kind, how much it holds, and its level when
    an index entry led to it."""
    if node.kind != kind or node.length != count or (level is not None and node.level != level):
        raise broken_promise(block)
    return node


def check_children(parent: Node, children: Sequence[Node]) -> Sequence[Node]:
    """The same for all children of a node."""
    kinds, levels, _, _, counts = zip(*children, strict=True)
    if {*kinds} != {parent.kind} or {*levels} != {parent.level - 1} or counts != tuple([c[1] for c in parent.body]):
        for child, node in zip(parent.body, children, strict=True):
            check_shape(child_id(child), node, parent.kind, child[1], parent.level - 1)
    return children


def broken_promise(block: BlockId) -> Corrupt:
    """The error for a block that is not what the link to it says."""
    return Corrupt(f"block {block.hex()} is not what a link to it says", block=block.hex())


def node_links(node: Node) -> list[Link]:
    """Everything a node links to."""
    if node.level:
        return [child_link(node.kind, child) for child in node.body]
    if not node.flags & LINKS:
        return []
    return [link for wire in _leaf_wires(node) for link in wire_links(wire)]


def _leaf_wires(node: Node) -> Iterable[Wire]:
    """The pieces of content in a leaf."""
    return content_wires(node.body) if node.kind in ("list", "map") else (node.body,)


def node_link_ids(node: Node) -> list[BlockId]:
    """The blocks a node links to."""
    if node.level:
        return [child[0][4:] for child in node.body]
    return [link.id for link in node_links(node)]


class Promises:
    """Checks blocks of trees, and holds what links say against the blocks that they lead to, in whatever order the two
    are met. Readers take links at their word, except for what no walk can go on without; so this is asked where blocks
    come in from outside, and by whoever verifies.

    If all that is said of a block agrees, and is true by what the block itself says of those below it, then all of it
    is true: sizes add up from below."""

    def __init__(self) -> None:
        self._links: dict[BlockId, Link] = {}
        self._entries: dict[BlockId, tuple[int, str | None]] = {}

    def expect(self, link: Link) -> None:
        """Note what a link says; Corrupt if something else was said before, or turned out to be true."""
        if not self._agree(link):
            raise broken_promise(link.id)

    def check(self, block: BlockId, data: bytes) -> list[BlockId]:
        """The blocks that this one links to; Corrupt if a tree's node does not say of itself what is true of it, or is
        not what links say, or has links that are not true. Blocks of other kinds have readers of their own."""
        if not is_tree_node(data):
            return block_links(data)
        node = decode_node(block, data)
        check_node(block, node)
        links = node_links(node)
        size = len(data) + sum([link.size for link in links])
        wrong = [] if self._agree(Link(block, node.kind, node.length, size, bool(links))) else [block]
        if not self._agree_on_place(block, node.level, last_key(node)):
            wrong.append(block)
        wrong += [link.id for link in links if not self._agree(link)]
        if node.level:
            wrong += [
                child_id(child)
                for child in node.body
                if not self._agree_on_place(child_id(child), node.level - 1, *child[4:])
            ]
        if wrong:
            raise broken_promise(wrong[0])
        return [link.id for link in links]

    def _agree(self, link: Link) -> bool:
        return self._links.setdefault(link.id, link) == link

    def _agree_on_place(self, block: BlockId, level: int, key: str | None = None) -> bool:
        return self._entries.setdefault(block, (level, key)) == (level, key)


def admit_block(data: bytes, expected: BlockId | None = None, promises: Promises | None = None) -> Block:
    """Take a block from outside: it must be what its name says, exactly the bytes we would have written, and, among all
    that were admitted with the same `promises`, what links say of it."""
    found = block_id(data)
    if expected is not None and found != expected:
        raise Corrupt(f"block {expected.hex()} arrived with other bytes", block=expected.hex())
    try:
        canonical = encode(decode(data)) == data
    except (ValueError, TypeError, RecursionError) as exc:
        raise Corrupt(f"block {found.hex()} is not DAG-CBOR", block=found.hex()) from exc
    if not canonical:
        raise Corrupt(f"block {found.hex()} is not in canonical form", block=found.hex())
    return Block(found, data, tuple((promises or Promises()).check(found, data)))
