"""Stored trees, from the nodes up: fetched level by level, followed along paths, and put together as Python values."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, TypeVar

from analemma.canon.nodes import (
    HIGHEST_LEVEL,
    LINKS,
    BlockId,
    Child,
    Entry,
    Kind,
    Link,
    Node,
    SortKey,
    Wire,
    broken_promise,
    check_children,
    check_shape,
    child_id,
    content_wires,
    decode_node,
    is_special,
    link_wire,
    node_entries,
    node_link_ids,
    read_special,
    sort_key,
    too_deep,
    wire_link,
    wire_links,
)
from analemma.canon.pointer import MAXIMUM_DEPTH, Path, list_index
from analemma.canon.types import Tagged, TypeRegistry
from analemma.errors import AnalemmaError, Corrupt, Invalid, Limit

Fetch = Callable[[Sequence[BlockId]], Mapping[BlockId, bytes]]
"""Gives the verified bytes of every block asked for, or raises. Called once per level, however many blocks that is."""

R = TypeVar("R")
Walk = Generator[BlockId, Node, R]
"""A descent that asks for one node at a time; many of them run together, sharing each round's fetch."""

CACHED_NODES = 256
"""Nodes that a cache keeps: about a megabyte of blocks, at most eight, and about four times that decoded."""
LARGEST_READ_BYTES = 4 * 2**30
"""Bytes of blocks, repeats counted each time, that one read may put together."""
MOST_ROUNDS = (MAXIMUM_DEPTH + 2) * (HIGHEST_LEVEL + 1)
"""Fetches that the deepest value needs when each of its containers is the highest tree."""
_SCALARS = frozenset({str, int, float, bool, type(None)})

Content = list[Wire] | dict[str, Wire]
"""The items or fields of a container, each in stored form."""

UnknownTypes = Literal["refuse", "keep"]


class Missing:
    """Nothing stands at the path."""


MISSING = Missing()


class Loaded:
    """A node that was decoded or made, with what has been worked out about it since."""

    __slots__ = ("_entries", "_ids", "data", "node")

    def __init__(
        self, node: Node, data: bytes, entries: Sequence[Entry] | None = None, ids: Sequence[BlockId] | None = None
    ) -> None:
        self.node = node
        self.data = data
        self._entries = entries
        self._ids = ids

    @property
    def entries(self) -> Sequence[Entry]:
        """The node's entries as they would be written again; not to be changed."""
        if self._entries is None:
            self._entries = node_entries(self.node, self.data)
        return self._entries

    @property
    def ids(self) -> Sequence[BlockId]:
        """The blocks that the node links to, one for each link."""
        if self._ids is None:
            self._ids = node_link_ids(self.node)
        return self._ids


class NodeCache:
    """The lists and maps that edits met or made lately: an edit usually starts where the one before it ended.

    What is here was verified when it was fetched or is what we made ourselves. It says nothing about what is stored:
    an edit comes here only for what its own base leads to."""

    def __init__(self) -> None:
        # Each of the calls below is one step of the interpreter, so threads need no lock.
        self._loaded: OrderedDict[BlockId, Loaded] = OrderedDict()

    def get(self, block: BlockId) -> Loaded | None:
        """A node that is here."""
        loaded = self._loaded.get(block)
        if loaded is not None:
            try:
                self._loaded.move_to_end(block)
            except KeyError:
                # Gone between the two; what was found is as good as it was.
                pass
        return loaded

    def put(self, block: BlockId, loaded: Loaded) -> None:
        """Keep a node, in place of those that were not asked for the longest."""
        if loaded.node.kind in ("list", "map"):
            self._loaded[block] = loaded
            if len(self._loaded) > CACHED_NODES:
                self._loaded.popitem(last=False)


