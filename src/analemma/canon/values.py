"""Content in its stored form: what stands in the leaves of a tree.

Plain JSON stands for itself. Everything else stands in a map with the single key `""`:

    {"": [cid, kind, count, size, branching]}    a value in a tree of its own
    {"": ["datetime", payload]}                  a tagged value
    {"": ["map", value]}                         the user's own dict {"": value}
    {"": ["float", "-0.0"]}                      negative zero, which DAG-CBOR encoders lose

and bytes carry a leading 0x00, because encoders take bytes that parse as a CID for a link.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import libipld

from analemma.canon.identity import BlockId, from_cid, to_cid
from analemma.errors import Corrupt

Kind = Literal["list", "map", "text", "bytes", "value"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Wire = Any
"""A value in its stored form, as the DAG-CBOR codec takes and gives it."""

LINKS = 1
"""Flag: something here links to another block."""
SPECIALS = 2
"""Flag: something here is not plain JSON, so reading has to walk it."""

DEEPEST_CONTENT = 128
"""Containers inside containers, tags around tags: the nesting that can be stored, and so the most that can be read."""
LARGEST_NUMBER = 2**63 - 1
"""The largest count or size that a link can promise."""

encode: Any = libipld.encode_dag_cbor
decode: Any = libipld.decode_dag_cbor

_new_tuple = tuple.__new__
"""Makes a named tuple without its constructor, which takes several times as long; every field must be given."""

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


class Special(NamedTuple):
    """A decoded `{"": [...]}`: exactly one of the two is set."""

    link: Link | None
    tag: tuple[str, Wire] | None


def is_special(wire: Wire) -> bool:
    """Whether this stands for something that is not a plain dict."""
    return type(wire) is dict and len(wire) == 1 and "" in wire


def read_special(wire: dict[str, Wire]) -> Special:
    """Take a special apart; Corrupt when it is neither a link nor a tag."""
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
                return _new_tuple(Special, (_new_tuple(Link, (from_cid(cid), kind, count, size, branching == 1)), None))
        elif len(body) == 2 and type(body[0]) is str and body[0]:
            return _new_tuple(Special, (None, (body[0], body[1])))
    raise Corrupt("a block holds a malformed tag")


def wire_link(wire: Wire) -> Link | None:
    """The link that this is, if it is one."""
    return read_special(wire).link if is_special(wire) else None


def link_wire(link: Link) -> Wire:
    """A link as it stands inside content."""
    if link.count > LARGEST_NUMBER or link.size > LARGEST_NUMBER:
        raise Corrupt(f"block {link.id.hex()} promises more than can be counted", block=link.id.hex())
    return {"": [to_cid(link.id), link.kind, link.count, link.size, int(link.branching)]}


def wire_links(wire: Wire) -> list[Link]:
    """Every link inside a piece of content."""
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
    return Corrupt(f"{where} is nested deeper than {DEEPEST_CONTENT}", **facts)


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
