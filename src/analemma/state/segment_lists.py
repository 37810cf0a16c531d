"""The block that lists a workflow's segments: the root of each one's configuration, in order.

It is the DAG-CBOR array `["segments", format, {"hash_version": n, "segments": [[link, entry], ...]}]`. A link leads to
the tree of a segment's configuration, so its id is the segment's hash; the entry is what stood around the configuration
when it was given, or None."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from analemma.canon.identity import BlockId, block_id
from analemma.canon.nodes import Block
from analemma.canon.values import (
    Link,
    Wire,
    link_wire,
    wire_links,
)
from analemma.state.records import decode_record, encode_record, read_link


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment: its configuration's tree, and what stood around it, in stored form."""

    config: Link
    entry: Wire = None


@dataclass(frozen=True, slots=True)
class SegmentList:
    """All segments in order. The hash version counts how often segments were injected, from 1."""

    segments: tuple[Segment, ...]
    hash_version: int = 1


def encode_segments(listed: SegmentList) -> Block:
    """The block of a segment list."""
    pairs = [[link_wire(segment.config), segment.entry] for segment in listed.segments]
    data = encode_record("segments", {"hash_version": listed.hash_version, "segments": pairs})
    links = [link.id for pair in pairs for wire in pair for link in wire_links(wire)]
    return Block(block_id(data), data, tuple(links))


def decode_segments(block: BlockId, data: bytes) -> SegmentList:
    """Read a segment list's verified bytes."""
    name = block.hex()
    return decode_record("segments", data, _listed, f"block {name} is not a list of segments", block=name)


def _listed(fields: Any) -> SegmentList:
    segments = tuple(Segment(read_link(wire), entry) for wire, entry in fields["segments"])
    return SegmentList(segments, fields["hash_version"])
