"""The five verbs on Merkle trees of values, bound to a way of fetching blocks. Start reading the layer here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from analemma.canon.build import Packer
from analemma.canon.diff import diff
from analemma.canon.edit import Edited, EditedNodes, Editor, Operation
from analemma.canon.identity import BlockId
from analemma.canon.nodes import Block, Wire, block_id, encode_stored
from analemma.canon.pointer import Path, format_pointer, parse_pointer
from analemma.canon.read import MISSING, Fetch, NodeCache, Nodes, Reader, UnknownTypes
from analemma.canon.types import TypeRegistry
from analemma.errors import NotFound

__all__ = ["Edited", "Operation", "Trees"]


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
