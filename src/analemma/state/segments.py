"""Workflow manifests: versions that also say what is to be run, its configuration and its segments, each under its
hash."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analemma.canon.identity import BlockId
from analemma.canon.nodes import Block
from analemma.canon.trees import Edited
from analemma.catalog.port import BranchKey, Head, ManifestRow
from analemma.clock import attempts
from analemma.errors import Conflict, Corrupt, Expired, Invalid, NotFound
from analemma.state.arguments import branch_key
from analemma.state.committer import Outcome, Proposal
from analemma.state.injections import HOLD_PLACE, Injection, Placed
from analemma.state.kernel_base import CURRENT_HEAD, MAIN, CurrentHead, KernelBase, place
from analemma.state.records import CONFIGURED, SEGMENT_INJECTED, Manifest
from analemma.state.segment_lists import Segment, SegmentList, decode_segments, encode_segments

WRAPPED = "segment_config"


@dataclass(frozen=True, slots=True)
class ManifestPointer:
    """A workflow manifest, small enough to travel with every event."""

    manifest_id: str
    version: int
    parent_hash: str | None
    manifest_hash: str
    """The same as `manifest_id`: a manifest is named by its hash."""
    config_hash: str | None
    segment_hashes: dict[int, str]
    hash_version: int
    """1, and one more with every injected segment; 0 for a version without segments."""
    blocks: tuple[str, ...]
    """The roots of the segments' configurations, each once."""
    metadata: dict[str, int] = field(default_factory=dict, compare=False)
    """segment_count and total_size; from the call that made it also how many blocks of segments were new
    (blocks_stored) and how many were there already (blocks_reused)."""


