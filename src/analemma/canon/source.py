"""Where tree algorithms get their nodes: in batches from a `fetch` function, or from blocks made a moment ago."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TypeVar

from analemma.canon.identity import BlockId
from analemma.canon.nodes import (
    Block,
    Entry,
    Node,
    Parts,
    broken_promise,
    decode_node,
    keeps_promise,
    node_entries,
    node_from_parts,
    node_link_ids,
    node_links,
)
from analemma.canon.wire import LINKS, Link
from analemma.errors import Corrupt

Fetch = Callable[[Sequence[BlockId]], Mapping[BlockId, bytes]]
"""Gives the verified bytes of every block asked for, or raises. Called once per level, however many blocks that is."""

R = TypeVar("R")
Walk = Generator[BlockId, Node, R]
"""A descent that asks for one node at a time; many of them run together, sharing each round's fetch."""

CACHED_NODES = 256
"""Nodes that a cache keeps: about a megabyte of blocks, at most eight, and about four times that decoded."""


class Loaded:
    """A node that was decoded or made, with what has been worked out about it since."""

    __slots__ = ("_entries", "_ids", "_links", "length", "node")

    def __init__(
        self,
        node: Node,
        length: int,
        entries: Sequence[Entry] | None = None,
        ids: Sequence[BlockId] | None = None,
        links: Sequence[Link] | None = None,
    ) -> None:
        self.node = node
        self.length = length
        self._entries = entries
        self._ids = ids
        self._links = links

    @property
    def entries(self) -> Sequence[Entry]:
        """The node's entries as they would be written again; not to be changed."""
        if self._entries is None:
            self._entries = node_entries(self.node)
        return self._entries

    @property
    def ids(self) -> Sequence[BlockId]:
        """The blocks that an index node links to."""
        if self._ids is None:
            self._ids = node_link_ids(self.node)
        return self._ids

    @property
    def links(self) -> Sequence[Link]:
        """The links inside the content of a leaf."""
        if self._links is None:
            self._links = node_links(self.node)
        return self._links


class NodeCache:
    """The lists and maps that edits met or made lately: an edit usually starts where the one before it ended.

    What is here was verified when it was fetched or is what we made ourselves. It says nothing about what is stored:
    an edit comes here only for what its own base leads to."""

    def __init__(self, most: int = CACHED_NODES) -> None:
        self._most = most
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
            if len(self._loaded) > self._most:
                self._loaded.popitem(last=False)


