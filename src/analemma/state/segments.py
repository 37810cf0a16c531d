"""Workflow manifests: versions that also say what is to be run, its configuration and its segments, each under its
hash.

A list of segments is the DAG-CBOR array `["segments", 1, {"hash_version": n, "segments": [[link, entry], ...]}]`. A
link leads to the tree of a segment's configuration, so its id is the segment's hash; the entry is what stood around
the configuration when it was given, or None. A long list is a tree: `["segments", 2, {"hash_version": n, "lists":
[[link, count, size], ...]}]` names shorter lists, with how many segments each has and the bytes of their
configurations, so that finding or inserting one reads and writes a list for each level."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from analemma.canon.nodes import (
    Block,
    BlockId,
    Link,
    Wire,
    block_id,
    from_cid,
    link_wire,
    parse_block_id,
    to_cid,
    wire_links,
)
from analemma.canon.read import Fetch
from analemma.canon.trees import Edited
from analemma.catalog.port import BranchKey, Head, RowChange, Version
from analemma.clock import attempts
from analemma.errors import Conflict, Corrupt, Expired, Invalid, NotFound
from analemma.state.arguments import CURRENT_HEAD, MAIN, CurrentHead, branch_key, place
from analemma.state.commits import Proposal
from analemma.state.records import (
    CONFIGURED,
    SEGMENT_INJECTED,
    Commit,
    Manifest,
    decode_record,
    encode_record,
    read_link,
)

if TYPE_CHECKING:
    from analemma.state.kernel import Kernel

HOLD_PLACE: Final = "hold_place"
"""The change that finds no row where a run has moved since somebody looked where it stands."""


LONGEST: Final = 128
"""Segments in one list, and lists in a list of lists: two levels hold 16,384."""
OF_LISTS: Final = 2
"""The format of a list of lists."""


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
    segments: Sequence[Segment] = ()
    parts: Sequence[Part] = ()

    @property
    def count(self) -> int:
        """How many segments there are."""
        return sum(part.count for part in self.parts) if self.parts else len(self.segments)

    @property
    def size(self) -> int:
        """Bytes of all configurations, repeats counted each time."""
        return sum(part.size for part in self.parts) + sum(segment.config.size for segment in self.segments)

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
    pairs = [[link_wire(segment.config), segment.entry] for segment in listed.segments]
    data = encode_record("segments", {"hash_version": listed.hash_version, "segments": pairs})
    links = [link.id for pair in pairs for wire in pair for link in wire_links(wire)]
    return Block(block_id(data), data, tuple(links))


def decode_segments(block: BlockId, data: bytes) -> SegmentList:
    """Read a list's verified bytes."""
    name = block.hex()
    return decode_record("segments", data, _listed, f"block {name} is not a list of segments", OF_LISTS, block=name)


def _listed(fields: Any) -> SegmentList:
    if "lists" in fields:
        parts = [Part(from_cid(cid), count, size) for cid, count, size in fields["lists"]]
        return SegmentList(fields["hash_version"], parts=parts)
    return SegmentList(fields["hash_version"], [Segment(read_link(wire), entry) for wire, entry in fields["segments"]])


def make_list(segments: Sequence[Segment], hash_version: int = 1) -> tuple[SegmentList, tuple[Block, ...]]:
    """A list of these, and its blocks; the last of them is what the list is known by."""
    blocks: list[Block] = []
    lists = _cut(SegmentList(segments=segments))
    return _rooted(lists, hash_version, blocks), tuple(blocks)


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
    return listed.segments[position]


def all_segments(fetch: Fetch, listed: SegmentList) -> tuple[Segment, ...]:
    """All segments, in order; one fetch per level."""
    lists = [listed]
    while any(each.parts for each in lists):
        lists = _read(fetch, [part for each in lists for part in each.parts])
    return tuple(segment for each in lists for segment in each.segments)


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
        return _cut(SegmentList(segments=[*listed.segments[:position], segment, *listed.segments[position:]]))
    number, inner = listed.part_at(position)
    grown = _grown(fetch, _read(fetch, [listed.parts[number]])[0], inner, segment, blocks)
    return _cut(SegmentList(parts=[*listed.parts[:number], *_stored(grown, blocks), *listed.parts[number + 1 :]]))


