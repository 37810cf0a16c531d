"""The five verbs on Merkle trees of values, bound to a way of fetching blocks. Start reading the layer here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from analemma.canon.build import Packer
from analemma.canon.diff import diff
from analemma.canon.edit import Edited, EditedNodes, Editor, Operation
from analemma.canon.identity import BlockId, block_id
from analemma.canon.nodes import (
    Block,
    Link,
    Wire,
    block_links,
    broken_promise,
    check_node,
    child_id,
    decode,
    decode_node,
    encode,
    encode_stored,
    is_tree_node,
    last_key,
    node_links,
)
from analemma.canon.pointer import Path, format_pointer, parse_pointer
from analemma.canon.read import MISSING, Fetch, NodeCache, Nodes, Reader, UnknownTypes
from analemma.canon.types import TypeRegistry
from analemma.errors import Corrupt, NotFound

__all__ = ["Edited", "Operation", "Promises", "Trees", "admit_block"]


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


class Promises:
    """Checks blocks of trees, and holds what links say against the blocks that they lead to, in whatever order the two
    are met. Readers take links at their word, except for what no walk can go on without; so this is asked where blocks
    come in from outside, and by whoever verifies.

    If all that is said of a block agrees, and is true by what the block itself says of those below it, then all of it
    is true: sizes add up from below."""

    def __init__(self) -> None:
        self._links: dict[BlockId, Link] = {}
        self._entries: dict[BlockId, tuple[int, str | None]] = {}

    def expect(self, link: Link) -> None:
        """Note what a link says; Corrupt if something else was said before, or turned out to be true."""
        if not self._agree(link):
            raise broken_promise(link.id)

    def check(self, block: BlockId, data: bytes) -> list[BlockId]:
        """The blocks that this one links to; Corrupt if a tree's node does not say of itself what is true of it, or is
        not what links say, or has links that are not true. Blocks of other kinds have readers of their own."""
        if not is_tree_node(data):
            return block_links(data)
        node = decode_node(block, data)
        check_node(block, node)
        links = node_links(node)
        size = len(data) + sum([link.size for link in links])
        wrong = [] if self._agree(Link(block, node.kind, node.length, size, bool(links))) else [block]
        if not self._agree_on_place(block, node.level, last_key(node)):
            wrong.append(block)
        wrong += [link.id for link in links if not self._agree(link)]
        if node.level:
            wrong += [
                child_id(child)
                for child in node.body
                if not self._agree_on_place(child_id(child), node.level - 1, *child[4:])
            ]
        if wrong:
            raise broken_promise(wrong[0])
        return [link.id for link in links]

    def _agree(self, link: Link) -> bool:
        return self._links.setdefault(link.id, link) == link

    def _agree_on_place(self, block: BlockId, level: int, key: str | None = None) -> bool:
        return self._entries.setdefault(block, (level, key)) == (level, key)


def admit_block(data: bytes, expected: BlockId | None = None, promises: Promises | None = None) -> Block:
    """Take a block from outside: it must be what its name says, exactly the bytes we would have written, and, among all
    that were admitted with the same `promises`, what links say of it."""
    found = block_id(data)
    if expected is not None and found != expected:
        raise Corrupt(f"block {expected.hex()} arrived with other bytes", block=expected.hex())
    try:
        canonical = encode(decode(data)) == data
    except (ValueError, TypeError, RecursionError) as exc:
        raise Corrupt(f"block {found.hex()} is not DAG-CBOR", block=found.hex()) from exc
    if not canonical:
        raise Corrupt(f"block {found.hex()} is not in canonical form", block=found.hex())
    return Block(found, data, tuple((promises or Promises()).check(found, data)))
