"""The kernel: its verbs by name, and what they share: finding heads and versions, reading through expiry, committing on
whatever is newest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple, TypeVar

from analemma.blocks.store import Carried
from analemma.canon.identity import BlockId, parse_block_id
from analemma.catalog.port import (
    BranchKey,
    Head,
    JournalRow,
    KernelCatalog,
    RecordRequest,
    Version,
)
from analemma.clock import attempts
from analemma.context import Context
from analemma.errors import AnalemmaError, Conflict, Corrupt, Expired, HeadMoved, NotFound
from analemma.state import (
    checkpoints,
    history,
    load,
    merge,
    refs,
    retention,
    rollback,
    save,
    segments,
    workflows,
)
from analemma.state.arguments import CurrentHead, check_version, expired, place
from analemma.state.checkpointing import Checkpoints
from analemma.state.committer import Committer, Outcome, Proposal
from analemma.state.records import Manifest, Note, decode_manifest, next_record
from analemma.state.segment_lists import SegmentList
from analemma.state.segments import PlaceSegment

T = TypeVar("T")

REMEMBERED_MANIFESTS = 256
"""Decoded manifests that a kernel keeps: a few hundred bytes each, and what they say can never change."""
REMEMBERED_HEADS = 1024
"""Branches of which a kernel remembers where it left them."""


class _OwnHead(NamedTuple):
    """Where the last commit from here left a branch."""

    head: Head
    alone: bool
    """Whether the commit before it was from here too."""


class Kernel:
    """State of one tenant's workflows. A workflow is (owner, workflow id); it has branches, and a branch has versions.

    >>> import analemma
    >>> app = analemma.open("sqlite:///:memory:")
    >>> first = app.kernel.save_state_delta({"n": 1, "plan": ["a"]}, workflow_id="trip", owner_id="ann")
    >>> second = app.kernel.save_state_delta({"/plan/0": "b"}, workflow_id="trip", owner_id="ann")
    >>> app.kernel.diff(first.manifest_id, second.manifest_id)
    [{'op': 'replace', 'path': '/plan/0', 'value': 'b'}]
    >>> app.kernel.rollback_to_version(workflow_id="trip", owner_id="ann", version=1).version
    3
    >>> app.close()
    """

    save_state_delta = save.save_state_delta
    load_latest_state = load.load_latest_state
    load_state = load.load_state
    load_fields = load.load_fields
    diff = history.diff
    blame = history.blame
    watch = history.watch
    verify = history.verify
    verify_manifest_integrity = history.verify_manifest_integrity
    history = history.history
    checkpoint_async = checkpoints.checkpoint_async
    ticket = checkpoints.ticket
    wait_for = checkpoints.wait_for
    load_state_with_consistency = checkpoints.load_state_with_consistency
    rollback_to_version = rollback.rollback_to_version
    last_safe_manifest = rollback.last_safe_manifest
    rollback_to_last_safe = rollback.rollback_to_last_safe
    fork = rollback.fork
    merge = merge.merge
    create_manifest = segments.create_manifest
    get_manifest = segments.get_manifest
    load_workflow_config = segments.load_workflow_config
    load_segment_manifest = segments.load_segment_manifest
    verify_segment_config = segments.verify_segment_config
    inject_dynamic_segment = segments.inject_dynamic_segment
    tag = refs.tag
    untag = refs.untag
    tags = refs.tags
    pin = refs.pin
    unpin = refs.unpin
    pins = refs.pins
    decide = refs.decide
    decisions = refs.decisions
    list_workflows = workflows.list_workflows
    get_workflow = workflows.get_workflow
    set_workflow = workflows.set_workflow
    branches = workflows.branches
    children = workflows.children
    set_retention = retention.set_retention
    get_retention = retention.get_retention
    expire = retention.expire
    expire_all = retention.expire_all

    def __init__(
        self,
        context: Context,
        committer: Committer,
        checkpoints: Checkpoints,
        place_segment: PlaceSegment | None = None,
    ) -> None:
        self._catalog: KernelCatalog = context.catalog
        self._tenant = context.tenant
        self._blocks = context.blocks
        self._trees = context.trees
        self._clock = context.clock
        self._committer = committer
        self._checkpoints = checkpoints
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

    def _row(self, manifest_id: str, owner_id: str | None) -> Version:
        manifest = parse_block_id(manifest_id)
        row = self._catalog.manifest(self._tenant, manifest)
        if row is None:
            gone = self._catalog.expired(self._tenant, manifest)
            if gone is not None and owner_id in (None, gone.key.owner):
                raise expired(gone)
        if row is None or (owner_id is not None and row.key.owner != owner_id):
            raise NotFound(f"there is no manifest {manifest_id}", manifest=manifest_id)
        return row

    def _version_row(self, key: BranchKey, version: int) -> Version:
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

    def _record(
        self, key: BranchKey, propose: Callable[[int], Note | None], *, again_on_conflict: bool = True
    ) -> JournalRow | None:
        """Append what `propose(now_us)` says, asking again until nobody was faster; None: there is nothing to do.

        A commit on the branch moves the tip under us all the time, and changes nothing that a record says."""
        for _ in attempts(self._clock, f"{place(key)} changes too fast to record anything"):
            # Before what the proposal reads: then the compare-and-set covers that too.
            head = self._head(key)
            now_us = self._clock.now_us()
            note = propose(now_us)
            if note is None:
                return None
            record = next_record(key, head, kind=note.kind, manifest=note.manifest, at_us=now_us, facts=note.facts)
            try:
                self._catalog.append(RecordRequest(self._tenant, head, record, note.procedure, note.details))
                return record
            except HeadMoved:
                pass
            except Conflict:
                if not again_on_conflict:
                    raise
        raise AssertionError("unreachable")


def _moved(key: BranchKey, expected: BlockId | CurrentHead | None, found: Head | None) -> HeadMoved:
    if not isinstance(expected, bytes):
        message = f"{place(key)} exists already" if found is not None else f"there is no {place(key)}"
    elif found is None:
        message = f"{place(key)} has no version yet, so none to build on"
    else:
        message = f"{place(key)} has moved on from manifest {expected.hex()[:12]}: it is at version {found.version}"
    return HeadMoved(message, hint="reload and retry", key=key, expected=expected, found=found)
