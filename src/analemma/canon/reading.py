"""From stored form back to Python values, and along a path into them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

from analemma.canon.identity import BlockId
from analemma.canon.nodes import (
    HIGHEST_LEVEL,
    Child,
    Node,
    broken_promise,
    child_id,
    decode_node,
    follow,
    keeps_promise,
    node_links,
)
from analemma.canon.pointer import Path, list_index
from analemma.canon.registry import Tagged, TypeRegistry
from analemma.canon.source import Fetch, NodeSource, Walk
from analemma.canon.wire import (
    DEEPEST_CONTENT,
    LINKS,
    Kind,
    Link,
    SortKey,
    Wire,
    is_special,
    link_wire,
    read_special,
    sort_key,
    too_deep,
    wire_links,
)
from analemma.errors import AnalemmaError, Corrupt, Invalid, Limit

LARGEST_READ_BYTES = 4 * 2**30
"""Bytes of blocks, repeats counted each time, that one read may put together."""
MOST_ROUNDS = (DEEPEST_CONTENT + 2) * (HIGHEST_LEVEL + 1)
"""Fetches that the deepest value needs when each of its containers is the highest tree."""
_SCALARS = frozenset({str, int, float, bool, type(None)})

UnknownTypes = Literal["refuse", "keep"]


class Missing:
    """Nothing stands at the path."""


MISSING = Missing()


class Reader:
    """Reads whole trees: first every block, level by level, then the value is put together.

    Between the two, every link is held against the block it leads to: kind, level, count, last key and size. The size
    is what makes a read finite in practice. A few blocks that each name the next one twice stand for a value of any
    length; but as every size is the block's own plus those below it, the size of the root is, once all are found to
    agree, the exact number of bytes to be decoded, and it is known before the first of them is."""

    def __init__(
        self,
        fetch: Fetch,
        registry: TypeRegistry,
        unknown: UnknownTypes = "refuse",
        *,
        largest_bytes: int = LARGEST_READ_BYTES,
    ) -> None:
        self._fetch = fetch
        self._registry = registry
        self._unknown = unknown
        self._largest_bytes = largest_bytes
        self._bytes: dict[BlockId, bytes] = {}
        self._nodes: dict[BlockId, Node] = {}
        self._sizes: dict[BlockId, int] = {}

    def read(self, root: BlockId) -> Any:
        """The value of this tree."""
        self._load([root])
        self._check_size([root])
        return self._tree(root, 0)

    def read_many(self, roots: Sequence[BlockId]) -> list[Any]:
        """The values of these trees, in their order; one fetch per level of the deepest."""
        self._load(roots)
        self._check_size(roots)
        return [self._tree(root, 0) for root in roots]

    def read_wires(self, wires: Sequence[Wire]) -> list[Any]:
        """The values of these pieces of content."""
        links = [link for wire in wires for link in wire_links(wire)]
        self._load([link.id for link in links])
        for link in links:
            # A root that is asked for as a whole comes as a link of size 0, since nothing led to it.
            if not keeps_promise(link, self._peek(link.id)) or link.size not in (0, self._sizes[link.id]):
                raise broken_promise(link.id)
        self._check_size([link.id for link in links])
        return [self._top(wire) for wire in wires]

    def _load(self, blocks: Iterable[BlockId]) -> None:
        # Names of their own: the loop runs once for each block of a state.
        bytes_, nodes, sizes = self._bytes, self._nodes, self._sizes
        frontier = [block for block in dict.fromkeys(blocks) if block not in bytes_]
        indexes: list[Node] = []
        linked: list[Link] = []
        rounds = 0
        while frontier:
            if (rounds := rounds + 1) > MOST_ROUNDS:
                raise too_deep(frontier[0])
            fetched = self._fetch(frontier)
            following: dict[BlockId, None] = {}
            for block in frontier:
                data = bytes_[block] = fetched[block]
                node = nodes[block] = decode_node(block, data)
                size = len(data)
                if node[2] & LINKS:
                    if node.level:
                        indexes.append(node)
                        size += sum([child[2] for child in node.body])
                        following.update(dict.fromkeys([child[0][4:] for child in node.body]))
                    else:
                        links = node_links(node)
                        linked += links
                        size += sum([link.size for link in links])
                        following.update(dict.fromkeys([link.id for link in links]))
                sizes[block] = size
            frontier = [block for block in following if block not in bytes_]
        self._check_links(indexes, linked)

    def _check_links(self, indexes: Sequence[Node], linked: Sequence[Link]) -> None:
        sizes = self._sizes
        for parent in indexes:
            blocks = [child[0][4:] for child in parent.body]
            nodes = [self._nodes.get(block) or self._peek(block) for block in blocks]
            kinds, levels, flags, _, counts = zip(*nodes, strict=True)
            entries = [[child[1], child[2], child[3] & LINKS] for child in parent.body]
            found = [
                [count, sizes[block], flag & LINKS] for count, block, flag in zip(counts, blocks, flags, strict=True)
            ]
            if entries != found or {*kinds} != {parent.kind} or {*levels} != {parent.level - 1} or parent.kind == "map":
                # Slower, and knows which of them it is.
                for child, node in zip(parent.body, nodes, strict=True):
                    if child[2] != sizes[child_id(child)]:
                        raise broken_promise(child_id(child))
                    follow(parent, child, node)
        for link in linked:
            if link.kind == "value" or link.size != sizes[link.id] or not keeps_promise(link, self._peek(link.id)):
                raise broken_promise(link.id)

    def _check_size(self, blocks: Sequence[BlockId]) -> None:
        total = sum([self._sizes[block] for block in blocks])
        if total > self._largest_bytes:
            raise Limit(
                f"the value takes {total} bytes of blocks, and one read may take {self._largest_bytes}",
                hint="read parts of it by their paths",
                bytes=total,
            )

    def _peek(self, block: BlockId) -> Node:
        node = self._nodes.get(block)
        return decode_node(block, self._bytes[block]) if node is None else node

    def _take(self, block: BlockId) -> Node:
        # The decoded node is handed out once; a block that occurs again is decoded again, so that no two places of a
        # value share one mutable container.
        node = self._nodes.pop(block, None)
        return decode_node(block, self._bytes[block]) if node is None else node

    # What follows calls itself at most three times per level of nesting: the deepest value has to fit on the stack of
    # a program that has used up half of it. So trees are flattened in loops, and tags around tags are unwrapped in one.

    def _tree(self, block: BlockId, depth: int) -> Any:
        """The value of a tree whose blocks are loaded; `depth` is how many containers it stands in."""
        node = self._take(block)
        leaves = [node]
        while leaves[0].level:
            leaves = [self._take(child[0][4:]) for parent in leaves for child in parent.body]
        kind = node.kind
        if kind == "text":
            return "".join([leaf.body for leaf in leaves])
        if kind == "bytes":
            return b"".join([leaf.body[1:] for leaf in leaves])
        if kind == "value":
            return self._plain(node.body, depth) if node.flags else node.body
        if depth >= DEEPEST_CONTENT:
            raise too_deep(block)
        if kind == "list":
            items: list[Any] = []
            for leaf in leaves:
                inner = self._items(leaf.body, depth + 1) if leaf.flags else leaf.body
                if node is leaf:
                    return inner
                items += inner
            return items
        fields: dict[str, Any] = {}
        last_key: str | None = None
        for leaf in leaves:
            body = leaf.body
            if node is not leaf:
                if last_key is not None and sort_key(next(iter(body))) <= sort_key(last_key):
                    raise Corrupt(f"block {block.hex()} is a map out of order", block=block.hex())
                last_key = next(reversed(body))
            inner_fields = self._fields(body, depth + 1) if leaf.flags else body
            if node is leaf:
                return inner_fields
            fields |= inner_fields
        return fields

    def _items(self, wires: list[Wire], depth: int) -> list[Any]:
        items: list[Any] = []
        for wire in wires:
            cls = type(wire)
            if cls in _SCALARS:
                items.append(wire)
            elif cls is bytes and wire[:1] == b"\0":
                # As below; lists of many bytes are worth the line.
                items.append(wire[1:])
            else:
                items.append(self._plain(wire, depth))
        return items

    def _fields(self, wires: dict[str, Wire], depth: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for key, wire in wires.items():
            fields[key] = wire if type(wire) in _SCALARS else self._plain(wire, depth)
        return fields

    def _top(self, wire: Wire) -> Any:
        """The value of content that stands in nothing: the only place where a link may lead to a lone scalar."""
        link = read_special(wire).link if is_special(wire) else None
        return self._plain(wire, 0) if link is None else self._tree(link.id, 0)

    def _plain(self, wire: Wire, depth: int) -> Any:
        cls = type(wire)
        if cls is dict and is_special(wire):
            return self._special(wire, depth)
        if cls is dict or cls is list:
            if depth >= DEEPEST_CONTENT:
                raise too_deep()
            return self._fields(wire, depth + 1) if cls is dict else self._items(wire, depth + 1)
        if cls is bytes:
            if wire[:1] != b"\0":
                raise Corrupt("a block holds bytes without their marker")
            return wire[1:]
        return wire

    def _special(self, wire: Wire, depth: int) -> Any:
        names: list[str] = []
        while True:
            link, tag = read_special(wire)
            if link is not None:
                if link.id not in self._bytes:
                    raise Corrupt("a block holds a link that its flags do not tell of")
                value = self._tree(link.id, depth)
                break
            name, wire = cast("tuple[str, Wire]", tag)
            if name == "float":
                if wire != "-0.0":
                    raise Corrupt("a block holds a malformed tag")
                value = -0.0
                break
            if name == "map":
                if depth >= DEEPEST_CONTENT:
                    raise too_deep()
                value = {"": self._plain(wire, depth + 1)}
                break
            depth += 1 if names else 0
            if depth > DEEPEST_CONTENT:
                raise too_deep()
            names.append(name)
            if not is_special(wire):
                value = self._plain(wire, depth)
                break
        for name in reversed(names):
            value = self._decoded(name, value)
        return value

    def _decoded(self, name: str, payload: Any) -> Any:
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
    """A root seen as the link that would lead to it, except for its size: that is 0, for not known."""
    return Link(block, node.kind, node.length, 0, bool(node.flags & LINKS))


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
        if link is not None:
            # Entered even if the link itself says that nothing can be there: only the target tells a lie from the
            # truth.
            node = yield link.id
            if not keeps_promise(link, node):
                raise broken_promise(link.id)
            if node.kind == "map":
                return (yield from _field_below(node, token))
            if node.kind == "list":
                try:
                    index = list_index(token, node.length)
                except (IndexError, Invalid):
                    return MISSING
                return (yield from _item_below(node, index))
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
    if node.kind != "map":
        raise broken_promise(root)
    return (yield from _field_below(node, key))


def find_item(root: BlockId, index: int) -> Walk[Wire]:
    """Find an item in a list's tree, which has that many."""
    node = yield root
    if node.kind != "list" or not 0 <= index < node.length:
        raise broken_promise(root)
    return (yield from _item_below(node, index))


def _field_below(node: Node, key: str) -> Walk[Wire | Missing]:
    while node.level:
        child = node.body[child_position(node, key)]
        node = follow(node, child, (yield child_id(child)))
    return node.body.get(key, MISSING)


def _item_below(node: Node, index: int) -> Walk[Wire]:
    # The counts of a node add up to its own and each is its child's, so the index is always found.
    while node.level:
        for child in node.body:
            if index < child[1]:
                break
            index -= child[1]
        node = follow(node, child, (yield child_id(child)))
    return node.body[index]


def child_position(node: Node, key: str) -> int:
    """Which child holds this key, or would: the first whose last key is not below it, else the last."""
    position = bisect_left(node.body, sort_key(key), key=_child_order)
    return min(position, len(node.body) - 1)


def _child_order(child: Child) -> SortKey:
    # `sort_key`, spelled out: a search asks for several of them.
    key = child[4]
    return (len(key) if key.isascii() else len(key.encode()), key)


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