class Segments(KernelBase):
    """Keeps what a workflow runs."""

    def create_manifest(
        self,
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
        expected = self._expected_parent(key, parent_manifest_id)
        config = self._trees.build(_dict(workflow_config, "the workflow's configuration"))
        entries = _entries(segment_manifest)
        pieces = [self._packed_segment(entry, number) for number, entry in enumerate(entries)]
        listed = SegmentList(tuple(segment for segment, _, _ in pieces))
        list_block = encode_segments(listed)
        segment_blocks = [block for _, blocks, _ in pieces for block in blocks]
        entry_blocks = [block for _, _, blocks in pieces for block in blocks]

        def propose(head: Head | None) -> Proposal:
            state = self._trees.build({}) if head is None else Edited(self._read_manifest(head.manifest).root, ())
            return Proposal(
                key,
                Edited(state.root, (*state.blocks, *config.blocks, *segment_blocks, *entry_blocks, list_block)),
                head,
                config=config.root.id,
                segments=list_block.id,
                kind=CONFIGURED,
                facts={"config": config.root.id.hex(), "segments": list_block.id.hex()},
            )

        outcome = self._commit(key, expected, propose)
        return _made(outcome, config.root.id, listed, segment_blocks)

    def get_manifest(self, manifest_id: str, *, owner_id: str | None = None) -> ManifestPointer:
        """The pointer of a version; one that no configuration was ever given has none and no segments."""
        row = self._row(manifest_id, owner_id)
        manifest = self._read_manifest(row.id)
        listed = None if manifest.segments is None else self._read_segments(row.id, manifest.segments)
        return _pointer(row.id, row.version, row.parent, manifest.config, listed)

    def load_workflow_config(self, manifest_id: str, *, owner_id: str | None = None) -> dict[str, Any]:
        """The configuration that a version carries."""
        row = self._row(manifest_id, owner_id)
        config = self._read_manifest(row.id).config
        if config is None:
            raise NotFound(f"manifest {manifest_id} has no configuration", hint="make one with create_manifest")
        found: dict[str, Any] = self._guarded(row.id, lambda: self._trees.read(config))
        return found

    def load_segment_manifest(self, manifest_id: str, *, owner_id: str | None = None) -> list[dict[str, Any]]:
        """The segments that a version carries, each as it was given."""
        row = self._row(manifest_id, owner_id)
        return self._read_entries(row.id, self._segments_of(row.id, self._read_manifest(row.id)))

    def verify_segment_config(
        self, segment_config: Mapping[str, Any], manifest_id: str, segment_index: int | str
    ) -> bool:
        """Whether this is exactly the configuration that the version carries for a segment: one lookup and one hash.

        Fails closed: an unknown manifest or segment, a damaged list, or a configuration that could not even be stored
        is False. Only a store that does not answer raises."""
        try:
            number = _segment_number(segment_index)
            row = self._row(manifest_id, None)
            segments = self._segments_of(row.id, self._read_manifest(row.id)).segments
            if not 0 <= number < len(segments):
                return False
            config = _dict(segment_config, "a segment's configuration")
            return self._trees.build(config).root.id == segments[number].config.id
        except (Invalid, NotFound, Expired, Corrupt):
            return False

    def inject_dynamic_segment(
        self,
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
        row = self._row(manifest_id, owner_id)
        known = self._read_manifest(row.id)
        listed = self._segments_of(row.id, known)
        if expected_hash_version is not None and listed.hash_version != expected_hash_version:
            raise _segments_changed(row, expected_hash_version, listed.hash_version)
        count = len(listed.segments)
        if type(insert_position) is not int or not 0 <= insert_position <= count:
            raise Invalid(f"no segment can be inserted at {insert_position}", hint=f"use a position from 0 to {count}")
        given = _dict(segment_config, "a segment's configuration")
        placed = self._placed(row, known, listed, given, insert_position)
        segment, inner, outer = self._packed_segment(
            given if placed is None else placed.entries[insert_position], insert_position
        )
        others, wrapping = listed.segments, tuple[Block, ...]()
        if placed is not None:
            others, wrapping = self._wrapped_again(others, placed.entries, insert_position)
        grown = SegmentList(
            (*others[:insert_position], segment, *others[insert_position:]), hash_version=listed.hash_version + 1
        )
        list_block = encode_segments(grown)

        def propose(head: Head | None) -> Proposal:
            if head is None:
                raise NotFound(f"there is no {place(row.key)}")
            manifest = self._read_manifest(head.manifest)
            if manifest.segments != known.segments or manifest.config != known.config:
                found = None if manifest.segments is None else self._segments_of(head.manifest, manifest).hash_version
                raise _segments_changed(row, listed.hash_version, found)
            held = () if placed is None else placed.hold(head.manifest)
            return Proposal(
                row.key,
                Edited(manifest.root, (*inner, *outer, *wrapping, list_block)),
                head,
                config=manifest.config,
                segments=list_block.id,
                kind=SEGMENT_INJECTED,
                facts={"position": insert_position, "hash_version": grown.hash_version, "from": row.id.hex()},
                rows=lambda _: held,
            )

        return _made(self._commit_where_it_stands(row.key, propose), known.config, grown, inner)

    def _placed(
        self, row: ManifestRow, known: Manifest, listed: SegmentList, given: Mapping[str, Any], position: int
    ) -> Placed | None:
        config = known.config
        if self._place_segment is None or config is None:
            return None
        document = self._guarded(row.id, lambda: self._trees.read(config))
        entries = self._read_entries(row.id, listed)
        return self._place_segment(Injection(row.key, config, document, entries, listed.hash_version, given, position))

    def _wrapped_again(
        self, segments: Sequence[Segment], entries: Sequence[Mapping[str, Any]], position: int
    ) -> tuple[tuple[Segment, ...], tuple[Block, ...]]:
        """Segments with what is said around them now that they have moved, and the blocks of that."""
        around = [entry for number, entry in enumerate(entries) if number != position]
        packed = [
            self._trees.pack({name: value for name, value in entry.items() if name != WRAPPED}) for entry in around
        ]
        made = tuple(Segment(old.config, wire) for old, (wire, _) in zip(segments, packed, strict=True))
        return made, tuple(block for _, blocks in packed for block in blocks)

    def _commit_where_it_stands(self, key: BranchKey, propose: Callable[[Head | None], Proposal]) -> Outcome:
        """Commit while the run stands where the proposal saw it; look again if it has moved."""
        trouble = f"the run on {place(key)} moves too fast"
        for _ in attempts(self._clock, trouble, hint="try again, or inject further behind", most=100):
            try:
                return self._commit(key, CURRENT_HEAD, propose)
            except Conflict as exc:
                if exc.facts.get("statement") != HOLD_PLACE:
                    raise
        raise AssertionError("unreachable")

    def _read_entries(self, manifest_id: BlockId, listed: SegmentList) -> list[dict[str, Any]]:
        def read(segment: Segment) -> dict[str, Any]:
            config: dict[str, Any] = self._trees.read(segment.config.id)
            return config if segment.entry is None else self._trees.unpack(segment.entry) | {WRAPPED: config}

        return self._guarded(manifest_id, lambda: [read(segment) for segment in listed.segments])

    def _expected_parent(self, key: BranchKey, parent: str | None) -> BlockId | CurrentHead:
        if parent is None:
            return CURRENT_HEAD
        row = self._row(parent, key.owner)
        if row.key != key:
            raise Invalid(f"manifest {parent} is no version of {place(key)}", hint="fork it there first")
        return row.id

    def _packed_segment(
        self, entry: Mapping[str, Any], number: int
    ) -> tuple[Segment, tuple[Block, ...], tuple[Block, ...]]:
        """A segment, the blocks of its configuration, and those of what stands around it."""
        whole = _dict(entry, f"segment {number}")
        if not isinstance(whole.get(WRAPPED), Mapping):
            config = self._trees.build(whole)
            return Segment(config.root), config.blocks, ()
        config = self._trees.build(_dict(whole[WRAPPED], f"the configuration of segment {number}"))
        wire, blocks = self._trees.pack({name: value for name, value in whole.items() if name != WRAPPED})
        return Segment(config.root, wire), config.blocks, blocks

    def _segments_of(self, manifest_id: BlockId, manifest: Manifest) -> SegmentList:
        if manifest.segments is None:
            raise NotFound(f"manifest {manifest_id.hex()} has no segments", hint="make one with create_manifest")
        return self._read_segments(manifest_id, manifest.segments)

    def _read_segments(self, manifest_id: BlockId, block: BlockId) -> SegmentList:
        return self._guarded(manifest_id, lambda: decode_segments(block, self._blocks.fetch([block])[block]))


def _made(
    outcome: Outcome, config: BlockId | None, listed: SegmentList, segment_blocks: Sequence[Block]
) -> ManifestPointer:
    """The pointer of a version just committed, with what its segments cost."""
    receipt = outcome.receipt
    pointer = _pointer(receipt.manifest, receipt.version, receipt.parent, config, listed)
    stored = len({block.id for block in segment_blocks} & outcome.committed.stored)
    # A segment that is linked without being sent again is reused as well.
    sent = {block.id for block in segment_blocks}
    linked = len([segment for segment in listed.segments if segment.config.id not in sent])
    pointer.metadata.update(blocks_stored=stored, blocks_reused=len(segment_blocks) - stored + linked)
    return pointer


def _pointer(
    manifest: BlockId, version: int, parent: BlockId | None, config: BlockId | None, listed: SegmentList | None
) -> ManifestPointer:
    segments = () if listed is None else listed.segments
    hashes = {number: segment.config.id.hex() for number, segment in enumerate(segments)}
    return ManifestPointer(
        manifest_id=manifest.hex(),
        version=version,
        parent_hash=None if parent is None else parent.hex(),
        manifest_hash=manifest.hex(),
        config_hash=None if config is None else config.hex(),
        segment_hashes=hashes,
        hash_version=0 if listed is None else listed.hash_version,
        blocks=tuple(dict.fromkeys(hashes.values())),
        metadata={"segment_count": len(segments), "total_size": sum(segment.config.size for segment in segments)},
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


def _entries(value: Any) -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise Invalid(f"the segments are a {type(value).__name__}", hint="pass a list of dicts")
    return value


def _segments_changed(row: ManifestRow, expected: int, found: int | None) -> Conflict:
    return Conflict(
        f"the segments of {place(row.key)} are not those of hash version {expected}",
        hint="get the newest manifest, and decide again where the segment belongs",
        manifest=row.id.hex(),
        expected=expected,
        found=found,
    )
