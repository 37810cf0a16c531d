"""Turning a new tree into a new version: manifest, journal record and head, in the catalog's one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from analemma.blocks.store import Carried
from analemma.canon.identity import BlockId
from analemma.canon.nodes import Block
from analemma.canon.trees import Edited
from analemma.canon.values import Wire
from analemma.catalog.port import (
    BranchKey,
    CommitRequest,
    Committed,
    Head,
    Idempotency,
    KernelCatalog,
    OutboxEvent,
    RowChange,
)
from analemma.context import Context
from analemma.state.arguments import branch_key, check_message, check_name, check_segment
from analemma.state.events import Announcing
from analemma.state.records import (
    COMMITTED,
    Commit,
    Manifest,
    Receipt,
    decode_receipt,
    encode_manifest,
    encode_receipt,
    next_record,
)

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
    guessed: bool = False
    """Whether `expected` was not read but guessed: then HeadMoved is also raised when deltas wait in the ledger. The
    last field: see below."""

    def as_guess(self) -> Proposal:
        """The same on a head that was guessed. Every save asks for this, and `_replace` would take ten times as
        long."""
        return Proposal._make((*self[:-1], True))


class Outcome(NamedTuple):
    """A commit's receipt, and what it cost."""

    receipt: Receipt
    head: Head
    committed: Committed
    blocks_emitted: int
    bytes_written: int
    object_keys: tuple[str, ...]
    manifest: Manifest | None = None
    """None when an earlier request under the same key had made the commit."""


class Draft(NamedTuple):
    """A proposal, ready for the catalog."""

    request: CommitRequest
    receipt: Receipt
    manifest: Manifest
    emitted: tuple[Block, ...]
    object_keys: tuple[str, ...]


class Committer:
    """Commits proposals of one tenant."""

    def __init__(self, context: Context, announcing: Announcing | None = None) -> None:
        """`announcing` tells what else is to know of a commit."""
        self._catalog: KernelCatalog = context.catalog
        self._tenant = context.tenant
        self._blocks = context.blocks
        self._clock = context.clock
        self._entropy = context.entropy
        self._announcing = announcing

    def commit(self, proposal: Proposal, carried: Carried | None = None) -> Outcome:
        """Make the proposal the branch's new head, durably; HeadMoved, with nothing changed, if the head is another by
        now. What an attempt that lost had uploaded is kept in `carried` for the next."""
        draft = self.draft(proposal, carried)
        request = draft.request
        committed = self._catalog.commit(request)
        if committed.replayed and committed.receipt is not None:
            receipt = decode_receipt(committed.receipt)
            return Outcome(receipt, _head_of(receipt), committed, 0, 0, ())
        self.announced(request.events)
        self._blocks.remember(draft.emitted)
        written = sum([row.length or len(row.body or b"") for row in request.blocks if row.id in committed.stored])
        return Outcome(
            draft.receipt, request.head, committed, len(draft.emitted), written, draft.object_keys, draft.manifest
        )

    def draft(self, proposal: Proposal, carried: Carried | None = None) -> Draft:
        """Make everything that the commit will store; large blocks are uploaded, and nothing counts yet."""
        check_proposal(proposal)
        expected = proposal.expected
        now_us = self._clock.now_us()
        manifest = Manifest(
            key=proposal.key,
            version=proposal.version if expected is None else expected.version + 1,
            parent=proposal.parent if expected is None else expected.manifest,
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
            expected,
            kind=proposal.kind,
            manifest=block.id,
            at_us=now_us,
            version=manifest.version,
            facts=proposal.facts,
        )
        head = Head(proposal.key, block.id, manifest.version, record.seq, record.hash)
        receipt = Receipt(
            proposal.key, block.id, manifest.version, manifest.parent, manifest.root.id, record.seq, record.hash
        )
        idempotency = None
        if proposal.idempotency_key is not None:
            idempotency = Idempotency(proposal.idempotency_key, proposal.fingerprint, encode_receipt(receipt))
        request = CommitRequest(
            tenant=self._tenant,
            expected=expected,
            head=head,
            manifest=manifest.row(block.id),
            journal=(record,),
            blocks=prepared.rows,
            bases=_bases(proposal),
            uploads=prepared.uploads,
            events=(*self._events(head), *proposal.events),
            idempotency=idempotency,
            unless_pending=proposal.guessed,
            rows=() if proposal.rows is None else tuple(proposal.rows(block.id)),
        )
        return Draft(request, receipt, manifest, emitted, prepared.object_keys)

    def removal_events(self, keys: Iterable[BranchKey]) -> tuple[OutboxEvent, ...]:
        """What is told with branches that go."""
        return () if self._announcing is None else self._announcing.removed(keys)

    def announced(self, events: Iterable[OutboxEvent]) -> None:
        """These are committed: whoever delivers them need not wait for the next look."""
        if self._announcing is not None and any(True for _ in events):
            self._announcing.wake()

    def _events(self, head: Head) -> tuple[OutboxEvent, ...]:
        if self._announcing is None:
            return ()
        return self._announcing.committed(head.key, head.manifest, head.version)


def check_proposal(proposal: Proposal) -> None:
    """Raise Invalid for what no catalog would take, before anything is uploaded."""
    branch_key(proposal.key.owner, proposal.key.workflow, proposal.key.branch)
    if proposal.execution is not None:
        check_name(proposal.execution, "execution")
    if proposal.idempotency_key is not None:
        check_name(proposal.idempotency_key, "idempotency key")
    if proposal.message is not None:
        check_message(proposal.message)
    if proposal.segment is not None:
        check_segment(proposal.segment)


def _bases(proposal: Proposal) -> tuple[BlockId, ...]:
    parent = () if proposal.expected is None else (proposal.expected.manifest,)
    return tuple(dict.fromkeys((*parent, *proposal.bases)))


def _head_of(receipt: Receipt) -> Head:
    return Head(receipt.key, receipt.manifest, receipt.version, receipt.journal_seq, receipt.journal_tip)


def commit_of(outcome: Outcome) -> Commit:
    """The caller's view of what was done."""
    stored = sorted(outcome.committed.stored)
    return Commit.of(
        outcome.receipt,
        block_ids=tuple(block.hex() for block in stored),
        blocks_stored=len(stored),
        blocks_reused=max(0, outcome.blocks_emitted - len(stored)),
        bytes_written=outcome.bytes_written,
        object_paths=outcome.object_keys,
    )
