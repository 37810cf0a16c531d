"""Turning pending deltas into versions: many branches at a time, each in the order of its ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from analemma.blocks.store import BlockStore, Carried
from analemma.canon.identity import BlockId
from analemma.canon.nodes import Block, node_link_ids
from analemma.canon.read import Loaded, NodeCache
from analemma.canon.trees import Edited, Trees
from analemma.catalog.kernel.ledger_port import BranchSettlement, LedgerCatalog, PendingEntry, Settlement
from analemma.catalog.port import BranchKey, Head, Idempotency, TenantId
from analemma.context import Context
from analemma.errors import AnalemmaError, Conflict, Corrupt, Invalid, Limit, OutcomeUnknown, Unavailable
from analemma.state.arguments import other_request
from analemma.state.commits import Commits, Draft, Proposal, check_proposal
from analemma.state.pending_deltas import PendingDelta, unpack_delta
from analemma.state.records import Manifest, decode_manifest, encode_receipt
from analemma.state.save import apply_update
from analemma.state.tickets import write_failure

MOST_ENTRIES = 128
"""Versions per transaction: more gain little and make everyone else wait."""
MOST_BYTES = 8 << 20
"""Stored bytes of deltas per transaction, unless one alone is larger."""
MOST_UNPACKED_BYTES = 64 << 20
"""The same as they were before compression: all of it is in memory until the transaction ends."""


@dataclass(slots=True)
class Pass:
    """What one attempt found and did."""

    seen: int = 0
    settled: int = 0
    unsettled: dict[BranchKey, AnalemmaError | None] = field(default_factory=dict)
    """Branches of which nothing was settled: someone else was faster (None), or this is in the way."""
    more: bool = False
    """There may be further entries: the pass took as many as one transaction should hold."""


@dataclass(slots=True)
class _Branch:
    """Versions of one branch on their way into one transaction."""

    settlement: BranchSettlement
    drafts: list[Draft]


class Applier:
    """Applies what is pending in one tenant. Any number may do so at once, here and in other processes: an entry leaves
    the ledger in the transaction that makes its version, and a branch whose head moved meanwhile is built again."""

    def __init__(self, context: Context, committer: Commits) -> None:
        self._catalog: LedgerCatalog = context.catalog
        self._tenant = context.tenant
        self._blocks = context.blocks
        self._trees = context.trees
        self._committer = committer

    def apply(self, keys: Sequence[BranchKey], *, through: int | None = None) -> Pass:
        """Apply the next entries of these branches, up to `through`, in one transaction. What is in the way of one
        branch is in the way of no other."""
        entries = self._catalog.pending_entries(
            self._tenant, keys, through=through, most_entries=MOST_ENTRIES, most_bytes=MOST_BYTES
        )
        more = len(entries) >= MOST_ENTRIES or _bytes(entries) >= MOST_BYTES
        fitting = _fitting(entries)
        done = Pass(seen=len(fitting), more=more or len(fitting) < len(entries))
        entries = fitting
        if not entries:
            return done
        by_key: dict[BranchKey, list[PendingEntry]] = {}
        for entry in entries:
            by_key.setdefault(entry.entry.key, []).append(entry)
        # After the entries: whatever was applied before they were read is in these heads.
        heads = self._catalog.heads(self._tenant, list(by_key))
        known = self._catalog.known_requests(self._tenant, entries)
        batch = _Batch(self._tenant, self._blocks, self._trees, self._committer, known)
        batch.warm(heads.values())
        branches: list[_Branch] = []
        for key in sorted(by_key):
            try:
                branch = batch.build(key, heads.get(key), by_key[key])
            except AnalemmaError as exc:
                done.unsettled[key] = exc
                continue
            done.more = done.more or len(branch.settlement.steps) < len(by_key[key])
            if branch.settlement.steps:
                branches.append(branch)
        self._settle(branches, done)
        return done

    def _settle(self, branches: Sequence[_Branch], done: Pass) -> None:
        if not branches:
            return
        try:
            answers = self._catalog.settle(self._tenant, [branch.settlement for branch in branches])
        except AnalemmaError as exc:
            if len(branches) > 1 and not isinstance(exc, OutcomeUnknown):
                # One of them is refused; by themselves the others are not.
                for branch in branches:
                    self._settle([branch], done)
                return
            self._refused(branches, exc, done)
            return
        for branch, settled in zip(branches, answers, strict=True):
            if not settled:
                done.unsettled[branch.settlement.key] = None
                self._give_up(branch.drafts, Conflict("someone else was faster"))
                continue
            done.settled += len(branch.settlement.steps)
            self._blocks.remember([block for draft in branch.drafts for block in draft.emitted])
            self._committer.announced(event for draft in branch.drafts for event in draft.request.events)

    def _refused(self, branches: Sequence[_Branch], exc: AnalemmaError, done: Pass) -> None:
        first = branches[0]
        key, expected, steps = first.settlement.key, first.settlement.expected, first.settlement.steps
        if not isinstance(exc, Invalid | Limit):
            # Someone else was faster, or the answer was lost: the ledger knows, and is asked again.
            cause = None if isinstance(exc, Conflict | OutcomeUnknown) else exc
            done.unsettled.update({branch.settlement.key: cause for branch in branches})
            for branch in branches:
                self._give_up(branch.drafts, exc)
        elif len(steps) > 1:
            drafts = first.drafts[:1] if steps[0].commit is not None else []
            self._give_up(first.drafts[len(drafts) :], exc)
            self._settle([_Branch(BranchSettlement(key, expected, steps[:1]), drafts)], done)
            done.more = True
        else:
            self._give_up(first.drafts, exc)
            failed = Settlement(steps[0].seq, failure=write_failure(exc))
            answers = self._catalog.settle(self._tenant, [BranchSettlement(key, expected, (failed,))])
            done.settled += sum(answers)

    def _give_up(self, drafts: Sequence[Draft], exc: AnalemmaError) -> None:
        """What was uploaded for them will be uploaded again."""
        self._blocks.give_up([upload for draft in drafts for upload in draft.request.uploads], exc)


class _Batch:
    """Builds the versions of one transaction. They can be read before they are stored: each is built on the one
    before."""

    def __init__(
        self,
        tenant: TenantId,
        blocks: BlockStore,
        trees: Trees,
        committer: Commits,
        known: Mapping[int, Idempotency],
    ) -> None:
        self._tenant = tenant
        self._blocks = blocks
        self._trees = trees
        self._committer = committer
        self._known = known
        self._made: dict[BlockId, bytes] = {}
        self._manifests: dict[BlockId, Manifest] = {}
        self._asked: dict[tuple[str, str, str], BranchKey] = {}
        """Which branch has an entry under each idempotency key of a workflow."""

    def warm(self, heads: Iterable[Head]) -> None:
        """Read the manifests and roots of all branches in two rounds. Damage is met again, and reported, where it is
        in the way."""
        try:
            data = self._blocks.fetch([head.manifest for head in heads])
            self._manifests = {each: decode_manifest(each, data[each]) for each in data}
            self._blocks.fetch([manifest.root.id for manifest in self._manifests.values()])
        except AnalemmaError:
            pass

    def build(self, key: BranchKey, head: Head | None, entries: Sequence[PendingEntry]) -> _Branch:
        """The next versions of one branch. Deltas that can never be applied become failures; anything else that goes
        wrong with the first is raised and leaves the branch as it is, with a later one it ends the list."""
        expected, manifest = head, None if head is None else self._manifest(head.manifest)
        steps: list[Settlement] = []
        drafts: list[Draft] = []
        answered: dict[str, Idempotency] = {}
        nodes = _BranchNodes(self._trees.nodes)
        trees = Trees(self._fetch, self._trees.registry, self._trees.unknown, nodes)
        for entry in entries:
            asked = entry.entry.idempotency_key
            if asked is not None:
                if self._asked.setdefault((key.owner, key.workflow, asked), key) != key:
                    # Only one of two branches can have it, and which one is known after this transaction.
                    break
                before = self._known.get(entry.seq) or answered.get(asked)
                if before is not None:
                    steps.append(_replayed(entry, before))
                    continue
            try:
                delta = unpack_delta(entry.entry.delta)
            except Corrupt as exc:
                steps.append(Settlement(entry.seq, failure=write_failure(exc)))
                continue
            try:
                tree = apply_update(trees, None if manifest is None else manifest.root.id, delta.update)
                draft = self._draft(_proposal(entry, delta, tree, head, manifest))
            except (Invalid, Limit) as exc:
                steps.append(Settlement(entry.seq, failure=write_failure(exc)))
                continue
            except AnalemmaError:
                if not steps:
                    raise
                # Those before it need not wait for what is in its way, nor be uploaded again each time it is tried.
                break
            receipt = encode_receipt(draft.receipt)
            steps.append(Settlement(entry.seq, draft.request, receipt))
            drafts.append(draft)
            self._made.update({block.id: block.data for block in draft.emitted})
            head, manifest = draft.request.head, draft.manifest
            if draft.request.idempotency is not None:
                answered[draft.request.idempotency.key] = draft.request.idempotency
        if manifest is not None:
            nodes.hand_on(manifest.root.id)
        return _Branch(BranchSettlement(key, expected, tuple(steps)), drafts)

    def _draft(self, proposal: Proposal) -> Draft:
        check_proposal(proposal)
        try:
            return self._committer.draft(proposal, Carried())
        except Invalid as exc:
            # guard: checkpoint.kept.writing
            raise _in_the_way(exc) from exc

    def _manifest(self, manifest: BlockId) -> Manifest:
        known = self._manifests.get(manifest)
        return known or decode_manifest(manifest, self._fetch([manifest])[manifest])

    def _fetch(self, blocks: Sequence[BlockId]) -> dict[BlockId, bytes]:
        found = {block: self._made[block] for block in blocks if block in self._made}
        missing = [block for block in blocks if block not in found]
        try:
            return found | self._blocks.fetch(missing) if missing else found
        except (Invalid, Limit) as exc:
            # guard: checkpoint.kept.reading
            raise _in_the_way(exc) from exc


class _BranchNodes(NodeCache):
    """The nodes that the versions of one branch are made of. Most are gone with the next version: in the cache that all
    branches share they would only take the place of what other branches begin with."""

    def __init__(self, shared: NodeCache | None) -> None:
        super().__init__()
        self._shared = shared

    def get(self, block: BlockId) -> Loaded | None:
        found = super().get(block)
        return found if found is not None or self._shared is None else self._shared.get(block)

    def hand_on(self, root: BlockId) -> None:
        """Leave those that the tree at `root` has to the next batch."""
        waiting = [root] if self._shared is not None else []
        while waiting:
            block = waiting.pop()
            found = self._loaded.pop(block, None)
            if found is not None and self._shared is not None:
                self._shared.put(block, found)
                waiting += node_link_ids(found.node)


def _proposal(
    entry: PendingEntry, delta: PendingDelta, tree: Edited, head: Head | None, base: Manifest | None
) -> Proposal:
    blocks: tuple[Block, ...] = (*tree.blocks, *delta.blocks)
    return Proposal(
        entry.entry.key,
        Edited(tree.root, blocks),
        head,
        execution=delta.execution,
        segment=delta.segment,
        message=delta.message,
        metadata=delta.metadata,
        config=None if base is None else base.config,
        segments=None if base is None else base.segments,
        idempotency_key=entry.entry.idempotency_key,
        fingerprint=entry.entry.fingerprint or b"",
    )


def _in_the_way(exc: AnalemmaError) -> Unavailable:
    """What this program's store says that is no fault of a delta's: it may be applied later, or by another program."""
    return Unavailable(exc.message, hint=exc.hint, **exc.facts)


def _replayed(entry: PendingEntry, before: Idempotency) -> Settlement:
    if before.fingerprint == entry.entry.fingerprint:
        return Settlement(entry.seq, receipt=before.receipt)
    return Settlement(entry.seq, failure=write_failure(other_request(before.key)))


def _fitting(entries: Sequence[PendingEntry]) -> list[PendingEntry]:
    """The first of them, by place, that fit into memory together; one at least."""
    fitting: list[PendingEntry] = []
    total = 0
    for entry in entries:
        total += entry.entry.delta.size
        # guard: checkpoint.memory
        if fitting and total > MOST_UNPACKED_BYTES:
            break
        fitting.append(entry)
    return fitting


def _bytes(entries: Sequence[PendingEntry]) -> int:
    return sum(len(entry.entry.delta.body) for entry in entries)