def _rooted(lists: list[SegmentList], hash_version: int, blocks: list[Block]) -> SegmentList:
    """One list above these."""
    while len(lists) > 1:
        lists = _cut(SegmentList(parts=_stored(lists, blocks)))
    root = replace(lists[0], hash_version=hash_version)
    blocks.append(encode_segments(root))
    return root


def _stored(lists: Sequence[SegmentList], blocks: list[Block]) -> list[Part]:
    made = [encode_segments(listed) for listed in lists]
    blocks += made
    return [Part(block.id, listed.count, listed.size) for block, listed in zip(made, lists, strict=True)]


def _cut(listed: SegmentList) -> list[SegmentList]:
    """As few lists as can be instead of one of any length, about as long as each other."""
    length = len(listed.parts or listed.segments)
    runs = max(1, -(-length // LONGEST))
    cuts = pairwise(length * number // runs for number in range(runs + 1))
    return [SegmentList(1, listed.segments[start:stop], listed.parts[start:stop]) for start, stop in cuts]


@dataclass(frozen=True, slots=True)
class Injection:
    """A segment that somebody wants to be run before the one at a position."""

    key: BranchKey
    config: BlockId
    """The workflow's configuration."""
    document: Any
    """The same, read."""
    read_entries: Callable[[], Sequence[Mapping[str, Any]]]
    """Reads the segments so far."""
    hash_version: int
    """Theirs."""
    given: Mapping[str, Any]
    position: int


@dataclass(frozen=True, slots=True)
class Placed:
    """What becomes of the segments of a workflow that runs take."""

    entries: Sequence[Mapping[str, Any]]
    """All of them, wrapped, the new one among them."""
    hold: Callable[[BlockId], Sequence[RowChange]]
    """What goes with the commit on a version, so that the run comes to the segment; Conflict if it would not."""


PlaceSegment = Callable[[Injection], Placed | None]
"""Says what becomes of the segments if runs take them; None: they are somebody else's, and kept as they are given."""


WRAPPED = "segment_config"
REMEMBERED_LISTS = 16
"""Lists of segments that a kernel keeps, without the shorter lists that long ones are made of."""
NO_SEGMENTS = SegmentList(hash_version=0)


@dataclass(frozen=True)
class ManifestPointer:
    """A workflow manifest, small enough to travel with every event."""

    manifest_id: str
    version: int
    parent_hash: str | None
    manifest_hash: str
    """The same as `manifest_id`: a manifest is named by its hash."""
    config_hash: str | None
    hash_version: int
    """1, and one more with every injected segment; 0 for a version without segments."""
    metadata: dict[str, int] = field(default_factory=dict, compare=False)
    """segment_count and total_size; from the call that made it also how many blocks of segments were new
    (blocks_stored) and how many were there already (blocks_reused)."""
    _read: Callable[[], Sequence[Segment]] = field(default=tuple, repr=False, compare=False)

    @cached_property
    def segment_hashes(self) -> dict[int, str]:
        """The hash of each segment's configuration. Those of a long list are read when they are first asked for."""
        return {number: segment.config.id.hex() for number, segment in enumerate(self._read())}

    @property
    def blocks(self) -> tuple[str, ...]:
        """The roots of the segments' configurations, each once."""
        return tuple(dict.fromkeys(self.segment_hashes.values()))

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {name: getattr(self, name) for name in _POINTER_FIELDS} | {"metadata": dict(self.metadata)}

    def __reduce__(self) -> tuple[Any, ...]:
        fields = [getattr(self, each.name) for each in dataclasses.fields(self)[:-1]]
        return ManifestPointer, (*fields, partial(tuple, self._read()))


_POINTER_FIELDS = (
    *("manifest_id", "version", "parent_hash", "manifest_hash", "config_hash", "segment_hashes"),
    *("hash_version", "blocks", "metadata"),
)


def create_manifest(
    kernel: Kernel,
    workflow_id: str,
    workflow_config: Mapping[str, Any],
    segment_manifest: Sequence[Mapping[str, Any]],
    parent_manifest_id: str | None = None,
    *,
    owner_id: str,
    branch: str = MAIN,
) -> ManifestPointer:
    """Make a version that carries this configuration and these segments; later versions inherit them.

    The state stays that of the parent, which must be the head (HeadMoved otherwise); without one, that of whatever
    is newest, or empty on a new branch. An entry may wrap its `segment_config`: then only that is hashed."""
    key = branch_key(owner_id, workflow_id, branch)
    expected = _expected_parent(kernel, key, parent_manifest_id)
    config = kernel._trees.build(_dict(workflow_config, "the workflow's configuration"))
    entries: Any = segment_manifest
    if not isinstance(entries, Sequence) or isinstance(entries, str | bytes):
        raise Invalid(f"the segments are a {type(entries).__name__}", hint="pass a list of dicts")
    pieces = [packed_segment(kernel, entry, number) for number, entry in enumerate(entries)]
    segments = [segment for segment, _, _ in pieces]
    listed, list_blocks = make_list(segments)
    segment_blocks = [block for _, inner, _ in pieces for block in inner]
    made = [block for _, inner, outer in pieces for block in (*inner, *outer)]

    def propose(head: Head | None) -> Proposal:
        state = kernel._trees.build({}) if head is None else Edited(kernel._commits.manifest(head.manifest).root, ())
        return Proposal(
            key,
            Edited(state.root, (*state.blocks, *config.blocks, *made, *list_blocks)),
            head,
            config=config.root.id,
            segments=list_blocks[-1].id,
            kind=CONFIGURED,
            facts={"config": config.root.id.hex(), "segments": list_blocks[-1].id.hex()},
        )

    commit = kernel._commits.commit_next(key, expected, propose)
    return _made(kernel, commit, config.root.id, listed, segment_blocks, len(segments), segments)


def get_manifest(kernel: Kernel, manifest_id: str, *, owner_id: str | None = None) -> ManifestPointer:
    """The pointer of a version; one that no configuration was ever given has none and no segments."""
    row = kernel._row(manifest_id, owner_id)
    manifest = kernel._commits.manifest(row.id)
    listed = NO_SEGMENTS if manifest.segments is None else read_segments(kernel, row.id, manifest.segments)
    return _pointer(kernel, row, manifest.config, listed)


def load_workflow_config(kernel: Kernel, manifest_id: str, *, owner_id: str | None = None) -> dict[str, Any]:
    """The configuration that a version carries."""
    row = kernel._row(manifest_id, owner_id)
    config = kernel._commits.manifest(row.id).config
    if config is None:
        raise NotFound(f"manifest {manifest_id} has no configuration", hint="make one with create_manifest")
    found: dict[str, Any] = kernel._commits.guarded(row.id, lambda: kernel._trees.read(config))
    return found


def load_segment_manifest(kernel: Kernel, manifest_id: str, *, owner_id: str | None = None) -> list[dict[str, Any]]:
    """The segments that a version carries, each as it was given."""
    row = kernel._row(manifest_id, owner_id)
    return _read_entries(kernel, row.id, _segments_of(kernel, row.id, kernel._commits.manifest(row.id)))


def verify_segment_config(
    kernel: Kernel, segment_config: Mapping[str, Any], manifest_id: str, segment_index: int | str
) -> bool:
    """Whether this is exactly the configuration that the version carries for a segment: one lookup and one hash,
    however many segments there are.

    Fails closed: an unknown manifest or segment, a damaged list, or a configuration that could not even be stored
    is False. Only a store that does not answer raises."""
    try:
        number = _segment_number(segment_index)
        row = kernel._row(manifest_id, None)
        listed = _segments_of(kernel, row.id, kernel._commits.manifest(row.id))
        segment = kernel._commits.guarded(row.id, lambda: find_segment(kernel._blocks.fetch, listed, number))
        config = _dict(segment_config, "a segment's configuration")
        return segment is not None and kernel._trees.build(config).root.id == segment.config.id
    except (Invalid, NotFound, Expired, Corrupt):
        return False


def inject_dynamic_segment(
    kernel: Kernel,
    manifest_id: str,
    segment_config: Mapping[str, Any],
    insert_position: int,
    expected_hash_version: int | None = None,
    *,
    owner_id: str | None = None,
) -> ManifestPointer:
    """Insert a segment before the one at a position (or at the end), as a new version of the branch's newest state;
    later segments move up.

    It takes what `load_segment_manifest` shows, with or without what is around `segment_config`. Where `app.flows`
    runs the workflow, it also takes `{"nodes": [...]}`, or one node: where it leads to follows from the position,
    and Invalid, with its `pointer`, says what could not be run. The run executes it when it comes to the position;
    Conflict if it never would, as it is further already. Saves that happened since `manifest_id` do no harm;
    another injection does: Conflict, and nothing changes."""
    row = kernel._row(manifest_id, owner_id)
    known = kernel._commits.manifest(row.id)
    listed = _segments_of(kernel, row.id, known)
    if expected_hash_version is not None and listed.hash_version != expected_hash_version:
        raise _segments_changed(row, expected_hash_version, listed.hash_version)
    count = listed.count
    if type(insert_position) is not int or not 0 <= insert_position <= count:
        raise Invalid(f"no segment can be inserted at {insert_position}", hint=f"use a position from 0 to {count}")
    given = _dict(segment_config, "a segment's configuration")
    placed = None
    if kernel._place_segment is not None and known.config is not None:
        config = known.config
        document = kernel._commits.guarded(row.id, lambda: kernel._trees.read(config))
        entries = partial(_read_entries, kernel, row.id, listed)
        placed = kernel._place_segment(
            Injection(row.key, config, document, entries, listed.hash_version, given, insert_position)
        )
    segment, inner, outer = packed_segment(
        kernel, given if placed is None else placed.entries[insert_position], insert_position
    )
    segments: list[Segment] | None = None
    if placed is None:
        grown, made = kernel._commits.guarded(
            row.id, lambda: insert_segment(kernel._blocks.fetch, listed, insert_position, segment)
        )
    else:
        # What is said around the others has changed, now that they have moved.
        around = [entry for number, entry in enumerate(placed.entries) if number != insert_position]
        packed = [kernel._trees.pack(_without_config(entry)) for entry in around]
        others = _segments_in(kernel, row.id, listed)
        segments = [Segment(old.config, wire) for old, (wire, _) in zip(others, packed, strict=True)]
        segments.insert(insert_position, segment)
        grown, made = make_list(segments, listed.hash_version + 1)
        made = (*[block for _, blocks in packed for block in blocks], *made)

    def propose(head: Head | None) -> Proposal:
        if head is None:
            raise NotFound(f"there is no {place(row.key)}")
        manifest = kernel._commits.manifest(head.manifest)
        if manifest.segments != known.segments or manifest.config != known.config:
            found = None if manifest.segments is None else _segments_of(kernel, head.manifest, manifest).hash_version
            raise _segments_changed(row, listed.hash_version, found)
        held = () if placed is None else placed.hold(head.manifest)
        return Proposal(
            row.key,
            Edited(manifest.root, (*inner, *outer, *made)),
            head,
            config=manifest.config,
            segments=made[-1].id,
            kind=SEGMENT_INJECTED,
            facts={"position": insert_position, "hash_version": grown.hash_version, "from": row.id.hex()},
            rows=lambda _: held,
        )

    commit = _commit_where_it_stands(kernel, row.key, propose)
    return _made(kernel, commit, known.config, grown, inner, 1, segments)


def _commit_where_it_stands(kernel: Kernel, key: BranchKey, propose: Callable[[Head | None], Proposal]) -> Commit:
    """Commit while the run stands where the proposal saw it; look again if it has moved."""
    trouble = f"the run on {place(key)} moves too fast"
    for _ in attempts(kernel._clock, trouble, hint="try again, or inject further behind", most=100):
        try:
            return kernel._commits.commit_next(key, CURRENT_HEAD, propose)
        except Conflict as exc:
            if exc.facts.get("statement") != HOLD_PLACE:
                raise
    raise AssertionError("unreachable")


def _read_entries(kernel: Kernel, manifest_id: BlockId, listed: SegmentList) -> list[dict[str, Any]]:
    def read(segment: Segment) -> dict[str, Any]:
        config: dict[str, Any] = kernel._trees.read(segment.config.id)
        return config if segment.entry is None else kernel._trees.unpack(segment.entry) | {WRAPPED: config}

    return kernel._commits.guarded(
        manifest_id, lambda: [read(segment) for segment in all_segments(kernel._blocks.fetch, listed)]
    )


def _expected_parent(kernel: Kernel, key: BranchKey, parent: str | None) -> BlockId | CurrentHead:
    if parent is None:
        return CURRENT_HEAD
    row = kernel._row(parent, key.owner)
    if row.key != key:
        raise Invalid(f"manifest {parent} is no version of {place(key)}", hint="fork it there first")
    return row.id


def packed_segment(
    kernel: Kernel, entry: Mapping[str, Any], number: int
) -> tuple[Segment, tuple[Block, ...], tuple[Block, ...]]:
    """A segment, the blocks of its configuration, and those of what stands around it."""
    whole = _dict(entry, f"segment {number}")
    if not isinstance(whole.get(WRAPPED), Mapping):
        config = kernel._trees.build(whole)
        return Segment(config.root), config.blocks, ()
    config = kernel._trees.build(_dict(whole[WRAPPED], f"the configuration of segment {number}"))
    wire, blocks = kernel._trees.pack(_without_config(whole))
    return Segment(config.root, wire), config.blocks, blocks


def _without_config(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != WRAPPED}


def _segments_of(kernel: Kernel, manifest_id: BlockId, manifest: Manifest) -> SegmentList:
    if manifest.segments is None:
        raise NotFound(f"manifest {manifest_id.hex()} has no segments", hint="make one with create_manifest")
    return read_segments(kernel, manifest_id, manifest.segments)


def read_segments(kernel: Kernel, manifest_id: BlockId, block: BlockId) -> SegmentList:
    known = kernel._lists.get(block)
    if known is None:
        fetch = kernel._blocks.fetch
        known = kernel._commits.guarded(manifest_id, lambda: decode_segments(block, fetch([block])[block]))
        if len(kernel._lists) >= REMEMBERED_LISTS:
            kernel._lists.clear()
        kernel._lists[block] = known
    return known


def _segments_in(kernel: Kernel, manifest_id: BlockId, listed: SegmentList) -> tuple[Segment, ...]:
    return kernel._commits.guarded(manifest_id, lambda: all_segments(kernel._blocks.fetch, listed))


def _made(
    kernel: Kernel,
    commit: Commit,
    config: BlockId | None,
    listed: SegmentList,
    segment_blocks: Sequence[Block],
    sent: int,
    segments: Sequence[Segment] | None,
) -> ManifestPointer:
    """The pointer of a version just committed, with what the segments cost that were sent with it."""
    pointer = _pointer(kernel, commit, config, listed, segments)
    # A segment that is linked without being sent again is reused as well.
    stored = len({block.id.hex() for block in segment_blocks} & {*commit.block_ids})
    reused = len(segment_blocks) - stored + listed.count - sent
    pointer.metadata.update(blocks_stored=stored, blocks_reused=reused)
    return pointer


def _pointer(
    kernel: Kernel,
    made: Version | Commit,
    config: BlockId | None,
    listed: SegmentList,
    segments: Sequence[Segment] | None = None,
) -> ManifestPointer:
    manifest = parse_block_id(made.manifest_id)
    if segments is None and not listed.parts:
        # Whoever asks later must not be told that the version has expired.
        segments = _segments_in(kernel, manifest, listed)
    return ManifestPointer(
        manifest_id=made.manifest_id,
        version=made.version,
        parent_hash=made.parent_id,
        manifest_hash=made.manifest_id,
        config_hash=None if config is None else config.hex(),
        hash_version=listed.hash_version,
        metadata={"segment_count": listed.count, "total_size": listed.size},
        _read=lambda: _segments_in(kernel, manifest, listed) if segments is None else segments,
    )


def _segment_number(index: Any) -> int:
    """A segment's position; events carry it as a number or as text."""
    if type(index) is str and index.isascii() and index.isdigit() and len(index) < 20:
        return int(index)
    if type(index) is not int:
        raise Invalid(f"{index!r} is no position of a segment", hint="segments are counted from 0")
    return index


def _dict(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise Invalid(f"{what} is of type {type(value).__name__}", hint="pass a dict")
    return dict(value)


def _segments_changed(row: Version, expected: int, found: int | None) -> Conflict:
    return Conflict(
        f"the segments of {place(row.key)} are not those of hash version {expected}",
        hint="get the newest manifest, and decide again where the segment belongs",
        manifest=row.id.hex(),
        expected=expected,
        found=found,
    )
