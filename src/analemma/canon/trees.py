"""The verbs on Merkle trees of values, bound to a way of fetching blocks; start reading the layer at `Trees`. Below is
how edits are made: operations are collected in drafts of the containers they touch, and each is made again once."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple, NoReturn, TypeVar

from analemma.canon.build import (
    INLINE_BYTES,
    LONGEST_KEY,
    MAXIMUM_BYTES,
    Cutter,
    Packed,
    Packer,
    check_new_key,
    check_path,
    list_entry,
    map_entry,
    packed_wire,
)
from analemma.canon.diff import Runs, diff
from analemma.canon.nodes import (
    FORCED,
    LEAF_HEAD_BYTES,
    LINKS,
    Block,
    BlockId,
    Entry,
    Kind,
    Link,
    Node,
    NodeParts,
    SortKey,
    Wire,
    block_id,
    check_shape,
    child_id,
    child_link,
    encode_stored,
    link_wire,
    node_from_parts,
    node_links,
    sort_key,
    wire_link,
    wire_links,
)
from analemma.canon.pointer import OPERATIONS, Operation, Path, format_pointer, list_index, parse_pointer
from analemma.canon.read import (
    MISSING,
    Fetch,
    Loaded,
    Missing,
    NodeCache,
    Nodes,
    Reader,
    UnknownTypes,
    Walk,
    child_position,
    container_kind,
    field_below,
    inline_content,
    item_below,
    locate,
    root_link,
)
from analemma.canon.types import TypeRegistry
from analemma.errors import Corrupt, Invalid, NotFound

__all__ = ["Edited", "Operation", "Trees"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Edited:
    """A tree, and the blocks of it that its base does not have."""

    root: Link
    blocks: tuple[Block, ...]

    @property
    def by_id(self) -> dict[BlockId, Block]:
        """The blocks, for trees that are read over them."""
        return {block.id: block for block in self.blocks}


def no_blocks(blocks: Sequence[BlockId]) -> NoReturn:
    """A fetch for when there is nothing to fetch from: building needs none."""
    raise NotFound(f"block {blocks[0].hex()} was asked for, but there is no store")


@dataclass(frozen=True, slots=True)
class Trees:
    """Values as trees of blocks. Nothing is stored here: what is new is handed back in `Edited.blocks`.

    >>> from analemma.canon.types import standard_registry
    >>> made = Trees(no_blocks, standard_registry()).build({"n": 1})
    >>> made.root.kind, made.root.count, len(made.blocks)
    ('map', 1, 1)
    """

    fetch: Fetch
    registry: TypeRegistry
    unknown: UnknownTypes = "refuse"
    nodes: NodeCache | None = None
    """Where edits leave decoded nodes for the next."""

    def over(self, made: Mapping[BlockId, Block]) -> Trees:
        """These trees, and blocks that are not stored."""

        def fetch(blocks: Sequence[BlockId]) -> Mapping[BlockId, bytes]:
            asked = [block for block in blocks if block not in made]
            found = dict(self.fetch(asked)) if asked else {}
            found.update({block: made[block].data for block in blocks if block in made})
            return found

        return replace(self, fetch=fetch)

    def build(self, value: Any) -> Edited:
        """The tree of a value, with all its blocks."""
        packer = Packer(self.registry)
        return Edited(packer.pack_root(value), tuple(packer.made.values()))

    def pack(self, value: Any) -> tuple[Wire, tuple[Block, ...]]:
        """A value as it stands inside another block, with the blocks of its larger parts."""
        packer = Packer(self.registry)
        return packer.pack(value).wire, tuple(packer.made.values())

    def unpack(self, wire: Wire) -> Any:
        """The value of what stands inside another block."""
        return self.values([wire])[0]

    def values(self, wires: Sequence[Wire]) -> list[Any]:
        """The values of pieces of stored form, with everything below them."""
        return self._reader().read_wires(wires)

    def read(self, root: BlockId) -> Any:
        """The value of a tree; one fetch per level."""
        return self._reader().read_many([root])[0]

    def read_many(self, roots: Sequence[BlockId]) -> list[Any]:
        """The values of several trees, in the order of their roots; they share their fetches."""
        return self._reader().read_many(roots)

    def get(self, root: BlockId, path: Path | str) -> Any:
        """What stands at a path (a JSON pointer or its tokens); NotFound if nothing does."""
        found = self.get_many(root, [path])
        if not found:
            pointer = path if isinstance(path, str) else format_pointer(path)
            raise NotFound(f"there is nothing at {pointer}", pointer=pointer)
        return next(iter(found.values()))

    def get_many(self, root: BlockId, paths: Iterable[Path | str]) -> Mapping[Path | str, Any]:
        """What stands at each of these paths, those left out where nothing does; the descents share their fetches."""
        wanted = list(paths)
        parsed = [parse_pointer(path) if isinstance(path, str) else path for path in wanted]
        found = dict(zip(wanted, Nodes(self.fetch).wires((root, path) for path in parsed), strict=True))
        there = {path: wire for path, wire in found.items() if wire is not MISSING}
        return dict(zip(there, self.values(list(there.values())), strict=True))

    def fingerprint(self, root: BlockId, path: Path) -> bytes | None:
        """A hash of what stands at a path, without reading all of it; None if nothing does."""
        found = Nodes(self.fetch).wires([(root, path)])[0]
        return None if found is MISSING else bytes(block_id(encode_stored(found)))

    def open(self) -> Nodes:
        """The nodes of these trees, for whoever reads them piece by piece; edits find those that were met."""
        return Nodes(self.fetch, self.nodes)

    def edit(self, root: BlockId, operations: Iterable[Operation]) -> Edited:
        """The tree after these operations, with the blocks that the tree at `root` does not have."""
        return Editor(root, EditedNodes(self.fetch, self.nodes), self.registry).apply(list(operations))

    def diff(self, old: BlockId, new: BlockId) -> list[Operation]:
        """The operations that turn one tree into the other, found without reading what they share."""
        return diff(old, new, Nodes(self.fetch), self._reader())

    def _reader(self) -> Reader:
        return Reader(self.fetch, self.registry, self.unknown)


class EditedNodes(Nodes):
    """The nodes of a tree that is being edited: those of its base, and those that were made and are stored nowhere yet.
    `known` grows with every id seen in a node of the base: a new tree need not bring those along."""

    def __init__(self, fetch: Fetch, cache: NodeCache | None = None) -> None:
        super().__init__(fetch, cache)
        self._expected: Callable[[], object] | None = None
        self.made: dict[BlockId, Block] = {}
        self.known: set[BlockId] = set()

    def expect(self, walks: Callable[[], Iterable[Walk[object]]]) -> None:
        """Name the descents that are to come: at the first node that has to be fetched, all of them are run, so that
        each level costs one fetch. While every node is at hand they cost nothing."""
        self._expected = lambda: self.run(walks())

    def add(self, block: Block, parts: NodeParts | None) -> None:
        """Make a new block readable, a node by what it was made of; nothing is stored. Corrupt when it links to
        something that was neither made nor seen: a node it took content from has links that its flags deny."""
        if not self.known.issuperset(block.links):
            for link in block.links:
                if link not in self.known and link not in self.made:
                    raise Corrupt(f"a block has a link to {link.hex()} that its flags deny", block=link.hex())
        self.made[block.id] = block
        if parts is not None and block.id not in self._loaded:
            self._loaded[block.id] = Loaded(node_from_parts(parts), block.data, parts[3], block.links)

    def accept(self, links: Sequence[Link]) -> None:
        """Know these as well, although no node that was met has them: whoever names them holds on to their trees."""
        self.known.update([link.id for link in links])

    def keep(self, blocks: Iterable[BlockId]) -> None:
        """Leave these new nodes, and those that were met, to the cache; nothing more is expected."""
        # The descents know the values that were put, and those belong to the caller alone again.
        self._expected = None
        if self._cache is not None:
            for block in blocks:
                if block in self._loaded:
                    self._cache.put(block, self._loaded[block])

    def _load(self, blocks: Sequence[BlockId]) -> None:
        if self._expected is not None:
            run, self._expected = self._expected, None
            run()
            blocks = [block for block in blocks if block not in self._loaded]
        if blocks:
            super()._load(blocks)

    def _meet(self, block: BlockId, loaded: Loaded) -> None:
        super()._meet(block, loaded)
        self.known.add(block)
        self.known.update(loaded.ids)


class Splice(NamedTuple):
    """Within one node, or within a whole list: the entries from `start` up to `stop` give way to others."""

    start: int
    stop: int
    entries: Sequence[Entry]


class Place:
    """A node of a tree that is about to change, by the children that lead to it; read when it is asked for."""

    __slots__ = ("_below", "_loaded", "_nodes", "above", "number", "path")

    def __init__(self, nodes: Nodes, above: Place | None, number: int, loaded: Loaded | None = None) -> None:
        self._nodes = nodes
        self._loaded = loaded
        self._below: dict[int, Place] = {}
        self.above = above
        self.number = number
        self.path: tuple[int, ...] = () if above is None else (*above.path, number)

    @property
    def loaded(self) -> Loaded:
        """The node with what is known about it; Corrupt when it is not what the one above says."""
        if self._loaded is None:
            assert self.above is not None
            parent = self.above.loaded.node
            child = parent.body[self.number]
            self._loaded = self._nodes.loaded(child_id(child))
            check_shape(child_id(child), self._loaded.node, parent.kind, child[1], parent.level - 1)
        return self._loaded

    def child(self, number: int) -> Place:
        """The place below; the same one each time."""
        found = self._below.get(number)
        if found is None:
            found = self._below[number] = Place(self._nodes, self, number)
        return found

    def beside(self, direction: int) -> Place | None:
        """The place before (-1) or after (+1) this one on its level."""
        if self.above is None:
            return None
        number = self.number + direction
        if 0 <= number < len(self.above.loaded.node.body):
            return self.above.child(number)
        further = self.above.beside(direction)
        if further is None:
            return None
        return further.child(0 if direction > 0 else len(further.loaded.node.body) - 1)


Splices = Mapping[Place, Sequence[Splice]]
"""What changes on one level, from left to right."""


class TreeRewriter:
    """One list's or map's tree, about to change: only the nodes around a change are made again.

    Each level is a sequence of entries cut into nodes. Changes at one level are splices inside nodes; the nodes around
    them are cut anew until a cut falls on an old boundary, and the nodes that changed are the splices of the level
    above."""

    def __init__(self, root: BlockId, nodes: EditedNodes, packer: Packer) -> None:
        self._nodes = nodes
        self._packer = packer
        self.root = Place(nodes, None, 0, nodes.loaded(root))
        node = self.root.loaded.node
        self._kind: Kind = node.kind
        self._height = node.level

    def spread(
        self, whole: Sequence[T], split: Callable[[Node, Sequence[T]], Iterable[tuple[int, T]]]
    ) -> dict[Place, list[T]]:
        """Hand changes down to the leaves, one fetch per level: `split` says which go to which child of a node."""
        here: dict[Place, list[T]] = {self.root: list(whole)}
        for _ in range(self._height):
            below: dict[Place, list[T]] = {}
            wanted: list[BlockId] = []
            for place, parts in here.items():
                node = place.loaded.node
                for number, part in split(node, parts):
                    below.setdefault(place.child(number), []).append(part)
                    wanted.append(child_id(node.body[number]))
            self._nodes.get_many(wanted)
            here = below
        return here

    def rewrite(self, splices: Splices) -> Link:
        """The tree after these changes to its leaves, of which there is one at least."""
        entries: list[Entry] = []
        for level in range(self._height + 1):
            dirty = deque(splices)
            above: dict[Place, list[Splice]] = {}
            stop: Place | None = None
            while dirty:
                first = self._start_of_change(dirty[0], splices[dirty[0]][0].start, stop)
                entries, stop = self._cut_from(level, first, splices)
                _replace(first, stop, entries, above)
                while dirty and (stop is None or dirty[0].path < stop.path):
                    dirty.popleft()
            splices = above
        return self._new_root(entries)

    def _new_root(self, entries: list[Entry]) -> Link:
        if len(entries) != 1:
            return self._packer.sequence(self._kind, entries, self._height + 1 if entries else 0)
        link = child_link(self._kind, entries[0][2])
        # What was a wide level may have become a single node: the root is the lowest level that has just one.
        node = self._nodes.get(link.id)
        while node.level and len(node.body) == 1:
            link = child_link(self._kind, node.body[0])
            node = check_shape(link.id, self._nodes.get(link.id), node.kind, link.count, node.level - 1)
        return link

    def _cut_from(self, level: int, first: Place, splices: Splices) -> tuple[list[Entry], Place | None]:
        """Cut anew from this node on, until a cut falls on the start of an old node that is itself unchanged: the new
        nodes, and that old one; None at the end of the level."""
        # Entries before the first change held no natural end when they were cut, except that the last of them may be
        # one.
        size = len(first.loaded.node.body)
        clean = max(0, min(splices[first][0].start, size - 1)) if first in splices else size
        nodes = Cutter(self._packer, self._kind, level, first=not any(first.path), clean=clean, again=True)
        unchanged: dict[int, Place] = {}
        upcoming: Place | None = first
        total = 0
        while True:
            if nodes.made and nodes.taken in unchanged:
                return nodes.made, unchanged[nodes.taken]
            if nodes.taken == total and upcoming is None:
                return nodes.made, None
            if not nodes.cut(ended=upcoming is None) and upcoming is not None:
                entries = upcoming.loaded.entries
                if upcoming in splices:
                    entries = list(entries)
                    for splice in reversed(splices[upcoming]):
                        entries[splice.start : splice.stop] = splice.entries
                nodes.add(entries)
                total += len(entries)
                upcoming = upcoming.beside(+1)
                if upcoming is not None and upcoming not in splices:
                    unchanged[total] = upcoming

    def _start_of_change(self, place: Place, position: int, limit: Place | None) -> Place:
        """Where to begin cutting again: usually the changed node itself. A node to its left that was full was cut at
        the smallest hash of a window; if that window reaches the change, that cut has to be made again."""
        before: int | None = None
        while place is not limit and (left := place.beside(-1)) is not None:
            assert left.above is not None
            if not left.above.loaded.node.body[left.number][3] & FORCED:
                break
            if before is None:
                before = sum([len(entry[0]) for entry in place.loaded.entries[:position]])
            before += sum([len(entry[0]) for entry in left.loaded.entries])
            if before > MAXIMUM_BYTES:
                break
            place = left
        return place


def _replace(first: Place, stop: Place | None, entries: Sequence[Entry], above: dict[Place, list[Splice]]) -> None:
    """Put new nodes in the place of a run of old ones (`stop` None: up to the end of the level), in those above."""
    parent, start = first.above, first.number
    while parent is not None:
        last = stop is not None and stop.above is parent
        end = stop.number if last and stop is not None else len(parent.loaded.node.body)
        if end > start or entries:
            above.setdefault(parent, []).append(Splice(start, end, entries))
        if last:
            break
        entries, start = (), 0
        parent = parent.beside(+1)


class _MapDraft:
    """A map being changed: all its fields when it stood inline, only the changed ones when it has a tree (`base`). A
    slot is a draft, a wire of the old tree, a new value (`Packed`) or, of a field that is gone, MISSING."""

    def __init__(self, nodes: Nodes, base: Link | None, wire: Wire) -> None:
        self._nodes = nodes
        self.base = base
        self.fields: dict[str, Any] = dict(inline_content(wire)) if base is None else {}

    def find(self, op: str, path: Path) -> str:
        """The field that an operation is about, which has to be there unless it is put."""
        key = path[-1]
        if op in ("put", "add"):
            if len(key) > LONGEST_KEY // 4 and self.get(key) is MISSING:
                check_new_key(key, path)
        elif self.get(key) is MISSING:
            raise NotFound(f"there is nothing at {format_pointer(path)}", pointer=format_pointer(path))
        return key

    def get(self, key: str) -> Any:
        """What stands there."""
        slot = self.fields.get(key, self)
        if slot is not self:
            return slot
        if self.base is None:
            return MISSING
        return self._nodes.run([field_below(self._nodes.get(self.base.id), key)])[0]

    def put(self, key: str, slots: Sequence[Any]) -> None:
        """Have this there, or nothing."""
        self.fields[key] = slots[0] if slots else MISSING

    def parts(self, finish: _Finish) -> dict[str, Packed]:
        """All that it holds, if it stood inline."""
        # In a loop of its own, as every function here that may lead back to itself: frames are scarce when values are
        # deep.
        parts: dict[str, Packed] = {}
        for key, slot in self.fields.items():
            if slot is not MISSING:
                parts[key] = finish(slot)
        return parts

    def splices(self, tree: TreeRewriter, finish: _Finish) -> Splices:
        """What changes in the leaves of its tree."""
        changed = sorted(self.fields, key=sort_key)
        by_leaf = tree.spread(changed, lambda node, keys: [(child_position(node, key), key) for key in keys])
        splices: dict[Place, list[Splice]] = {}
        for leaf, keys in by_leaf.items():
            entries = leaf.loaded.entries
            for key in keys:
                slot = self.fields[key]
                position = bisect_left(entries, sort_key(key), key=_entry_order)
                present = position < len(entries) and entries[position][3] == key
                if slot is MISSING and not present:
                    continue
                fresh = [] if slot is MISSING else [map_entry(key, finish(slot))]
                if present and fresh and fresh[0][0] == entries[position][0]:
                    continue
                splices.setdefault(leaf, []).append(Splice(position, position + present, fresh))
        return splices


class _ListDraft:
    """A list being changed: runs of old items (positions in `base`) and runs of new ones. A place in it is a position,
    and whether an item of its own stands there (1) or is yet to be inserted (0)."""

    def __init__(self, nodes: Nodes, base: Link | None, wire: Wire) -> None:
        self._nodes = nodes
        self.base = base
        self.runs = Runs(list(wire) if base is None else range(base.count))

    def find(self, op: str, path: Path) -> tuple[int, int]:
        """The place that an operation is about."""
        token, length = path[-1], self.runs.length
        adding = op == "add" or (op == "put" and token == "-")
        try:
            return list_index(token, length, inserting=adding), not adding
        except (Invalid, IndexError) as exc:
            pointer = format_pointer(path)
            if isinstance(exc, Invalid):
                raise Invalid(f"{exc.message} at {pointer}", hint=exc.hint, pointer=pointer) from None
            raise NotFound(
                f"the list has {length} items, so there is nothing at {pointer}",
                hint=f"{format_pointer((*path[:-1], '-'))} adds one at its end",
                pointer=pointer,
            ) from None

    def get(self, place: tuple[int, int]) -> Any:
        """What stands there."""
        index, present = place
        if not present:
            return MISSING
        run, offset = self.runs.get(index)
        if isinstance(run, list):
            return run[offset]
        assert self.base is not None
        return self._nodes.run([item_below(self._nodes.get(self.base.id), run[offset])])[0]

    def put(self, place: tuple[int, int], slots: Sequence[Any]) -> None:
        """Have this there, or nothing."""
        self.runs.splice(*place, slots)

    def parts(self, finish: _Finish) -> list[Packed]:
        """All that it holds, if it stood inline."""
        parts: list[Packed] = []
        for run in self.runs:
            for slot in run:
                parts.append(finish(slot))
        return parts

    def splices(self, tree: TreeRewriter, finish: _Finish) -> Splices:
        """What changes in the leaves of its tree."""
        spans: list[Splice] = []
        position = 0
        fresh: list[Entry] = []
        total = tree.root.loaded.node.length
        for run in [*self.runs, range(total, total)]:
            if isinstance(run, list):
                for slot in run:
                    fresh.append(list_entry(finish(slot)))
                continue
            if run.start > position or fresh:
                spans.append(Splice(position, run.start, fresh))
                fresh = []
            position = run.stop
        return tree.spread(spans, _split_spans) if spans else {}


_DRAFTS = (_MapDraft, _ListDraft)
"""Made once: a union in `isinstance` is made anew each time, which takes longer than the question."""
_Finish = Callable[[Any], Packed]


class Editor:
    """Applies operations to the tree at `root`. The blocks given back are those that the old tree does not have, so
    whoever stores them must hold on to the old tree until the new one is committed."""

    def __init__(self, root: BlockId, nodes: EditedNodes, registry: TypeRegistry) -> None:
        self._nodes = nodes
        self._packer = Packer(registry, nodes.add, nodes.accept)
        self._old_root = root
        self._root: Any = None
        """A draft, or the link to a root that stays as it is."""

    def apply(self, operations: Sequence[Operation]) -> Edited:
        """The tree after these operations, in their order."""
        for _, path, _ in operations:
            # All of them first: the descents that are expected take every path as it is.
            check_path(path)
        self._nodes.expect(lambda: [locate(self._old_root, path) for _, path, _ in operations])
        self._root = root_link(self._old_root, self._nodes.get(self._old_root))
        for operation in operations:
            self._apply(*operation)
        link: Link = self._finish_tree(self._root) if isinstance(self._root, _DRAFTS) else self._root
        if link.id == self._old_root:
            root = self._nodes.loaded(link.id)
            link = link._replace(size=len(root.data) + sum([each.size for each in node_links(root.node)]))
        blocks = self._new_blocks(link.id)
        self._nodes.keep([block.id for block in blocks])
        return Edited(link, blocks)

    def _apply(self, op: str, path: Path, value: Any) -> None:
        if op not in OPERATIONS:
            raise Invalid(f"there is no operation {op!r}", hint=f"use one of {', '.join(OPERATIONS)}")
        removing = op in ("remove", "discard")
        if path:
            try:
                draft = self._draft_at(path[:-1])
                place = draft.find(op, path)
                draft.put(place, () if removing else [self._packed(value, path, draft, place)])
            except (Invalid, NotFound):
                # What stops a discard on its way is that there is nothing to discard.
                if op != "discard":
                    raise
        elif removing:
            raise Invalid("the whole value cannot be removed", hint="replace it instead", pointer="")
        else:
            self._replace_root(value)

    def _draft_at(self, path: Path) -> Any:
        """The draft of the container at this path, made if there is none yet, together with those above it."""
        self._root = draft = self._open(self._root, ())
        for depth in range(1, len(path) + 1):
            here = path[:depth]
            place = draft.find("enter", here)
            slot = draft.get(place)
            inner = self._open(slot, here)
            if inner is not slot:
                draft.put(place, [inner])
            draft = inner
        return draft

    def _open(self, slot: Any, path: Path) -> Any:
        if isinstance(slot, _DRAFTS):
            return slot
        wire = slot.wire if type(slot) is Packed else slot
        link = wire if isinstance(wire, Link) else wire_link(wire)
        kind = container_kind(wire) if link is None else link.kind
        if kind not in ("list", "map"):
            pointer = format_pointer(path)
            raise Invalid(
                f"what stands at {pointer or 'the root'} is no dict or list, so nothing below it can be changed",
                hint="replace it as a whole",
                pointer=pointer,
            )
        if link is not None:
            self._nodes.root(link)
        return (_MapDraft if kind == "map" else _ListDraft)(self._nodes, link, wire)

    def _packed(self, value: Any, path: Path, draft: Any, place: Any) -> Packed:
        made = len(self._nodes.made)
        packed = self._packer.pack(value, at=path)
        # Only a value with trees of its own can share some with what it replaces.
        if packed.flags & LINKS:
            old = draft.get(place)
            # What was put by an earlier operation of this batch is stored nowhere: only what the old tree has may be
            # skipped.
            if not isinstance(old, (*_DRAFTS, Missing, Packed)):
                self._learn(old, budget=len(self._nodes.made) - made)
        return packed

    def _replace_root(self, value: Any) -> None:
        made = len(self._nodes.made)
        self._root = self._packer.pack_root(value)
        if type(value) in (dict, list):
            old = link_wire(root_link(self._old_root, self._nodes.get(self._old_root)))
            self._learn(old, budget=len(self._nodes.made) - made)

    def _learn(self, old: Wire, budget: int) -> None:
        """Look at the tree that is being replaced: what the new value shares with it need not be stored again. Costs no
        more than the new value did."""
        blocks = [link.id for link in wire_links(old) if link.id in self._nodes.known and link.branching]
        while blocks and budget > 0:
            nodes = self._nodes.get_many(blocks[:budget])
            budget -= len(nodes)
            blocks = [link.id for node in nodes.values() for link in node_links(node) if link.branching]

    def _finish(self, slot: Any) -> Packed:
        if isinstance(slot, _DRAFTS):
            if slot.base is not None:
                return self._inline_or_link(self._finish_tree(slot))
            return self._packer.pack(slot.parts(self._finish))
        return slot if type(slot) is Packed else packed_wire(slot)

    def _inline_or_link(self, link: Link) -> Packed:
        """A container that has shrunk goes back inline, as if it had been built small."""
        node = self._nodes.get(link.id)
        # A leaf is a few bytes longer than what it holds, so a longer one holds too much.
        if node.level == 0 and len(self._nodes.loaded(link.id).data) <= INLINE_BYTES + LEAF_HEAD_BYTES:
            if node.kind == "map":
                return self._packer.pack({key: packed_wire(wire) for key, wire in node.body.items()})
            return self._packer.pack([packed_wire(wire) for wire in node.body])
        return packed_wire(link_wire(link))

    def _finish_tree(self, draft: Any) -> Link:
        """The tree of a draft that has one, as a root or as the target of a link."""
        base: Link = draft.base
        tree = TreeRewriter(base.id, self._nodes, self._packer)
        splices = draft.splices(tree, self._finish)
        return tree.rewrite(splices) if splices else base

    def _new_blocks(self, root: BlockId) -> tuple[Block, ...]:
        """The blocks of the new tree that are not in the old one. Drafts leave others behind; those are forgotten."""
        made, known = self._nodes.made, self._nodes.known
        found: dict[BlockId, Block] = {}
        stack = [root]
        while stack:
            block = stack.pop()
            if block in known or block in found:
                continue
            found[block] = made[block]
            stack.extend(made[block].links)
        return tuple(found.values())


def _entry_order(entry: Entry) -> SortKey:
    return sort_key(entry[3])  # type: ignore[arg-type]


def _split_spans(node: Node, spans: Sequence[Splice]) -> Iterable[tuple[int, Splice]]:
    """Which spans of positions below a node fall into which of its children. New items go where their span starts."""
    ends = list(accumulate([child[1] for child in node.body]))
    for start, stop, fresh in spans:
        number = min(bisect_right(ends, start), len(ends) - 1)
        while True:
            offset, end = ends[number - 1] if number else 0, ends[number]
            yield number, Splice(start - offset, min(stop, end) - offset, fresh)
            if stop <= end:
                break
            start, fresh, number = end, [], number + 1