class Nodes:
    """Decoded nodes, each fetched at most once, and the ways down from them; a level costs one fetch, for however many
    trees. What is read piece by piece is given in stored form (wires), which is shared with caches: whoever takes one
    leaves it as it is.

    What links say of their targets was checked when the blocks were admitted, and is when they are verified. On the way
    down only that is held against a node without which no walk could go on from it: its kind, its level, its count."""

    def __init__(self, fetch: Fetch, cache: NodeCache | None = None) -> None:
        self._fetch = fetch
        self._cache = cache
        self._loaded: dict[BlockId, Loaded] = {}

    def get(self, block: BlockId) -> Node:
        """One node."""
        return self.loaded(block).node

    def loaded(self, block: BlockId) -> Loaded:
        """One node with what is known about it."""
        ready = self._here(block)
        if ready is None:
            self._load([block])
            ready = self._loaded[block]
        return ready

    def get_many(self, blocks: Iterable[BlockId]) -> dict[BlockId, Node]:
        """These nodes, with one fetch for all that are new."""
        wanted = dict.fromkeys(blocks)
        missing = [block for block in wanted if self._here(block) is None]
        if missing:
            self._load(missing)
        return {block: self._loaded[block].node for block in wanted}

    def leaves(self, trees: Sequence[Node]) -> list[list[Node]]:
        """The leaves of each of these trees, in order."""
        levels = [[tree] for tree in trees]
        while deeper := [number for number, nodes in enumerate(levels) if nodes[0].level]:
            below = self.get_many([child[0][4:] for number in deeper for node in levels[number] for child in node.body])
            for number in deeper:
                levels[number] = [
                    child
                    for node in levels[number]
                    for child in check_children(node, [below[child[0][4:]] for child in node.body])
                ]
        return levels

    def wires(self, places: Iterable[tuple[BlockId, Path]]) -> list[Wire | Missing]:
        """What stands at each of these paths of whole trees; MISSING where nothing does."""
        return self.run([locate(*place) for place in places])

    def field(self, container: Wire, key: str) -> Wire | Missing:
        """One field of a map; MISSING if it has none of that name."""
        return self.run([step(container, key)])[0]

    def items(self, container: Wire, indexes: Iterable[int]) -> list[Wire]:
        """Some items of a list, which has that many; the descents share their fetches."""
        found = self.run(step(container, str(index)) for index in indexes)
        link = wire_link(container)
        if link is not None and any(wire is MISSING for wire in found):
            raise broken_promise(link.id)
        return found

    def is_small(self, container: Wire) -> bool:
        """Whether all of a container stands in one place: inline, or in a single leaf."""
        link = wire_link(container)
        return link is None or self.root(link).level == 0

    def contents(self, containers: Sequence[Wire]) -> list[Content]:
        """The fields or items of each of these containers, without what they link to; one fetch per level for all."""
        links = {number: link for number, wire in enumerate(containers) if (link := wire_link(wire)) is not None}
        self.get_many([link.id for link in links.values()])
        leaves = dict(zip(links, self.leaves([self.root(link) for link in links.values()]), strict=True))
        return [
            joined(links[number].kind, [leaf.body for leaf in leaves[number]], links[number].id)
            if number in links
            else inline_content(wire)
            for number, wire in enumerate(containers)
        ]

    def nesting(self, wire: Wire) -> int:
        """How many containers inside containers there are; reads all that is linked, and makes no values of it. At
        most one more than can be stored."""
        deepest = 0
        inner: list[tuple[Wire, int]] = [(wire, 0)]
        while inner:
            linked: dict[BlockId, tuple[Wire, int]] = {}
            while inner:
                wire, depth = inner.pop()
                if container_kind(wire) is None:
                    special = read_special(wire) if is_special(wire) else None
                    if special is not None and not isinstance(special, Link):
                        # As in packing: tags around tags count.
                        inner.append((special[1], depth + is_special(special[1])))
                        deepest = max(deepest, depth)
                    continue
                deepest = max(deepest, depth + 1)
                if deepest > MAXIMUM_DEPTH:
                    return deepest
                link = wire_link(wire)
                if link is None:
                    inner += [(part, depth + 1) for part in content_wires(inline_content(wire))]
                elif depth >= linked.get(link.id, (wire, 0))[1]:
                    # The same block at several depths is walked at the deepest of this round.
                    linked[link.id] = (wire, depth)
            contents = self.contents([wire for wire, _ in linked.values()])
            for (_, depth), content in zip(linked.values(), contents, strict=True):
                inner += [(part, depth + 1) for part in content_wires(content)]
        return deepest

    def root(self, link: Link) -> Node:
        """The node that a link leads to."""
        return check_shape(link.id, self.get(link.id), link.kind, link.count)

    def run(self, walks: Iterable[Walk[R]]) -> list[R]:
        """Run descents in step, so that each level costs one fetch for all of them."""
        waiting: list[tuple[int, Any, Any]] = [(number, walk, None) for number, walk in enumerate(walks)]
        results: list[Any] = [None] * len(waiting)
        nodes: dict[Any, Any] = {None: None}
        while waiting:
            round_, waiting = waiting, []
            for number, walk, block in round_:
                node = nodes[block]
                try:
                    # As far as the nodes that are here lead.
                    while (ready := self._here(block := walk.send(node))) is not None:
                        node = ready.node
                    waiting.append((number, walk, block))
                except StopIteration as stop:
                    results[number] = stop.value
            if waiting:
                nodes = self.get_many([block for _, _, block in waiting])
        return results

    def _here(self, block: BlockId) -> Loaded | None:
        loaded = self._loaded.get(block)
        if loaded is None and self._cache is not None and (loaded := self._cache.get(block)) is not None:
            self._meet(block, loaded)
        return loaded

    def _load(self, blocks: Sequence[BlockId]) -> None:
        fetched = self._fetch(blocks)
        for block in blocks:
            data = fetched[block]
            loaded = Loaded(decode_node(block, data), data)
            self._meet(block, loaded)
            if self._cache is not None:
                self._cache.put(block, loaded)

    def _meet(self, block: BlockId, loaded: Loaded) -> None:
        """Take a node that was not met before."""
        self._loaded[block] = loaded


