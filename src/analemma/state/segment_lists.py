"""A workflow's segments as blocks: the root of each one's configuration, in order.

A list is the DAG-CBOR array `["segments", 1, {"hash_version": n, "segments": [[link, entry], ...]}]`. A link leads to
the tree of a segment's configuration, so its id is the segment's hash; the entry is what stood around the configuration
when it was given, or None. A long list is a tree: `["segments", 2, {"hash_version": n, "lists": [[link, count, size],
...]}]` names shorter lists, with how many segments each has and the bytes of their configurations, so that finding or
inserting one reads and writes a list for each level. What is looked up is taken as it is stored: no other segment of
its list is made a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from analemma.canon.identity import BlockId, block_id, from_cid, to_cid
from analemma.canon.nodes import Block
from analemma.canon.values import Link, Wire, link_wire, wire_links
from analemma.errors import Corrupt
from analemma.state.records import decode_record, encode_record, read_link

LONGEST: Final = 128
"""Segments in one list, and lists in a list of lists: two levels hold 16,384."""
OF_LISTS: Final = 2
"""The format of a list of lists."""

Fetch = Callable[[Sequence[BlockId]], Mapping[BlockId, bytes]]


class Segment(NamedTuple):
    """One segment: its configuration's tree, and what stood around it, in stored form."""

    config: Link
    entry: Wire = None


class Part(NamedTuple):
    """A list inside a longer one."""

    id: BlockId
    count: int  # type: ignore[assignment]
    size: int


@dataclass(frozen=True, slots=True)
class SegmentList:
    """One block of a list: segments in order, or shorter lists in order. The hash version counts how often segments
    were injected, from 1."""

    hash_version: int = 1
    pairs: Sequence[Any] = ()
    """Segments as they are stored."""
    parts: Sequence[Part] = ()

    @property
    def count(self) -> int:
        """How many segments there are."""
        return sum(part.count for part in self.parts) if self.parts else len(self.pairs)

    @property
    def size(self) -> int:
        """Bytes of all configurations, repeats counted each time."""
        sizes = [part.size for part in self.parts] or [read_link(pair[0]).size for pair in self.pairs]
        return sum(sizes)

    def part_at(self, position: int) -> tuple[int, int]:
        """The number of the part that has a position, and the position in it. The end is the last one's."""
        for number, part in enumerate(self.parts[:-1]):
            if position < part.count:
                return number, position
            position -= part.count
        return len(self.parts) - 1, position


def encode_segments(listed: SegmentList) -> Block:
    """The block of a list."""
    if listed.parts:
        parts = [[to_cid(part.id), part.count, part.size] for part in listed.parts]
        data = encode_record("segments", {"hash_version": listed.hash_version, "lists": parts}, OF_LISTS)
        return Block(block_id(data), data, tuple(part.id for part in listed.parts))
    data = encode_record("segments", {"hash_version": listed.hash_version, "segments": listed.pairs})
    links = [link.id for pair in listed.pairs for wire in pair for link in wire_links(wire)]
    return Block(block_id(data), data, tuple(links))


def decode_segments(block: BlockId, data: bytes) -> SegmentList:
    """Read a list's verified bytes."""
    name = block.hex()
    return decode_record("segments", data, _listed, f"block {name} is not a list of segments", OF_LISTS, block=name)


def _listed(fields: Any) -> SegmentList:
    if "lists" in fields:
        parts = [Part(from_cid(cid), count, size) for cid, count, size in fields["lists"]]
        return SegmentList(fields["hash_version"], parts=parts)
    return SegmentList(fields["hash_version"], [[wire, entry] for wire, entry in fields["segments"]])


def make_list(segments: Sequence[Segment], hash_version: int = 1) -> tuple[SegmentList, tuple[Block, ...]]:
    """A list of these, and its blocks; the last of them is what the list is known by."""
    blocks: list[Block] = []
    return _rooted(_cut([_pair(segment) for segment in segments]), hash_version, blocks), tuple(blocks)


def insert_segment(
    fetch: Fetch, listed: SegmentList, position: int, segment: Segment
) -> tuple[SegmentList, tuple[Block, ...]]:
    """The list with one more segment before the one at a position, and the blocks that are new; the last of them is
    what the list is known by."""
    blocks: list[Block] = []
    return _rooted(_grown(fetch, listed, position, segment, blocks), listed.hash_version + 1, blocks), tuple(blocks)


def find_segment(fetch: Fetch, listed: SegmentList, position: int) -> Segment | None:
    """The segment at a position; None if there is none."""
    if not 0 <= position < listed.count:
        return None
    while listed.parts:
        number, position = listed.part_at(position)
        listed = _read(fetch, [listed.parts[number]])[0]
    return _segment(listed.pairs[position])


def all_segments(fetch: Fetch, listed: SegmentList) -> tuple[Segment, ...]:
    """All segments, in order; one fetch per level."""
    lists = [listed]
    while any(each.parts for each in lists):
        lists = _read(fetch, [part for each in lists for part in each.parts])
    return tuple(_segment(pair) for each in lists for pair in each.pairs)


def _read(fetch: Fetch, parts: Sequence[Part]) -> list[SegmentList]:
    found = fetch(list(dict.fromkeys(part.id for part in parts)))
    lists = [decode_segments(part.id, found[part.id]) for part in parts]
    for part, listed in zip(parts, lists, strict=True):
        if listed.count != part.count:
            name = part.id.hex()
            raise Corrupt(f"block {name} lists {listed.count} segments instead of {part.count}", block=name)
    return lists


def _grown(
    fetch: Fetch, listed: SegmentList, position: int, segment: Segment, blocks: list[Block]
) -> list[SegmentList]:
    """What stands in a list's place once a segment is in it: the list, or more of them if it is too long then."""
    if not listed.parts:
        return _cut([*listed.pairs[:position], _pair(segment), *listed.pairs[position:]])
    number, inner = listed.part_at(position)
    grown = _grown(fetch, _read(fetch, [listed.parts[number]])[0], inner, segment, blocks)
    return _cut_parts([*listed.parts[:number], *_stored(grown, blocks), *listed.parts[number + 1 :]])


def _rooted(lists: list[SegmentList], hash_version: int, blocks: list[Block]) -> SegmentList:
    """One list above these."""
    while len(lists) > 1:
        lists = _cut_parts(_stored(lists, blocks))
    root = replace(lists[0], hash_version=hash_version)
    blocks.append(encode_segments(root))
    return root


def _stored(lists: Sequence[SegmentList], blocks: list[Block]) -> list[Part]:
    made = [encode_segments(listed) for listed in lists]
    blocks += made
    return [Part(block.id, listed.count, listed.size) for block, listed in zip(made, lists, strict=True)]


def _cut(pairs: Sequence[Any]) -> list[SegmentList]:
    return [SegmentList(pairs=each) for each in _evenly(pairs)]


def _cut_parts(parts: Sequence[Part]) -> list[SegmentList]:
    return [SegmentList(parts=each) for each in _evenly(parts)]


def _evenly(items: Sequence[Any]) -> list[Sequence[Any]]:
    """As few runs of items as can be, about as long as each other."""
    runs = max(1, -(-len(items) // LONGEST))
    cuts = [len(items) * number // runs for number in range(runs + 1)]
    return [items[start:stop] for start, stop in pairwise(cuts)]


def _pair(segment: Segment) -> list[Wire]:
    return [link_wire(segment.config), segment.entry]


def _segment(pair: Any) -> Segment:
    wire, entry = pair
    return Segment(read_link(wire), entry)
