"""What changed between two trees, as operations that turn one into the other; subtrees with the same hash are never
read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from analemma.canon.align import Gap, align
from analemma.canon.edit import Operation
from analemma.canon.identity import BlockId
from analemma.canon.nodes import (
    DEEPEST_CONTENT,
    Kind,
    Node,
    Wire,
    broken_promise,
    check_shape,
    child_id,
    encode_stored,
    link_wire,
    too_deep,
    wire_link,
)
from analemma.canon.pointer import Path
from analemma.canon.read import MISSING, Nodes, Reader, container_kind, inline_content, root_link
from analemma.errors import Corrupt, Limit

MOST_DIFFERING = 2**24
"""Nodes, fields and items that one comparison may look at. A few blocks that name each other twice stand for any number
of them, so that nothing else would end it."""


class _Change(NamedTuple):
    """An operation whose value is still in stored form."""

    op: Literal["add", "replace", "remove"]
    path: Path
    wire: Wire = None


def diff(old: BlockId, new: BlockId, nodes: Nodes, reader: Reader) -> list[Operation]:
    """The operations (RFC 6902: add, replace, remove) that turn the tree at `old` into the one at `new`; values are
    read by the reader."""
    if old == new:
        return []
    roots = nodes.get_many([old, new])
    differ = _Differ(nodes)
    differ.compare(link_wire(root_link(old, roots[old])), link_wire(root_link(new, roots[new])), ())
    values = reader.read_wires([change.wire for change in differ.changes])
    return [
        Operation(change.op, change.path, None if change.op == "remove" else value)
        for change, value in zip(differ.changes, values, strict=True)
    ]


class _Differ:
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._looked_at = 0
        self.changes: list[_Change] = []

    def compare(self, old: Wire, new: Wire, path: Path) -> None:
        """Record how `old` becomes `new`."""
        if len(path) > DEEPEST_CONTENT:
            raise too_deep()
        kind = container_kind(old)
        if kind != container_kind(new) or kind is None:
            if _differ(old, new):
                self.changes.append(_Change("replace", path, new))
        elif kind == "map":
            self._compare_maps(old, new, path)
        else:
            self._compare_lists(old, new, path)

    def _compare_maps(self, old: Wire, new: Wire, path: Path) -> None:
        before, after = self._differing_fields(old, new)
        added: list[_Change] = []
        changed: list[tuple[str, Wire, Wire]] = []
        # Most of the fields in leaves that differ are the same, and most of them texts.
        for key, wire in after.items():
            held = before.get(key, MISSING)
            if held is MISSING:
                added.append(_Change("add", (*path, key), wire))
            elif (held != wire) if type(held) is type(wire) is str else _differ(held, wire):
                changed.append((key, held, wire))
        self._prefetch([(held, wire) for _, held, wire in changed])
        self.changes += [_Change("remove", (*path, key)) for key in before if key not in after]
        self.changes += added
        for key, held, wire in changed:
            if type(held) is type(wire) is str and len(path) < DEEPEST_CONTENT:
                # What `compare` would find, once more.
                self.changes.append(_Change("replace", (*path, key), wire))
            else:
                self.compare(held, wire, (*path, key))

    def _compare_lists(self, old: Wire, new: Wire, path: Path) -> None:
        for start, before, after in self._differing_items(old, new):
            gaps = align([encode_stored(wire) for wire in before], [encode_stored(wire) for wire in after])
            pairs = [(before[gap.old_start + n], after[gap.new_start + n]) for gap in gaps for n in range(_paired(gap))]
            self._prefetch(pairs)
            for gap in gaps:
                # To the left of this gap the list is already the new one, so positions count in the new list.
                place = start + gap.new_start
                paired = _paired(gap)
                for number in range(paired):
                    self.compare(
                        before[gap.old_start + number], after[gap.new_start + number], (*path, str(place + number))
                    )
                for _ in range(gap.old_start + paired, gap.old_stop):
                    self.changes.append(_Change("remove", (*path, str(place + paired))))
                for number in range(paired, gap.new_stop - gap.new_start):
                    self.changes.append(_Change("add", (*path, str(place + number)), after[gap.new_start + number]))

    def _prefetch(self, pairs: Sequence[tuple[Wire, Wire]]) -> None:
        """Fetch the roots of all pairs that will be looked into, together."""
        wanted = [
            link.id
            for pair in pairs
            if dict in (type(pair[0]), type(pair[1]))
            and container_kind(pair[0]) is not None
            and container_kind(pair[0]) == container_kind(pair[1])
            for wire in pair
            if (link := wire_link(wire)) is not None
        ]
        self._nodes.get_many(wanted)

    def _differing_fields(self, old: Wire, new: Wire) -> tuple[dict[str, Wire], dict[str, Wire]]:
        """The fields of the leaves that the two maps do not share. Keys are unique, so a leaf found in both settles its
        keys."""
        before, after = wire_link(old), wire_link(new)
        if before is None or after is None:
            return self._all_fields(old), self._all_fields(new)
        sides = [[before.id], [after.id]]
        level: int | None = None
        while True:
            shared = set(sides[0]) & set(sides[1])
            sides = [[block for block in side if block not in shared] for side in sides]
            level, nodes = self._next_level("map", level, sides)
            if level == 0:
                break
            sides = [self._expanded(side, nodes, level) for side in sides]
        first, second = [self._joined_fields([nodes[block] for block in side]) for side in sides]
        return first, second

    def _differing_items(self, old: Wire, new: Wire) -> list[tuple[int, list[Wire], list[Wire]]]:
        """Stretches of the two lists that may differ: where they start in the new list, the old items and the new
        ones."""
        before, after = wire_link(old), wire_link(new)
        if before is None or after is None:
            return [(0, self._all_items(old), self._all_items(new))]
        stretches = [(0, [before.id], [after.id])]
        level: int | None = None
        while True:
            level, nodes = self._next_level("list", level, [side for _, *sides in stretches for side in sides])
            if level == 0:
                break
            stretches = [
                stretch
                for start, olds, news in stretches
                for stretch in self._narrowed(start, olds, news, nodes, level)
            ]
        return [
            (
                start,
                self._joined_items([nodes[block] for block in olds]),
                self._joined_items([nodes[block] for block in news]),
            )
            for start, olds, news in stretches
        ]

    def _next_level(
        self, kind: Kind, above: int | None, sides: Sequence[Sequence[BlockId]]
    ) -> tuple[int, dict[BlockId, Node]]:
        """These nodes and the highest level among them; every round goes down, or there would be no end."""
        nodes = self._nodes.get_many([block for side in sides for block in side])
        level = max((node.level for node in nodes.values()), default=0)
        for block, node in nodes.items():
            if node.kind != kind or (above is not None and node.level >= above):
                raise broken_promise(block)
        return level, nodes

    def _narrowed(
        self, start: int, olds: list[BlockId], news: list[BlockId], nodes: dict[BlockId, Node], level: int
    ) -> list[tuple[int, list[BlockId], list[BlockId]]]:
        counts: dict[BlockId, int] = {}
        for block in news:
            node = nodes[block]
            if node.level == level:
                counts.update({child_id(child): child[1] for child in node.body})
            else:
                counts[block] = node.length
        olds, news = self._expanded(olds, nodes, level), self._expanded(news, nodes, level)
        found = []
        position = 0
        for gap in align(olds, news):
            start += sum([counts[block] for block in news[position : gap.new_start]])
            position = gap.new_start
            found.append((start, olds[gap.old_start : gap.old_stop], news[gap.new_start : gap.new_stop]))
        return found

    def _all_fields(self, wire: Wire) -> dict[str, Wire]:
        link = wire_link(wire)
        return inline_content(wire) if link is None else self._joined_fields(self._leaves("map", link.id))

    def _all_items(self, wire: Wire) -> list[Wire]:
        link = wire_link(wire)
        return wire if link is None else self._joined_items(self._leaves("list", link.id))

    def _joined_fields(self, leaves: Sequence[Node]) -> dict[str, Wire]:
        count = sum([leaf.length for leaf in leaves])
        self._look_at(count)
        fields = {key: wire for leaf in leaves for key, wire in leaf.body.items()}
        if len(fields) != count:
            raise Corrupt("a map has a field twice")
        return fields

    def _joined_items(self, leaves: Sequence[Node]) -> list[Wire]:
        self._look_at(sum([leaf.length for leaf in leaves]))
        return [item for leaf in leaves for item in leaf.body]

    def _look_at(self, count: int) -> None:
        self._looked_at += count
        if self._looked_at > MOST_DIFFERING:
            raise Limit("the two values differ in too many places", hint="compare parts of them")

    def _leaves(self, kind: Kind, tree: BlockId) -> Sequence[Node]:
        root = self._nodes.get(tree)
        self._look_at(root.length)
        return self._nodes.leaves([check_shape(tree, root, kind, root.length)])[0]

    def _expanded(self, blocks: Sequence[BlockId], nodes: dict[BlockId, Node], level: int) -> list[BlockId]:
        """These nodes with those of the given level replaced by their children."""
        expanded: list[BlockId] = []
        for block in blocks:
            node = nodes[block]
            if node.level != level:
                expanded.append(block)
                continue
            self._look_at(len(node.body))
            expanded += [child[0][4:] for child in node.body]
        return expanded


def _differ(old: Wire, new: Wire) -> bool:
    """Texts are compared as they are, anything else encoded: to Python 1, 1.0 and True are equal."""
    if type(old) is str and type(new) is str:
        return old != new
    return encode_stored(old) != encode_stored(new)


def _paired(gap: Gap) -> int:
    return min(gap.old_stop - gap.old_start, gap.new_stop - gap.new_start)