class Reader:
    """Reads whole trees: first every block, level by level, then the value is put together.

    Between the two it is known how much there is to put together. A few blocks that each name the next one twice stand
    for a value of any length; so the bytes that a tree stands for are added up from below, and what is too much is
    refused before any of it is made."""

    def __init__(
        self,
        fetch: Fetch,
        registry: TypeRegistry,
        unknown: UnknownTypes = "refuse",
    ) -> None:
        self._fetch = fetch
        self._registry = registry
        self._unknown = unknown
        self._bytes: dict[BlockId, bytes] = {}
        self._nodes: dict[BlockId, Node] = {}
        # Kept until the value is there: freed before, what they leave goes back to the system and is asked for again,
        # page by page, which takes a tenth of a read.
        self._sizes: dict[BlockId, int] = {}
        self._below: dict[BlockId, list[BlockId]] = {}

    def read_many(self, roots: Sequence[BlockId]) -> list[Any]:
        """The values of these trees, in their order; one fetch per level of the deepest. To be asked once."""
        self._load(roots)
        return [self._tree(root, 0) for root in roots]

    def read_wires(self, wires: Sequence[Wire]) -> list[Any]:
        """The values of these pieces of content."""
        self._load([link.id for wire in wires for link in wire_links(wire)])
        # What stands in nothing is the only place where a link may lead to a lone scalar.
        links = [wire_link(wire) for wire in wires]
        return [
            self._plain(wire, 0) if link is None else self._tree(link.id, 0, link)
            for wire, link in zip(wires, links, strict=True)
        ]

    def _load(self, roots: Sequence[BlockId]) -> None:
        # Names of their own: the loop runs once for each block of a state.
        bytes_, nodes, sizes, below = self._bytes, self._nodes, self._sizes, self._below
        frontier = list(dict.fromkeys(roots))
        rounds = 0
        while frontier:
            if (rounds := rounds + 1) > MOST_ROUNDS:
                raise too_deep(frontier[0])
            fetched = self._fetch(frontier)
            following: dict[BlockId, None] = {}
            for block in frontier:
                data = bytes_[block] = fetched[block]
                node = nodes[block] = decode_node(block, data)
                if node[2] & LINKS:
                    ids = below[block] = node_link_ids(node)
                    following.update(dict.fromkeys(ids))
                else:
                    sizes[block] = len(data)
            frontier = [block for block in following if block not in bytes_]
        stack = list(below)
        while stack:
            # Whatever links say, the names of blocks prove that none leads back.
            block = stack[-1]
            try:
                sizes[block] = len(bytes_[block]) + sum([sizes[each] for each in below[block]])
                stack.pop()
            except KeyError:
                stack += [each for each in below[block] if each not in sizes]
        total = sum([sizes[root] for root in roots])
        if total > LARGEST_READ_BYTES:
            raise Limit(
                f"the value takes {total} bytes of blocks, and one read may take {LARGEST_READ_BYTES}",
                hint="read parts of it by their paths",
                bytes=total,
            )

    def _take(self, block: BlockId) -> Node:
        # The decoded node is handed out once; a block that occurs again is decoded again, so that no two places of a
        # value share one mutable container.
        node = self._nodes.pop(block, None)
        return decode_node(block, self._bytes[block]) if node is None else node

    # What follows calls itself at most three times per level of nesting: the deepest value has to fit on the stack of
    # a program that has used up half of it. So trees are flattened in loops, and tags around tags are unwrapped in one.

    def _tree(self, block: BlockId, depth: int, link: Link | None = None) -> Any:
        """The value of a tree whose blocks are loaded; `depth` is how many containers it stands in."""
        node = self._take(block)
        if link is not None:
            check_shape(block, node, link.kind, link.count)
        leaves = [node]
        while leaves[0].level:
            above, leaves = leaves, []
            for parent in above:
                leaves += check_children(parent, [self._take(child[0][4:]) for child in parent.body])
        kind = node.kind
        if kind == "text":
            return "".join([leaf.body for leaf in leaves])
        if kind == "bytes":
            return b"".join([leaf.body[1:] for leaf in leaves])
        if kind == "value":
            return self._plain(node.body, depth) if node.flags else node.body
        if depth >= MAXIMUM_DEPTH:
            raise too_deep(block)
        whole: list[Any] = []
        for leaf in leaves:
            body = leaf.body
            if leaf.flags:
                body = self._items(body, depth + 1) if kind == "list" else self._fields(body, depth + 1)
            if leaf is node:
                return body
            if kind == "list":
                # At once, and not when all are there: then memory goes back to the system and is asked for again, as
                # above.
                whole += body
            else:
                whole.append(body)
        return whole if kind == "list" else joined(kind, whole, block)

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

    def _plain(self, wire: Wire, depth: int) -> Any:
        cls = type(wire)
        if cls is dict and is_special(wire):
            return self._special(wire, depth)
        if cls is dict or cls is list:
            if depth >= MAXIMUM_DEPTH:
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
            special = read_special(wire)
            if isinstance(special, Link):
                if special.id not in self._bytes or special.kind == "value":
                    raise Corrupt("a block holds a link that its flags do not tell of, or to a lone scalar")
                value = self._tree(special.id, depth, special)
                break
            name, wire = special
            if name == "float":
                if wire != "-0.0":
                    raise Corrupt("a block holds a malformed tag")
                value = -0.0
                break
            if name == "map":
                if depth >= MAXIMUM_DEPTH:
                    raise too_deep()
                value = {"": self._plain(wire, depth + 1)}
                break
            depth += 1 if names else 0
            if depth > MAXIMUM_DEPTH:
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
        special = read_special(wire)
        if isinstance(special, Link):
            # Entered even if the link itself says that nothing can be there: only the target tells a lie from the
            # truth.
            node = check_shape(special.id, (yield special.id), special.kind, special.count)
            if node.kind == "map":
                return (yield from field_below(node, token))
            if node.kind == "list":
                try:
                    index = list_index(token, node.length)
                except (IndexError, Invalid):
                    return MISSING
                return (yield from item_below(node, index))
        elif special[0] == "map":
            return special[1] if token == "" else MISSING
    elif type(wire) is list:
        try:
            return wire[list_index(token, len(wire))]
        except (IndexError, Invalid):
            return MISSING
    return MISSING


