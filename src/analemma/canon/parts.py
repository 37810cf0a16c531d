"""Reading a stored tree piece by piece: one field, some items, or a container without what its items link to.

Everything here is given and gives stored form (wires). Wires are shared with caches: whoever takes one leaves it as it
is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from analemma.canon.identity import BlockId
from analemma.canon.nodes import (
    Node,
    broken_promise,
    child_id,
    follow,
    keeps_promise,
)
from analemma.canon.pointer import Path
from analemma.canon.reading import MISSING, Missing, Reader, container_kind, locate, step
from analemma.canon.source import NodeSource
from analemma.canon.tree import Trees
from analemma.canon.wire import (
    DEEPEST_CONTENT,
    Link,
    Wire,
    is_special,
    read_special,
    sort_key,
)

Content = list[Wire] | dict[str, Wire]
"""The items or fields of a container, each in stored form."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Reads parts of the trees of one store. Links are held against their targets, as everywhere."""

    trees: Trees

    def at(self, root: BlockId, path: Path) -> Wire | Missing:
        """What stands at a path of a whole tree; MISSING if nothing does."""
        return self._source().run([locate(root, path)])[0]

    def field(self, container: Wire, key: str) -> Wire | Missing:
        """One field of a map; MISSING if it has none of that name."""
        return self._source().run([step(container, key)])[0]

    def items(self, container: Wire, indexes: Iterable[int]) -> list[Wire]:
        """Some items of a list, which has that many; the descents share their fetches."""
        found = self._source().run(step(container, str(index)) for index in indexes)
        link = _link(container)
        if link is not None and any(wire is MISSING for wire in found):
            raise broken_promise(link.id)
        return found

    def is_small(self, container: Wire) -> bool:
        """Whether all of a container stands in one place: inline, or in a single leaf."""
        link = _link(container)
        return link is None or self._root(link, self._source()).level == 0

    def contents(self, containers: Sequence[Wire]) -> list[Content]:
        """The fields or items of each of these containers, without what they link to; one fetch per level for all."""
        source = self._source()
        links = {number: link for number, wire in enumerate(containers) if (link := _link(wire)) is not None}
        source.get_many([link.id for link in links.values()])
        levels = {number: [self._root(link, source)] for number, link in links.items()}
        while deeper := {number: nodes for number, nodes in levels.items() if nodes[0].level}:
            children = source.get_many(
                [child_id(child) for nodes in deeper.values() for node in nodes for child in node.body]
            )
            for number, nodes in deeper.items():
                levels[number] = [
                    follow(node, child, children[child_id(child)]) for node in nodes for child in node.body
                ]
        return [
            _joined(links[number], levels[number]) if number in links else _inline(wire)
            for number, wire in enumerate(containers)
        ]

    def values(self, wires: Sequence[Wire]) -> list[Any]:
        """The values of these wires, with everything below them."""
        return Reader(self.trees.fetch, self.trees.registry, self.trees.unknown).read_wires(wires)

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
                    link, tag = read_special(wire) if is_special(wire) else (None, None)
                    if tag is not None:
                        # As in packing: tags around tags count.
                        inner.append((tag[1], depth + is_special(tag[1])))
                        deepest = max(deepest, depth)
                    continue
                deepest = max(deepest, depth + 1)
                if deepest > DEEPEST_CONTENT:
                    return deepest
                link = _link(wire)
                if link is None:
                    inner += [(part, depth + 1) for part in _parts(_inline(wire))]
                elif depth >= linked.get(link.id, (wire, 0))[1]:
                    # The same block at several depths is walked at the deepest of this round.
                    linked[link.id] = (wire, depth)
            contents = self.contents([wire for wire, _ in linked.values()])
            for (_, depth), content in zip(linked.values(), contents, strict=True):
                inner += [(part, depth + 1) for part in _parts(content)]
        return deepest

    def _source(self) -> NodeSource:
        return NodeSource(self.trees.fetch, self.trees.nodes)

    def _root(self, link: Link, source: NodeSource) -> Node:
        node = source.get(link.id)
        if not keeps_promise(link, node):
            raise broken_promise(link.id)
        return node


def _link(wire: Wire) -> Link | None:
    return read_special(wire).link if is_special(wire) else None


def _parts(content: Content) -> Iterable[Wire]:
    return content if type(content) is list else content.values()  # type: ignore[union-attr]


def _inline(wire: Wire) -> Content:
    """The content of a container that stands inline; one of the two may be the user's own dict {"": value}."""
    if is_special(wire):
        tag = read_special(wire).tag
        assert tag is not None
        return {"": tag[1]}
    return wire  # type: ignore[no-any-return]


def _joined(link: Link, leaves: Sequence[Node]) -> Content:
    if len(leaves) == 1:
        return leaves[0].body  # type: ignore[no-any-return]
    if link.kind == "list":
        return [wire for leaf in leaves for wire in leaf.body]
    fields = {key: wire for leaf in leaves for key, wire in leaf.body.items()}
    order = [sort_key(key) for leaf in leaves for key in (next(iter(leaf.body)), next(reversed(leaf.body)))]
    if len(fields) != link.count or sorted(order) != order:
        raise broken_promise(link.id)
    return fields
