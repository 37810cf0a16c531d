"""Which of a tenant's blocks are needed: the columns that keep blocks alive; marking, from roots to every block below
them, reading only blocks that lead further; and a survey, which sorts all blocks by what a pass may do with each.

A package that adds a table of roots adds it here, with a migration that adds 1 to the pass in `gc`. Every column of the
catalog that can hold a block's id, or anything else of bytes, is listed below as a root, or in the test that compares
both lists with the schema (`tests/core/gc/test_roots.py`) with the reason why it is none."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from analemma.canon.nodes import LINKS, BlockId, block_links, decode_node, is_tree_node, node_links
from analemma.catalog.engine.db import Statements
from analemma.catalog.port import TenantId

ROOT_PAGE = 1000
TELL_EVERY = 10_000
READ_BATCH = 256
"""Nodes read at once: a few megabytes."""
SMALLEST_COMPACTION = 4096

_prefix = Struct(">Q").unpack_from

Read = Callable[[Sequence[BlockId]], Mapping[BlockId, bytes]]
Roots = tuple[dict[str, list[BlockId]], int | None]
"""Everything that keeps blocks of one tenant, at one moment, by column; and the number of the pass that was the newest
when the oldest open session began."""


class RootColumn(NamedTuple):
    """A column that keeps blocks. Its statement takes tenant, after and limit, and answers pages of (key, root), by
    key; a root may be NULL."""

    name: str
    statement: str
    start: bytes | int = b""
    """What comes before every key."""


VERSIONS = "manifest.id"
ROOTS = (
    # A version: its block leads to state, configuration, segments and metadata.
    RootColumn(VERSIONS, "manifest_roots"),
    # The tree of a lease, until that is released.
    RootColumn("payload.root", "lease_roots"),  # guard: gc.root.payload
    # The version that a checkpoint is, also after the version's own row expired.
    RootColumn("thread_checkpoint.manifest", "thread_roots"),  # guard: gc.root.checkpoint
    # A version of an entity as it came.
    RootColumn("raw.root", "raw_roots", start=0),  # guard: gc.root.raw
    # A slice; one that is copied to a later version is copied under the lock of its entity.
    RootColumn("slice.root", "slice_roots", start=0),  # guard: gc.root.slice
    # The index of an archive in blocks, until the collector claims the archive.
    RootColumn("archive_unit.root", "unit_roots", start=0),  # guard: gc.root.archive
    # What came of an effect, if it is too large for its row, until its run is forgotten.
    RootColumn("effect.result", "effect_roots", start=0),  # guard: gc.root.effect
    # What a branch or an item of a run came to, until its run is forgotten.
    RootColumn("run_task.root", "task_roots", start=0),  # guard: gc.root.task
)
"""What every snapshot reads."""


def read_roots(tx: Statements, tenant: TenantId) -> Roots:
    """Every root of a tenant that this transaction sees."""
    roots: dict[str, list[BlockId]] = {}
    for column in ROOTS:
        pages = tx.pages(column.statement, {"after": column.start}, limit=ROOT_PAGE, tenant=tenant)
        roots[column.name] = [BlockId(row[1]) for page in pages for row in page if row[1] is not None]
    return roots, tx.value("oldest_session", tenant=tenant)


class LeafSet:
    """Ids of blocks that lead nowhere, by their first eight bytes: 8 to 16 bytes each in memory. Two that begin alike
    count as one, so that a collision can only keep what might go."""

    def __init__(self) -> None:
        self._shards = [array("Q") for _ in range(256)]
        self._limits = [SMALLEST_COMPACTION] * 256
        self._open: tuple[int, frozenset[int]] = (-1, frozenset())

    def add(self, block: bytes) -> None:
        """Take one in; the same one as often as one likes."""
        first = block[0]
        shard = self._shards[first]
        shard.append(_prefix(block)[0])
        if len(shard) >= self._limits[first]:
            # Blocks are shared by many versions, so most of what comes is here already.
            self._shards[first] = compacted = array("Q", set(shard))
            self._limits[first] = 2 * len(compacted) + SMALLEST_COMPACTION

    def missing(self, blocks: Iterable[BlockId]) -> list[BlockId]:
        """Those of the blocks that were not added, nor any that begins alike. Quick for blocks in the order of their
        ids; not to be mixed with `add`."""
        number, shard = self._open
        found: list[BlockId] = []
        for block in blocks:
            if block[0] != number:
                number = block[0]
                shard = frozenset(self._shards[number])
            if _prefix(block)[0] not in shard:
                found.append(block)
        self._open = (number, shard)
        return found


class Marks:
    """The blocks that roots lead to. Those that were read are kept by their whole id."""

    def __init__(self) -> None:
        self.nodes: set[bytes] = set()
        self.leaves = LeafSet()

    def missing(self, blocks: Iterable[BlockId]) -> list[BlockId]:
        """Those of the blocks that nothing leads to. For blocks in the order of their ids."""
        nodes = self.nodes
        return self.leaves.missing([block for block in blocks if block not in nodes])

    def follow(self, roots: Iterable[BlockId], read: Read) -> Iterator[int]:
        """Walk down from the roots. A block that cannot be read raises what `read` does: nothing may be collected then.
        Yields, again and again, how many nodes were read."""
        nodes, leaves = self.nodes, self.leaves
        # The newest first, so that what waits stays small: a tree is walked to its end before the next is begun.
        waiting: list[BlockId] = []
        for root in roots:
            if root not in nodes:
                nodes.add(root)
                waiting.append(root)
        count = 0
        while waiting:
            batch = waiting[-READ_BATCH:]
            del waiting[-READ_BATCH:]
            for block, data in read(batch).items():
                further, ends = links_of(block, data)
                for target in further:
                    if target not in nodes:
                        nodes.add(target)
                        waiting.append(target)
                for target in ends:
                    leaves.add(target)
            count += len(batch)
            yield count


def links_of(block: BlockId, data: bytes) -> tuple[list[BlockId], list[BlockId]]:
    """The blocks that a block links to: those that have to be read, and those that are said to lead nowhere. A link
    says so truly: whoever reads through one that does not finds damage."""
    if not is_tree_node(data):
        return block_links(data), []
    node = decode_node(block, data)
    further: list[BlockId] = []
    ends: list[BlockId] = []
    if node.level:
        for child in node.body:
            (further if child[3] & LINKS else ends).append(child[0][4:])
    else:
        for link in node_links(node):
            (further if link.branching else ends).append(link.id)  # guard: gc.links
    return further, ends


@dataclass(slots=True)
class Survey:
    """A tenant's blocks, sorted by what becomes of them. Lists of ids are 32 bytes each, in order."""

    total: int = 0
    referenced: int = 0
    waiting: int = 0
    """Doomed, and not yet to be deleted."""
    clear: bytearray = field(default_factory=bytearray)
    doom: bytearray = field(default_factory=bytearray)
    delete: bytearray = field(default_factory=bytearray)

    def sort(
        self,
        pages: Iterable[Sequence[BlockId]],
        dooms: Iterator[Sequence[tuple[BlockId, int]]],
        marks: Marks,
        limit: int,
    ) -> Iterator[int]:
        """Sort blocks by two streams in the order of ids, by the page: of all of them, and of those that are doomed.
        Both were read over some time, so this is a proposal: the statements that act look again. Yields, again and
        again, how many it has seen."""
        doomed: dict[BlockId, int] = {}
        """Those that were read, from the page at hand on."""
        read_until = b""
        told = 0
        for page in pages:
            self.total += len(page)
            if self.total >= told + TELL_EVERY:
                told = self.total
                yield told
            while read_until < page[-1] and (more := next(dooms, None)) is not None:
                doomed.update(more)
                read_until = more[-1][0]
            unmarked = marks.missing(page)
            self.referenced += len(page) - len(unmarked)
            if not doomed:
                self.doom += b"".join(unmarked)
                continue
            self.doom += b"".join([block for block in unmarked if block not in doomed])
            unneeded = [block for block in unmarked if block in doomed]
            old = [block for block in unneeded if doomed[block] < limit]
            self.delete += b"".join(old)
            self.waiting += len(unneeded) - len(old)
            doomed_here = [block for block in page if block in doomed]
            if len(doomed_here) > len(unneeded):
                self.clear += b"".join(sorted(set(doomed_here).difference(unneeded)))
            doomed = {block: number for block, number in doomed.items() if block > page[-1]}
