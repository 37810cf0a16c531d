"""Changing a large list or map in its stored form: only the nodes around a change are made again.

Each level is a sequence of entries cut into nodes. Changes at one level are splices inside nodes; the nodes around them
are cut anew until a cut falls on an old boundary, and the nodes that changed are the splices of the level above."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from analemma.canon.chunking import MAXIMUM_BYTES, find_cut
from analemma.canon.identity import BlockId
from analemma.canon.nodes import (
    FORCED,
    Entry,
    Node,
    broken_promise,
    child_id,
    child_link,
    follow,
)
from analemma.canon.packing import Packed, Packer
from analemma.canon.source import NodeSource
from analemma.canon.wire import (
    Kind,
    Link,
    Wire,
    encode_stored,
    wire_flags,
)
from analemma.errors import Corrupt

NodePath = tuple[int, ...]
"""A node by the child numbers that lead to it from the root."""


class Splice(NamedTuple):
    """Within one node: the entries from `start` up to `stop` give way to others."""

    start: int
    stop: int
    entries: Sequence[Entry]


class _Replaced(NamedTuple):
    """A run of nodes of one level and what stands in their place; `stop` None means up to the end of the level."""

    first: NodePath
    stop: NodePath | None
    entries: list[Entry]


Splices = Mapping[NodePath, Sequence[Splice]]


def packed_wire(wire: Wire) -> Packed:
    """Content that is already in stored form, measured again."""
    return Packed(wire, len(encode_stored(wire)), wire_flags(wire))


class TreeRewriter:
    """One list's or map's tree, about to change."""

    def __init__(self, root: BlockId, source: NodeSource, packer: Packer) -> None:
        self._root = root
        self._source = source
        self._packer = packer
        node = source.get(root)
        if node.kind not in ("list", "map"):
            raise broken_promise(root)
        self._kind: Kind = node.kind
        self._height = node.level
        self._nodes: dict[NodePath, Node] = {(): node}

    def node(self, path: NodePath) -> Node:
        """The node at a path; Corrupt when it is not what its parent says."""
        node = self._nodes.get(path)
        if node is None:
            parent = self.node(path[:-1])
            child = parent.body[path[-1]]
            node = self._nodes[path] = follow(parent, child, self._source.get(child_id(child)))
        return node

    def load(self, paths: Iterable[NodePath]) -> None:
        """Fetch nodes of one level together; their parents are there already."""
        self._source.get_many([self._id(path) for path in paths])

    @property
    def height(self) -> int:
        return self._height

    def rewrite(self, splices: Splices) -> Link:
        """The tree after these changes to its leaves. An empty mapping changes nothing."""
        for level in range(self._height + 1):
            replaced = self._rewrite_level(level, splices)
            if level < self._height:
                splices = self._splices_above(replaced)
        return self._new_root(replaced[0].entries)

    def _id(self, path: NodePath) -> BlockId:
        if not path:
            return self._root
        return child_id(self.node(path[:-1]).body[path[-1]])

    def _new_root(self, entries: list[Entry]) -> Link:
        if not entries:
            return self._packer.sequence(self._kind, [])
        if len(entries) > 1:
            return self._packer.sequence(self._kind, entries, self._height + 1)
        link = child_link(self._kind, entries[0][2])
        if not self._height:
            return link
        # What was a wide level may have become a single node: the root is the lowest level that has just one.
        node = self._source.get(link.id)
        while node.level and len(node.body) == 1:
            link = child_link(self._kind, node.body[0])
            node = follow(node, node.body[0], self._source.get(link.id))
        return link

    def _rewrite_level(self, level: int, splices: Splices) -> list[_Replaced]:
        dirty = sorted(splices)
        done: list[_Replaced] = []
        limit: NodePath = (0,) * (self._height - level)
        while dirty:
            first = self._start_of_change(dirty[0], splices[dirty[0]][0].start, limit)
            replaced = self._cut_from(level, first, splices)
            done.append(replaced)
            if replaced.stop is None:
                break
            limit = replaced.stop
            dirty = [path for path in dirty if path >= limit]
        return done

    def _cut_from(self, level: int, first: NodePath, splices: Splices) -> _Replaced:
        """Cut anew from this node on, until a cut falls on the start of an old node that is itself unchanged."""
        window: list[Entry] = []
        starts: dict[int, NodePath] = {}
        upcoming: NodePath | None = first
        start = 0
        at_beginning = not any(first)
        # Entries before the first change held no natural end when they were cut, except that the last of them may be
        # one.
        size = len(self.node(first).body)
        clean = max(0, min(splices[first][0].start, size - 1)) if first in splices else size
        nodes: list[Entry] = []
        while True:
            found = None
            if start < len(window):
                first_chunk = at_beginning and start == 0
                found = find_cut(level, window, start, first=first_chunk, clean=clean, ended=upcoming is None)
            if found is None and upcoming is not None:
                if upcoming not in splices:
                    starts[len(window)] = upcoming
                window += self._changed_entries(upcoming, splices.get(upcoming, ()))
                upcoming = self._neighbour(upcoming, +1)
                continue
            if found is not None:
                stop, forced = found
                nodes.append(self._packer.node(self._kind, level, window[start:stop], forced=forced))
                start, clean = stop, 0
            if start == len(window) and upcoming is None:
                return _Replaced(first, None, nodes)
            if start == len(window) and upcoming is not None and upcoming not in splices:
                return _Replaced(first, upcoming, nodes)
            if start in starts:
                return _Replaced(first, starts[start], nodes)

    def _changed_entries(self, path: NodePath, splices: Sequence[Splice]) -> Sequence[Entry]:
        if not splices:
            return self.entries(path)
        entries = list(self.entries(path))
        for splice in reversed(splices):
            entries[splice.start : splice.stop] = splice.entries
        return entries

    def _start_of_change(self, path: NodePath, position: int, limit: NodePath) -> NodePath:
        """Where to begin cutting again: usually the changed node itself. A node to its left that was full was cut at
        the smallest hash of a window; if that window reaches the change, that cut has to be made again."""
        before: int | None = None
        while path > limit and (left := self._neighbour(path, -1)) is not None:
            if not self.node(left[:-1]).body[left[-1]][3] & FORCED:
                break
            if before is None:
                before = sum([len(entry[0]) for entry in self.entries(path)[:position]])
            before += sum([len(entry[0]) for entry in self.entries(left)])
            if before > MAXIMUM_BYTES:
                break
            path = left
        return path

    def entries(self, path: NodePath) -> Sequence[Entry]:
        """The entries of a node as they are."""
        self.node(path)
        block = self._id(path)
        try:
            return self._source.loaded(block).entries
        except (ValueError, TypeError, RecursionError) as exc:
            raise Corrupt(f"block {block.hex()} holds content that cannot be encoded again", block=block.hex()) from exc

    def _neighbour(self, path: NodePath, direction: int) -> NodePath | None:
        """The node before (-1) or after (+1) this one on its level."""
        for depth in range(len(path) - 1, -1, -1):
            number = path[depth] + direction
            if 0 <= number < len(self.node(path[:depth]).body):
                found = (*path[:depth], number)
                while len(found) < len(path):
                    found = (*found, 0 if direction > 0 else len(self.node(found).body) - 1)
                return found
        return None

    def _splices_above(self, replaced: list[_Replaced]) -> Splices:
        splices: dict[NodePath, list[Splice]] = {}
        for first, stop, entries in replaced:
            parent: NodePath | None = first[:-1]
            start = first[-1]
            fresh: Sequence[Entry] = entries
            while parent is not None:
                last = stop is not None and stop[:-1] == parent
                end = stop[-1] if last and stop is not None else len(self.node(parent).body)
                if end > start or fresh:
                    splices.setdefault(parent, []).append(Splice(start, end, fresh))
                if last:
                    break
                fresh, start = (), 0
                parent = self._neighbour(parent, +1)
        return splices
