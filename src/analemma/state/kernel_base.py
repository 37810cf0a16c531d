"""What the kernel's verbs share: finding heads and versions, reading through expiry, committing on whatever is
newest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple, TypeVar

from analemma.blocks.store import BlockStore, Carried
from analemma.canon.identity import BlockId, parse_block_id
from analemma.canon.pointer import Path, parse_pointer
from analemma.canon.trees import Trees
from analemma.catalog.port import BranchKey, ExpiredRow, Head, KernelCatalog, ManifestRow, TenantId
from analemma.clock import Clock, attempts
from analemma.errors import AnalemmaError, Corrupt, Expired, HeadMoved, NotFound
from analemma.state.arguments import check_version
from analemma.state.checkpointing import Checkpoints
from analemma.state.committer import Committer, Outcome, Proposal
from analemma.state.injections import PlaceSegment
from analemma.state.records import Manifest, decode_manifest
from analemma.state.segment_lists import SegmentList

T = TypeVar("T")

MAIN = "main"
REMEMBERED_MANIFESTS = 256
"""Decoded manifests that a kernel keeps: a few hundred bytes each, and what they say can never change."""
REMEMBERED_LISTS = 16
"""Lists of segments that it keeps, without the shorter lists that long ones are made of."""
REMEMBERED_HEADS = 1024
"""Branches of which a kernel remembers where it left them."""


class CurrentHead:
    """Stands for "whatever is newest" where a caller could name a predecessor or None."""

    def __repr__(self) -> str:
        return "<current head>"


CURRENT_HEAD = CurrentHead()


class _OwnHead(NamedTuple):
    """Where the last commit from here left a branch."""

    head: Head
    alone: bool
    """Whether the commit before it was from here too."""


class KernelBase:
    """One tenant's part of a store, as the verbs see it."""

    def __init__(
        self,
        catalog: KernelCatalog,
        tenant: TenantId,
        *,
        blocks: BlockStore,
        trees: Trees,
        committer: Committer,
        checkpoints: Checkpoints,
        clock: Clock,
        place_segment: PlaceSegment | None = None,
    ) -> None:
        self._catalog = catalog
        self._tenant = tenant
        self._blocks = blocks
        self._trees = trees
        self._committer = committer
        self._checkpoints = checkpoints
        self._clock = clock
        self._place_segment = place_segment
        self._manifests: dict[BlockId, Manifest] = {}
        self._lists: dict[BlockId, SegmentList] = {}
        self._own_heads: dict[BranchKey, _OwnHead] = {}

    def _commit(
        self, key: BranchKey, expected: BlockId | CurrentHead | None, propose: Callable[[Head | None], Proposal]
    ) -> Outcome:
        """Commit on the expected head, or on whatever is newest, again and again until nobody was faster. A proposal
        that cannot be made at all raises anything but HeadMoved."""
        carried = Carried()
        try:
            return self._commit_carrying(carried, key, expected, propose)
        except Exception as exc:
            self._blocks.give_up(carried.uploads, exc)
            raise

    def _commit_carrying(
        self,
        carried: Carried,
        key: BranchKey,
        expected: BlockId | CurrentHead | None,
        propose: Callable[[Head | None], Proposal],
    ) -> Outcome:
        guess = self._guessed_head(key, expected)
        if guess is not None:
            outcome = self._commit_on_guess(guess, propose, carried)
            if outcome is not None:
                return outcome
            self._own_heads.pop(key, None)
        for attempt in self._attempts(key):
            head = self._head_after_pending(key) if attempt == 0 else self._catalog.head(self._tenant, key)
            if not isinstance(expected, CurrentHead) and (None if head is None else head.manifest) != expected:
                raise _moved(key, expected, head)
            # A journal record alone (a tag, a decision) moves the tip but not the manifest: that is no conflict either.
            with suppress(HeadMoved):
                return self._committed(head, self._committer.commit(propose(head), carried))
        raise AssertionError("unreachable")

    def _attempts(self, key: BranchKey) -> Iterator[int]:
        return attempts(self._clock, f"{place(key)} changes too fast to save")

    def _guessed_head(self, key: BranchKey, expected: BlockId | CurrentHead | None) -> Head | None:
        """Where a branch stands if nobody else works on it: where the last commit from here left it. The commit
        compares, so a wrong guess costs time and nothing else; a right one saves a look before every commit."""
        own = self._own_heads.get(key)
        if own is None or not own.alone or not (isinstance(expected, CurrentHead) or own.head.manifest == expected):
            return None
        return own.head

    def _commit_on_guess(
        self, guess: Head, propose: Callable[[Head | None], Proposal], carried: Carried
    ) -> Outcome | None:
        """None when the guess is wrong, or may be: then the real head tells."""
        try:
            proposal = propose(guess).as_guess()
        except AnalemmaError:
            return None
        try:
            return self._committed(guess, self._committer.commit(proposal, carried))
        except (HeadMoved, Expired):
            return None

    def _committed(self, before: Head | None, outcome: Outcome) -> Outcome:
        if outcome.manifest is not None:
            self._remember_manifest(outcome.receipt.manifest, outcome.manifest)
            key = outcome.head.key
            own = self._own_heads.get(key)
            if len(self._own_heads) >= REMEMBERED_HEADS:
                self._own_heads.clear()
            self._own_heads[key] = _OwnHead(outcome.head, alone=before == (None if own is None else own.head))
        return outcome

    def _head_after_pending(self, key: BranchKey) -> Head | None:
        """Where a branch stands once everything that was accepted for it before now is applied."""
        head, pending = self._catalog.head_and_pending(self._tenant, key)
        if not pending:
            return head
        self._checkpoints.finish(key)
        return self._catalog.head(self._tenant, key)

    def _read_manifest(self, manifest: BlockId) -> Manifest:
        known = self._manifests.get(manifest)
        if known is None:
            known = self._guarded(manifest, lambda: decode_manifest(manifest, self._blocks.fetch([manifest])[manifest]))
            self._remember_manifest(manifest, known)
        return known

    def _remember_manifest(self, manifest: BlockId, known: Manifest) -> None:
        # Most saves build on the manifest that the save before them made.
        if len(self._manifests) >= REMEMBERED_MANIFESTS:
            self._manifests.clear()
        self._manifests[manifest] = known

    def _guarded(self, manifest: BlockId, read: Callable[[], T]) -> T:
        """Read something of a version. A block that is gone means damage, unless the version itself went meanwhile."""
        try:
            return read()
        except Corrupt as exc:
            if exc.facts.get("missing") and self._catalog.manifest(self._tenant, manifest) is None:
                raise Expired(f"manifest {manifest.hex()} has expired", manifest=manifest.hex()) from exc
            raise

    def _row(self, manifest_id: str, owner_id: str | None) -> ManifestRow:
        manifest = parse_block_id(manifest_id)
        row = self._catalog.manifest(self._tenant, manifest)
        if row is None:
            gone = self._catalog.expired(self._tenant, manifest)
            if gone is not None and owner_id in (None, gone.key.owner):
                raise expired(gone)
        if row is None or (owner_id is not None and row.key.owner != owner_id):
            raise NotFound(f"there is no manifest {manifest_id}", manifest=manifest_id)
        return row

    def _version_row(self, key: BranchKey, version: int) -> ManifestRow:
        check_version(version)
        rows = self._catalog.history(self._tenant, key, before_version=version + 1, limit=1)
        if not rows or rows[0].version != version:
            gone = self._catalog.expired_version(self._tenant, key, version)
            if gone is not None:
                raise expired(gone)
            newest = self._head(key).version
            raise NotFound(f"{place(key)} has no version {version}", hint=f"its newest is {newest}", version=version)
        return rows[0]

    def _head(self, key: BranchKey) -> Head:
        head = self._catalog.head(self._tenant, key)
        if head is None:
            raise NotFound(f"there is no {place(key)}", hint="check the owner, the workflow and the branch")
        return head


def expired(gone: ExpiredRow) -> Expired:
    """What whoever asks for a version that expired is told."""
    return Expired(
        f"version {gone.version} of {place(gone.key)} has expired",
        hint="tag or pin versions that must stay",
        manifest=gone.manifest.hex(),
        version=gone.version,
        expired_at_us=gone.expired_at_us,
    )


def field_path(name: str) -> Path:
    """A field's name, or a JSON pointer when it starts with a slash."""
    return parse_pointer(name) if name.startswith("/") else (name,)


def place(key: BranchKey) -> str:
    """A branch as messages name it."""
    return f"workflow {key.owner}/{key.workflow}" + ("" if key.branch == MAIN else f" on branch {key.branch}")


def _moved(key: BranchKey, expected: BlockId | CurrentHead | None, found: Head | None) -> HeadMoved:
    if not isinstance(expected, bytes):
        message = f"{place(key)} exists already" if found is not None else f"there is no {place(key)}"
    elif found is None:
        message = f"{place(key)} has no version yet, so none to build on"
    else:
        message = f"{place(key)} has moved on from manifest {expected.hex()[:12]}: it is at version {found.version}"
    return HeadMoved(message, hint="reload and retry", key=key, expected=expected, found=found)
