"""Turning a new tree into a new version: manifest, journal record and head, in the catalog's one transaction.

On the head that somebody expects, or on whatever is newest, again and again until nobody was faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from analemma.blocks.packs import pack_key
from analemma.blocks.store import Carried
from analemma.canon.nodes import Block, BlockId, Wire
from analemma.canon.trees import Edited
from analemma.catalog.port import (
    ASIDE,
    BranchKey,
    CommitRequest,
    Head,
    Idempotency,
    JournalRow,
    KernelCatalog,
    OutboxEvent,
    RecordRequest,
    RowChange,
)
from analemma.clock import attempts
from analemma.context import Context
from analemma.errors import AnalemmaError, Conflict, Corrupt, Expired, HeadMoved, NotFound, Timeout, Unavailable
from analemma.state.arguments import (
    CurrentHead,
    branch_key,
    check_said,
    other_request,
    place,
)
from analemma.state.events import Announcer
from analemma.state.records import (
    COMMITTED,
    DELETED,
    Commit,
    Manifest,
    Note,
    Receipt,
    decode_manifest,
    decode_receipt,
    encode_manifest,
    encode_receipt,
    next_record,
    read_record,
)

if TYPE_CHECKING:
    from analemma.state.checkpoints import Pending

T = TypeVar("T")

REMEMBERED_MANIFESTS = 256
"""Decoded manifests that are kept: a few hundred bytes each, and what they say can never change."""
REMEMBERED_HEADS = 1024
"""Branches of which it is remembered where they were left."""

_NO_FACTS: Mapping[str, Any] = MappingProxyType({})


# Named tuples, as everything that each save makes anew: they are made in a fraction of a frozen dataclass's time.
class Proposal(NamedTuple):
    """A version that someone would like to be the branch's next."""

    key: BranchKey
    tree: Edited
    expected: Head | None
    """The head it was built on; None: the branch is to begin with it."""
    bases: tuple[BlockId, ...] = ()
    """Manifests, besides the expected head, whose blocks the tree links without containing them."""
    parent: BlockId | None = None
    """Where a branch that begins comes from; otherwise the expected head is the parent."""
    version: int = 1
    """Where a branch that begins starts counting."""
    behind: Head | None = None
    """Where another branch of that name ended, which was deleted: one that begins goes on from there."""
    execution: str | None = None
    segment: int | None = None
    message: str | None = None
    metadata: Wire = None
    config: BlockId | None = None
    segments: BlockId | None = None
    kind: str = COMMITTED
    facts: Mapping[str, Any] = _NO_FACTS
    idempotency_key: str | None = None
    fingerprint: bytes = b""
    rows: Callable[[BlockId], Sequence[RowChange]] | None = None
    """What else becomes visible with the version, once its manifest is known."""
    events: tuple[OutboxEvent, ...] = ()
    """For the outbox, beside what is told of the commit itself."""

    @classmethod
    def on(cls, base: Manifest | None, key: BranchKey, tree: Edited, head: Head | None, **said: Any) -> Proposal:
        """One that keeps the configuration and the segments of the version it is built on."""
        config, segments = (None, None) if base is None else (base.config, base.segments)
        return cls(key, tree, head, config=config, segments=segments, **said)


class Draft(NamedTuple):
    """A proposal, ready for the catalog."""

    request: CommitRequest
    manifest: Manifest
    emitted: tuple[Block, ...]

    @property
    def receipt(self) -> Receipt:
        """What proves it, once it is committed."""
        return Receipt.of(self.request.manifest, self.request.record)


