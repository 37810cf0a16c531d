"""Where tree algorithms get their nodes: in batches from a `fetch` function, or from blocks made a moment ago."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from analemma.canon.identity import BlockId
from analemma.canon.nodes import (
    LINKS,
    Block,
    Link,
    Node,
    broken_promise,
    decode_node,
    keeps_promise,
    node_link_ids,
    node_links,
)
from analemma.errors import Corrupt

Fetch = Callable[[Sequence[BlockId]], Mapping[BlockId, bytes]]
"""Gives the verified bytes of every block asked for, or raises. Called once per level, however many blocks that is."""

R = TypeVar("R")
Walk = Generator[BlockId, Node, R]
"""A descent that asks for one node at a time; many of them run together, sharing each round's fetch."""


class NodeSource:
    """Decoded nodes, fetched at most once. `known` grows with every id seen in a fetched node: all of them are
    reachable from the roots this source was asked about.

    Every link inside content that was seen is held against its target when that is fetched, so whoever takes a link at
    its word (its kind, its count) is told of a lie before acting on it. Index entries are checked by who follows
    them."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._nodes: dict[BlockId, Node] = {}
        self._lengths: dict[BlockId, int] = {}
        self._promised: dict[BlockId, Link] = {}
        self.made: dict[BlockId, Block] = {}
        self.known: set[BlockId] = set()

    def add(self, block: Block) -> None:
        """Make a new block readable; nothing is stored. Corrupt when it links to something that was neither made nor
        seen: a node it took content from has links that its flags deny."""
        if not self.known.issuperset(block.links):
            for link in block.links:
                if link not in self.known and link not in self.made:
                    raise Corrupt(f"a block has a link to {link.hex()} that its flags deny", block=link.hex())
        self.made[block.id] = block

    def get(self, block: BlockId) -> Node:
        """One node."""
        return self.get_many([block])[block]

    def get_many(self, blocks: Iterable[BlockId]) -> dict[BlockId, Node]:
        """These nodes, with one fetch for all that are new."""
        wanted = dict.fromkeys(blocks)
        missing = [block for block in wanted if block not in self._nodes and block not in self.made]
        if missing:
            self.known.update(missing)
            fetched = self._fetch(missing)
            for block in missing:
                node = decode_node(block, fetched[block])
                self._nodes[block] = node
                self._lengths[block] = len(fetched[block])
                promised = self._promised.get(block)
                if promised is not None and not keeps_promise(promised, node):
                    raise broken_promise(block)
                if node.level:
                    self.known.update(node_link_ids(node))
                elif node.flags & LINKS:
                    self._remember(node_links(node))
        return {block: self._node(block) for block in wanted}

    def length(self, block: BlockId) -> int:
        """Bytes of a block that was fetched or made before."""
        return self._lengths[block] if block in self._lengths else len(self.made[block].data)

    def run(self, walks: Iterable[Walk[R]]) -> list[R]:
        """Run descents in step, so that each level costs one fetch for all of them."""
        results: dict[int, R] = {}
        waiting: list[tuple[int, Walk[R], BlockId]] = []
        total = 0
        for total, walk in enumerate(walks, 1):
            _advance(total - 1, walk, None, waiting, results)
        while waiting:
            round_, waiting = waiting, []
            nodes = self.get_many([block for _, _, block in round_])
            for number, walk, block in round_:
                _advance(number, walk, nodes[block], waiting, results)
        return [results[number] for number in range(total)]

    def _remember(self, links: Sequence[Link]) -> None:
        for link in links:
            # Of two links to one block that differ, at least one lies.
            if self._promised.setdefault(link.id, link) != link:
                raise broken_promise(link.id)
            target = self._nodes.get(link.id)
            if target is not None and not keeps_promise(link, target):
                raise broken_promise(link.id)
        self.known.update([link.id for link in links])

    def _node(self, block: BlockId) -> Node:
        node = self._nodes.get(block)
        if node is None:
            node = self._nodes[block] = decode_node(block, self.made[block].data)
        return node


def _advance(
    number: int, walk: Walk[R], node: Any, waiting: list[tuple[int, Walk[R], BlockId]], results: dict[int, R]
) -> None:
    try:
        waiting.append((number, walk, walk.send(node)))
    except StopIteration as stop:
        results[number] = stop.value