class NodeSource:
    """Decoded nodes, fetched at most once. `known` grows with every id seen in a fetched node: all of them are
    reachable from the roots this source was asked about.

    Every link inside content that was seen is held against its target when that is fetched, so whoever takes a link at
    its word (its kind, its count) is told of a lie before acting on it. Index entries are checked by who follows
    them."""

    def __init__(self, fetch: Fetch, cache: NodeCache | None = None) -> None:
        self._fetch = fetch
        self._cache = cache
        self._loaded: dict[BlockId, Loaded] = {}
        self._promised: dict[BlockId, Link] = {}
        self._parts: dict[BlockId, Parts] = {}
        self._expected: Callable[[], object] | None = None
        self.made: dict[BlockId, Block] = {}
        self.known: set[BlockId] = set()

    def expect(self, walks: Callable[[], Iterable[Walk[object]]]) -> None:
        """Name the descents that are to come: at the first node that has to be fetched, all of them are run, so that
        each level costs one fetch. While every node is at hand they cost nothing."""
        self._expected = lambda: self.run(walks())

    def add(self, block: Block) -> None:
        """Make a new block readable; nothing is stored. Corrupt when it links to something that was neither made nor
        seen: a node it took content from has links that its flags deny."""
        if not self.known.issuperset(block.links):
            for link in block.links:
                if link not in self.known and link not in self.made:
                    raise Corrupt(f"a block has a link to {link.hex()} that its flags deny", block=link.hex())
        self.made[block.id] = block

    def add_parts(self, block: Block, parts: Parts) -> None:
        """Tell of what a new block was made, so that reading it needs no decoding."""
        self._parts[block.id] = parts

    def accept(self, links: Sequence[Link]) -> None:
        """Know these as well, although no node that was met has them: whoever names them holds on to their trees."""
        self._remember(links)

    def keep(self, blocks: Iterable[BlockId]) -> None:
        """Leave these new nodes, and those that were met, to the cache; nothing more is expected."""
        # The descents know the values that were put, and those belong to the caller alone again.
        self._expected = None
        if self._cache is not None:
            for block in blocks:
                if block in self._parts:
                    self._cache.put(block, self._made(self.made[block]))

    def get(self, block: BlockId) -> Node:
        """One node."""
        return self.loaded(block).node

    def loaded(self, block: BlockId) -> Loaded:
        """One node with what is known about it."""
        ready = self._ready(block)
        if ready is None:
            self._load([block])
            ready = self._loaded[block]
        return ready

    def get_many(self, blocks: Iterable[BlockId]) -> dict[BlockId, Node]:
        """These nodes, with one fetch for all that are new."""
        wanted = dict.fromkeys(blocks)
        missing = [block for block in wanted if self._ready(block) is None]
        if missing:
            self._load(missing)
        return {block: self._loaded[block].node for block in wanted}

    def length(self, block: BlockId) -> int:
        """Bytes of a block that was fetched or made before."""
        made = self.made.get(block)
        return self._loaded[block].length if made is None else len(made.data)

    def run(self, walks: Iterable[Walk[R]]) -> list[R]:
        """Run descents in step, so that each level costs one fetch for all of them."""
        results: dict[int, R] = {}
        waiting: list[tuple[int, Walk[R], BlockId]] = []
        total = 0
        for total, walk in enumerate(walks, 1):
            self._advance(total - 1, walk, None, waiting, results)
        while waiting:
            round_, waiting = waiting, []
            nodes = self.get_many([block for _, _, block in round_])
            for number, walk, block in round_:
                self._advance(number, walk, nodes[block], waiting, results)
        return [results[number] for number in range(total)]

    def _advance(
        self,
        number: int,
        walk: Walk[R],
        node: Node | None,
        waiting: list[tuple[int, Walk[R], BlockId]],
        results: dict[int, R],
    ) -> None:
        """Let a descent go on as far as the nodes that are here lead it."""
        try:
            while True:
                block = next(walk) if node is None else walk.send(node)
                ready = self._ready(block)
                if ready is None:
                    waiting.append((number, walk, block))
                    return
                node = ready.node
        except StopIteration as stop:
            results[number] = stop.value

    def _ready(self, block: BlockId) -> Loaded | None:
        loaded = self._loaded.get(block)
        if loaded is not None:
            return loaded
        made = self.made.get(block)
        if made is not None:
            return self._made(made)
        if self._cache is not None and (loaded := self._cache.get(block)) is not None:
            self._meet(block, loaded)
        return loaded

    def _made(self, block: Block) -> Loaded:
        loaded = self._loaded.get(block.id)
        if loaded is None:
            parts = self._parts.get(block.id)
            if parts is None:
                loaded = Loaded(decode_node(block.id, block.data), len(block.data))
            else:
                loaded = Loaded(node_from_parts(parts), len(block.data), parts[3], block.links, parts[4])
            self._loaded[block.id] = loaded
        return loaded

    def _load(self, blocks: Sequence[BlockId]) -> None:
        if self._expected is not None:
            run, self._expected = self._expected, None
            run()
            blocks = [block for block in blocks if block not in self._loaded]
            if not blocks:
                return
        fetched = self._fetch(blocks)
        for block in blocks:
            loaded = Loaded(decode_node(block, fetched[block]), len(fetched[block]))
            self._meet(block, loaded)
            if self._cache is not None:
                self._cache.put(block, loaded)

    def _meet(self, block: BlockId, loaded: Loaded) -> None:
        """Learn what a node says, and hold it against what was said of it."""
        node = loaded.node
        self.known.add(block)
        promised = self._promised.get(block)
        if promised is not None and not keeps_promise(promised, node):
            raise broken_promise(block)
        self._loaded[block] = loaded
        if node.level:
            self.known.update(loaded.ids)
        elif node.flags & LINKS:
            self._remember(loaded.links)

    def _remember(self, links: Sequence[Link]) -> None:
        for link in links:
            # Of two links to one block that differ, at least one lies.
            if self._promised.setdefault(link.id, link) != link:
                raise broken_promise(link.id)
            target = self._loaded.get(link.id)
            if target is not None and not keeps_promise(link, target.node):
                raise broken_promise(link.id)
        self.known.update([link.id for link in links])