class Commits:
    """The versions that one tenant's programs make, and the records that they add. Safe to share between threads."""

    pending: Pending
    """What was accepted and is no version yet. It is applied by commits, so whoever makes both says so here."""

    def __init__(self, context: Context, announcer: Announcer) -> None:
        """The announcer tells what else is to know of a commit."""
        self._catalog: KernelCatalog = context.catalog
        self._tenant = context.tenant
        self._blocks = context.blocks
        self._clock = context.clock
        self._entropy = context.entropy
        self.announcer = announcer
        self._manifests: dict[BlockId, Manifest] = {}
        self._own_heads: dict[BranchKey, tuple[Head, bool]] = {}
        """Where the last commit from here left a branch, and whether the one before it was from here too."""

    def commit(self, proposal: Proposal, carried: Carried | None = None, *, guessed: bool = False) -> Commit:
        """Make the proposal the branch's new head, durably; HeadMoved, with nothing changed, if the head is another by
        now, or if it was not read but `guessed` and deltas are pending. What an attempt that lost had uploaded is kept
        in `carried` for the next."""
        branch_key(*proposal.key)
        check_said(proposal.execution, proposal.segment, proposal.message, proposal.idempotency_key)
        draft = self.draft(proposal, carried, guessed=guessed)
        request = draft.request
        try:
            stored, known = self._catalog.commit(request)
        except HeadMoved as exc:
            # There is no head, and yet none can begin as the first of its name: one was deleted.
            behind = None if proposal.expected or proposal.behind or exc.found else self.left_off(proposal.key)
            if behind is None:
                raise
            return self.commit(proposal._replace(behind=behind), carried)
        if known is not None:
            return Commit.of(decode_receipt(receipt_for(known, proposal.fingerprint)))
        if request.events:
            self.announcer.wake()
        self._blocks.remember(draft.emitted)
        self._remember(request.manifest.id, draft.manifest)
        key = proposal.key
        own, _ = self._own_heads.get(key, (None, False))
        if len(self._own_heads) >= REMEMBERED_HEADS:
            self._own_heads.clear()
        row, record = request.manifest, request.record
        self._own_heads[key] = Head(key, row.id, row.version, record.seq, record.hash), proposal.expected == own
        return Commit.of(
            draft.receipt,
            block_ids=tuple([block.hex() for block in sorted(stored)]),
            blocks_stored=len(stored),
            blocks_reused=max(0, len(draft.emitted) - len(stored)),
            bytes_written=sum([row.length or len(row.body or b"") for row in request.blocks if row.id in stored]),
            object_paths=tuple(map(pack_key, request.uploads)),
        )

    def commit_next(
        self,
        key: BranchKey,
        expected: BlockId | CurrentHead | None,
        propose: Callable[[Head | None], Proposal],
        asked: tuple[str | None, bytes] = (None, b""),
    ) -> Commit:
        """Commit on the expected head, or on whatever is newest, again and again until nobody was faster. A proposal
        that cannot be made at all raises anything but HeadMoved. Under the key in `asked`, which comes with what was
        asked for, it is done once."""
        known = self.known(key, *asked)
        if known is not None:
            return known
        carried = Carried()
        try:
            own, alone = self._own_heads.get(key, (None, False))
            # Where the branch stands if nobody else works on it: where the last commit from here left it. The commit
            # compares, so a wrong guess costs time and nothing else; a right one saves a look before every commit.
            if own is not None and alone and (isinstance(expected, CurrentHead) or own.manifest == expected):
                try:
                    guess = propose(own)
                except AnalemmaError:
                    guess = None  # The real head tells.
                if guess is not None:
                    with suppress(HeadMoved, Expired):
                        return self.commit(guess, carried, guessed=True)
                self.forget(key)
            for attempt in self.attempts(key):
                head = self.head_after_pending(key) if attempt == 0 else self._catalog.head(self._tenant, key)
                if not isinstance(expected, CurrentHead) and (None if head is None else head.manifest) != expected:
                    raise _moved(key, expected, head)
                # A journal record alone (a tag, a decision) moves the tip but not the manifest: that is no conflict
                # either.
                with suppress(HeadMoved):
                    return self.commit(propose(head), carried)
        except Exception as exc:
            self._blocks.give_up(carried.uploads, exc)
            # This very request may have been made from somewhere else a moment ago: then the head has moved, or what
            # was asked for fits no more.
            known = None if isinstance(exc, Unavailable | Timeout) else self.known(key, *asked)
            if known is None:
                raise
            return known
        raise AssertionError("unreachable")

    def attempts(self, key: BranchKey) -> Iterator[int]:
        """The attempts of whoever commits on what is newest."""
        return attempts(self._clock, f"{place(key)} changes too fast to save")

    def known(self, key: BranchKey, idempotency_key: str | None, fingerprint: bytes) -> Commit | None:
        """The commit that was made under an idempotency key; Conflict if it was another request's."""
        known = None if idempotency_key is None else self._catalog.receipt(self._tenant, key, idempotency_key)
        return None if known is None else Commit.of(decode_receipt(receipt_for(known, fingerprint)))

    def record(
        self, key: BranchKey, propose: Callable[[], Note | None], *, again_on_conflict: bool = True
    ) -> JournalRow | None:
        """Append what `propose` says, asking again until nobody was faster; None: there is nothing to do.

        A commit on the branch moves the tip under us all the time, and changes nothing that a record says."""
        if key.owner.startswith(ASIDE):
            # Versions of a deleted branch are there for those that were forked from them, but nothing happens to them.
            raise NotFound(f"{place(key)} was deleted", hint="have it back first, if its name was not used again")
        for _ in attempts(self._clock, f"{place(key)} changes too fast to record anything"):
            # Before what the proposal reads: then the compare-and-set covers that too.
            head = self.head(key)
            now_us = self._clock.now_us()
            note = propose()
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

    def head(self, key: BranchKey) -> Head:
        """Where a branch stands; NotFound if it does not."""
        head = self._catalog.head(self._tenant, key)
        if head is None:
            raise NotFound(f"there is no {place(key)}", hint="check the owner, the workflow and the branch")
        return head

    def head_after_pending(self, key: BranchKey) -> Head | None:
        """Where a branch stands once everything that was accepted for it before now is applied."""
        head, pending = self._catalog.head_and_pending(self._tenant, key)
        if not pending:
            return head
        self.pending.finish(key)
        return self._catalog.head(self._tenant, key)

    def manifest(self, manifest: BlockId) -> Manifest:
        """What the manifest of a version says that is known to be there."""
        known = self._manifests.get(manifest)
        if known is None:
            known = self.guarded(manifest, lambda: decode_manifest(manifest, self._blocks.fetch([manifest])[manifest]))
            self._remember(manifest, known)
        return known

    def guarded(self, manifest: BlockId, read: Callable[[], T]) -> T:
        """Read something of a version. A block that is gone means damage, unless the version itself went meanwhile."""
        try:
            return read()
        except Corrupt as exc:
            if exc.facts.get("missing") and self._catalog.manifest(self._tenant, manifest) is None:
                raise Expired(f"manifest {manifest.hex()} has expired", manifest=manifest.hex()) from exc
            raise

    def forget(self, key: BranchKey) -> None:
        """Do not guess where this branch stands: look."""
        self._own_heads.pop(key, None)

    def _remember(self, manifest: BlockId, known: Manifest) -> None:
        # Most saves build on the manifest that the save before them made.
        if len(self._manifests) >= REMEMBERED_MANIFESTS:
            self._manifests.clear()
        self._manifests[manifest] = known

    def draft(self, proposal: Proposal, carried: Carried | None = None, *, guessed: bool = False) -> Draft:
        """Make everything that the commit of a proposal that was checked will store; large blocks are uploaded, and
        nothing counts yet."""
        expected, version, parent = proposal.expected, proposal.version, proposal.parent
        if expected is not None:
            version, parent = expected.version + 1, expected.manifest
        elif proposal.behind is not None:
            version = max(version, proposal.behind.version + 1)  # guard: branch.counting
        now_us = self._clock.now_us()
        manifest = Manifest(
            key=proposal.key,
            version=version,
            parent=parent,
            root=proposal.tree.root,
            created_at_us=now_us,
            nonce=self._entropy.random_bytes(16),
            execution=proposal.execution,
            segment=proposal.segment,
            message=proposal.message,
            metadata=proposal.metadata,
            config=proposal.config,
            segments=proposal.segments,
        )
        block = encode_manifest(manifest)
        emitted = (*proposal.tree.blocks, block)
        prepared = self._blocks.prepare(emitted, proposal.key, proposal.execution, carried)
        record = next_record(
            proposal.key,
            expected or proposal.behind,
            kind=proposal.kind,
            manifest=block.id,
            at_us=now_us,
            version=version,
            facts=proposal.facts,
        )
        row, idempotency, events = manifest.row(block.id), None, proposal.events
        if proposal.idempotency_key is not None:
            receipt = encode_receipt(Receipt.of(row, record))
            idempotency = Idempotency(proposal.idempotency_key, proposal.fingerprint, receipt)
        if self._clock.monotonic() >= self.announcer.watch.idle_until_s:
            head = Head(row.key, row.id, version, record.seq, record.hash)
            events = (*self.announcer.committed([head]), *events)
        request = CommitRequest(
            tenant=self._tenant,
            expected=expected,
            manifest=row,
            record=record,
            blocks=prepared.rows,
            bases=proposal.bases,
            uploads=prepared.uploads,
            events=events,
            idempotency=idempotency,
            unless_pending=guessed,
            rows=() if proposal.rows is None else tuple(proposal.rows(block.id)),
        )
        return Draft(request, manifest, emitted)

    def left_off(self, key: BranchKey) -> Head | None:
        """Where a branch ended that was deleted, if one was: another of its name goes on from there."""
        row = self._catalog.last_record(self._tenant, key)
        if row is None or row.kind != DELETED or row.manifest is None:
            return None
        return Head(key, row.manifest, read_record(row)["facts"]["version"], row.seq, row.hash)


def receipt_for(known: Idempotency, fingerprint: bytes | None) -> bytes:
    """The receipt of what was committed under a key, for whoever asks for the same again; Conflict for others."""
    if known.fingerprint != fingerprint:  # guard: key.kernel
        raise other_request(known.key)
    return known.receipt


def _moved(key: BranchKey, expected: BlockId | None, found: Head | None) -> HeadMoved:
    if expected is None:
        message = f"{place(key)} exists already"
    elif found is None:
        message = f"{place(key)} has no version yet, so none to build on"
    else:
        message = f"{place(key)} has moved on from manifest {expected.hex()[:12]}: it is at version {found.version}"
    return HeadMoved(message, hint="reload and retry", key=key, expected=expected, found=found)