def field_below(node: Node, key: str) -> Walk[Wire | Missing]:
    """Find a field in the tree below a map's node."""
    while node.level:
        child = node.body[child_position(node, key)]
        node = check_shape(child_id(child), (yield child_id(child)), node.kind, child[1], node.level - 1)
    return node.body.get(key, MISSING)


def item_below(node: Node, index: int) -> Walk[Wire]:
    """Find an item in the tree below a list's node, which has that many."""
    # The counts of a node add up to its own and each is its child's, so the index is always found.
    while node.level:
        for child in node.body:
            if index < child[1]:
                break
            index -= child[1]
        node = check_shape(child_id(child), (yield child_id(child)), node.kind, child[1], node.level - 1)
    return node.body[index]


def child_position(node: Node, key: str) -> int:
    """Which child holds this key, or would: the first whose last key is not below it, else the last."""
    position = bisect_left(node.body, sort_key(key), key=_child_order)
    return min(position, len(node.body) - 1)


def _child_order(child: Child) -> SortKey:
    return sort_key(child[4])


def container_kind(wire: Wire) -> Kind | None:
    """`list` or `map` for what a path can go through, None for everything else."""
    if type(wire) is list:
        return "list"
    if type(wire) is not dict:
        return None
    if not is_special(wire):
        return "map"
    special = read_special(wire)
    if isinstance(special, Link):
        return special.kind if special.kind in ("list", "map") else None
    return "map" if special[0] == "map" else None


def inline_content(wire: Wire) -> Any:
    """The content of a container that stands inline; one of the two may be the user's own dict {"": value}."""
    return {"": read_special(wire)[1]} if is_special(wire) else wire


def joined(kind: Kind, bodies: Sequence[Any], tree: BlockId) -> Any:
    """What leaves of a list or map hold together, in order; for errors, of which tree they are."""
    if len(bodies) == 1:
        return bodies[0]
    if kind == "list":
        return [*chain.from_iterable(bodies)]
    fields: dict[str, Any] = {}
    for body in bodies:
        fields |= body
    order = [sort_key(key) for body in bodies if body for key in (next(iter(body)), next(reversed(body)))]
    if len(fields) != sum(map(len, bodies)) or sorted(order) != order:
        raise broken_promise(tree)
    return fields
