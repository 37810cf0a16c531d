"""From stored form back to Python values, and along a path into them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Literal, cast

from analemma.canon.identity import BlockId
from analemma.canon.nodes import (
    LINKS,
    Kind,
    Link,
    Node,
    Wire,
    child_id,
    decode_node,
    is_special,
    link_wire,
    node_link_ids,
    read_special,
    sort_key,
    wire_links,
)
from analemma.canon.pointer import Path, list_index
from analemma.canon.registry import Tagged, TypeRegistry
from analemma.canon.source import Fetch, NodeSource, Walk
from analemma.errors import AnalemmaError, Corrupt, Invalid

UnknownTypes = Literal["refuse", "keep"]


class Missing:
    """Nothing stands at the path."""


MISSING = Missing()


class Reader:
    """Reads whole trees: first every block, level by level, then the value is put together."""

    def __init__(self, fetch: Fetch, registry: TypeRegistry, unknown: UnknownTypes = "refuse") -> None:
        self._fetch = fetch
        self._registry = registry
        self._unknown = unknown
        self._bytes: dict[BlockId, bytes] = {}
        self._nodes: dict[BlockId, Node] = {}

    def read(self, root: BlockId) -> Any:
        """The value of this tree."""
        self._load([root])
        return self._value(root)

    def read_wires(self, wires: Sequence[Wire]) -> list[Any]:
        """The values of these pieces of content."""
        self._load([link.id for wire in wires for link in wire_links(wire)])
        return [self._plain(wire) for wire in wires]

    def _load(self, blocks: Sequence[BlockId]) -> None:
        frontier = [block for block in dict.fromkeys(blocks) if block not in self._bytes]
        while frontier:
            fetched = self._fetch(frontier)
            following: dict[BlockId, None] = {}
            for block in frontier:
                data = self._bytes[block] = fetched[block]
                node = self._nodes[block] = decode_node(block, data)
                if node.flags & LINKS:
                    following.update(dict.fromkeys(node_link_ids(node)))
            frontier = [block for block in following if block not in self._bytes]

    def _value(self, block: BlockId) -> Any:
        # The decoded node is handed out once; a block that occurs again is decoded again, so that no two places of a
        # value share one mutable container.
        node = self._nodes.pop(block, None) or decode_node(block, self._bytes[block])
        if node.level:
            return self._joined(node)
        if node.flags == 0:
            return node.body
        if node.kind == "list":
            return [self._plain(item) for item in node.body]
        if node.kind == "map":
            return {key: self._plain(item) for key, item in node.body.items()}
        return self._plain(node.body)

    def _joined(self, node: Node) -> Any:
        parts = [self._value(child_id(child)) for child in node.body]
        if node.kind == "list":
            return [item for part in parts for item in part]
        if node.kind == "map":
            return {key: item for part in parts for key, item in part.items()}
        return ("" if node.kind == "text" else b"").join(parts)

    def _plain(self, wire: Wire) -> Any:
        cls = type(wire)
        if cls is dict:
            if is_special(wire):
                return self._special(wire)
            return {key: self._plain(item) for key, item in wire.items()}
        if cls is list:
            return [self._plain(item) for item in wire]
        if cls is bytes:
            if wire[:1] != b"\0":
                raise Corrupt("a block holds bytes without their marker")
            return wire[1:]
        return wire

    def _special(self, wire: Wire) -> Any:
        link, tag = read_special(wire)
        if link is not None:
            return self._value(link.id)
        name, inner = cast("tuple[str, Wire]", tag)
        if name == "map":
            return {"": self._plain(inner)}
        if name == "float":
            return -0.0
        payload = self._plain(inner)
        codec = self._registry.for_name(name)
        if codec is None:
            if self._unknown == "keep":
                return Tagged(name, payload)
            raise Invalid(
                f"the state holds a value of type {name!r}, which this program has not registered",
                hint="import and register the class, or read with unknown_types='keep'",
                type=name,
            )
        try:
            return codec.decode(payload)
        except AnalemmaError:
            raise
        except Exception as exc:
            raise Corrupt(f"a stored {name!r} cannot be read: {exc}") from exc


def root_link(block: BlockId, node: Node) -> Link:
    """A root seen as the link that would lead to it."""
    count = (
        sum([child[1] for child in node.body]) if node.level else len(node.body) if node.kind in ("list", "map") else 0
    )
    return Link(block, node.kind, count, 0, bool(node.flags & LINKS))


def locate(root: BlockId, path: Path) -> Walk[Wire | Missing]:
    """Find what stands at a path, as stored form."""
    node = yield root
    wire: Wire = link_wire(root_link(root, node))
    for token in path:
        wire = yield from step(wire, token)
        if wire is MISSING:
            return MISSING
    return wire


def step(wire: Wire, token: str) -> Walk[Wire | Missing]:
    """Find one field or item of a container; MISSING when it has none, or is no container."""
    if type(wire) is dict:
        if not is_special(wire):
            return wire.get(token, MISSING)
        link, tag = read_special(wire)
        if link is not None and link.kind == "map":
            return (yield from find_field(link.id, token))
        if link is not None and link.kind == "list":
            try:
                return (yield from find_item(link.id, list_index(token, link.count)))
            except (IndexError, Invalid):
                return MISSING
        if tag is not None and tag[0] == "map":
            return tag[1] if token == "" else MISSING
    elif type(wire) is list:
        try:
            return wire[list_index(token, len(wire))]
        except (IndexError, Invalid):
            return MISSING
    return MISSING


def find_field(root: BlockId, key: str) -> Walk[Wire | Missing]:
    """Find a field in a map's tree."""
    node = yield root
    while node.level:
        node = yield child_id(node.body[child_position(node, key)])
    return node.body.get(key, MISSING)


def find_item(root: BlockId, index: int) -> Walk[Wire]:
    """Find an item in a list's tree."""
    node = yield root
    while node.level:
        for child in node.body:
            if index < child[1]:
                break
            index -= child[1]
        else:
            raise Corrupt("a list's index says it has more items than it has")
        node = yield child_id(child)
    return node.body[index]


def child_position(node: Node, key: str) -> int:
    """Which child holds this key, or would: the first whose last key is not below it, else the last."""
    position = bisect_left(node.body, sort_key(key), key=lambda child: sort_key(child[4]))
    return min(position, len(node.body) - 1)


def container_kind(wire: Wire) -> Kind | None:
    """`list` or `map` for what a path can go through, None for everything else."""
    if type(wire) is list:
        return "list"
    if type(wire) is not dict:
        return None
    if not is_special(wire):
        return "map"
    link, tag = read_special(wire)
    if link is not None:
        return link.kind if link.kind in ("list", "map") else None
    return "map" if tag is not None and tag[0] == "map" else None


def read_paths(
    root: BlockId, paths: Sequence[Path], fetch: Fetch, registry: TypeRegistry, unknown: UnknownTypes = "refuse"
) -> list[Any]:
    """What stands at each path (MISSING where nothing does); only the blocks on the way and below are fetched."""
    source = NodeSource(fetch)
    wires = source.run(locate(root, path) for path in paths)
    found = [wire for wire in wires if wire is not MISSING]
    values = iter(Reader(fetch, registry, unknown).read_wires(found))
    return [wire if wire is MISSING else next(values) for wire in wires]
