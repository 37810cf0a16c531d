"""Bringing the changes of one line of history into another: from where the two come, and what that does. What they
share is not read."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from analemma.canon.nodes import BlockId, parse_block_id
from analemma.canon.pointer import Operation
from analemma.canon.trees import Edited
from analemma.catalog.port import BranchKey, Head, TenantId, Version, owner_of
from analemma.errors import Corrupt, Invalid, NotFound
from analemma.state.arguments import CURRENT_HEAD, MAIN, branch_key, check_name, place
from analemma.state.commits import Proposal
from analemma.state.history import patch_of
from analemma.state.records import DELETED, MERGED, Commit, Manifest, read_record

# What becomes of values is loaded by who merges: every program has the verb.
if TYPE_CHECKING:
    from analemma.catalog.sql_catalog import SqlCatalog
    from analemma.state.kernel import Kernel
    from analemma.state.merge.values import Strategies, Strategy

PAGE = 200
MOST_VERSIONS = 100_000
"""How many versions are looked at before two lines count as unrelated."""

Ancestor = Literal["found", "none", "expired", "too_far"]
"""Whether there is a version that two lines share, and if not, why."""
Move = tuple[BlockId, BlockId | None]
"""A version that became a branch's newest, and what was merged to make it, if it is a merge."""


@dataclass(frozen=True, slots=True)
class Merge:
    """What a merge did, or would do."""

    source_id: str
    """The manifest whose changes were merged in."""
    target_id: str
    """The manifest they were merged into."""
    base_id: str | None
    """The nearest version both come from; None: they were compared as if they had begun empty."""
    ancestor: Ancestor
    """Whether there is such a version, and if not, why."""
    fast_forward: bool
    """The target had no changes of its own, so its state is the source's now."""
    changes: list[dict[str, Any]]
    """How the target's state changes, as RFC 6902 operations."""
    decided: list[dict[str, Any]]
    """The conflicts that a strategy decided: path, base, ours and theirs, left out where nothing stands."""
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    """The conflicts that nothing decides; only a preview has any."""
    commit: Commit | None = None
    """The new version; None for a preview, and when the target had everything already."""


class _NothingNew(Exception):
    """Somebody else merged the same source while this merge was being tried again."""


def merge(
    kernel: Kernel,
    *,
    workflow_id: str,
    owner_id: str,
    source: str,
    into: str = MAIN,
    strategy: Strategy = "refuse",
    strategies: Mapping[str, Strategy] | None = None,
    message: str | None = None,
    preview: bool = False,
) -> Merge:
    """Bring what `source` (a branch, or a manifest id) has changed since the nearest common version into a branch.

    What one side changed is taken. Where both differ from that version, also if they are alike, `strategies` (by
    pattern) and `strategy` (everywhere else) decide: last_write_wins (theirs), ours, deep_merge, collect, for lists
    append, replace, dedupe_append, set_union, by_key("id"), or a function of base, ours and theirs. Without a
    strategy, what both changed alike stands, lists are merged by position where it is beyond doubt what became
    what, and the rest raises Conflict, with `conflicts`, and nothing changes. Reserved fields stay the target's.
    With `preview`, only say what would happen. Checkpoints that were accepted for either branch are applied first,
    for a preview too.
    """
    from analemma.state.merge.values import Strategies, refusal

    key = branch_key(owner_id, workflow_id, into)
    row = _source_row(kernel, key, source)
    theirs = kernel._commits.manifest(row.id)
    chosen = Strategies(strategy, strategies)
    head = kernel._commits.head_after_pending(key) or kernel._commits.head(key)
    plan, operations = _plan(kernel, head, row, theirs, chosen)
    if preview or plan.base_id == plan.source_id:
        return plan

    def propose(head: Head | None) -> Proposal:
        nonlocal plan, operations
        if head is None:
            raise NotFound(f"there is no {place(key)}", hint="fork the source instead")
        if head.manifest.hex() != plan.target_id:
            plan, operations = _plan(kernel, head, row, theirs, chosen)
        if plan.base_id == plan.source_id:
            raise _NothingNew
        if plan.conflicts:
            raise refusal(plan.conflicts)
        ours = kernel._commits.manifest(head.manifest)
        tree = Edited(theirs.root, ()) if plan.fast_forward else kernel._trees.edit(ours.root.id, operations)
        if tree.root.kind != "map":
            raise Invalid(
                "a strategy puts something else in the place of the state", hint="a state is a dict of fields"
            )
        return Proposal.on(
            ours,
            key,
            tree,
            head,
            bases=(row.id,),
            message=message or f"merge {source}",
            kind=MERGED,
            facts={"from": row.id.hex(), "source": source, "base": plan.base_id},
        )

    try:
        commit = kernel._commits.commit_next(key, CURRENT_HEAD, propose)
    except _NothingNew:
        return plan
    return replace(plan, commit=commit)


def _source_row(kernel: Kernel, key: BranchKey, source: str) -> Version:
    check_name(source, "source")
    if source == key.branch:
        raise Invalid(f"branch {source} cannot be merged into itself", hint="name another source")
    head = kernel._commits.head_after_pending(BranchKey(key.owner, key.workflow, source))
    if head is None and len(source) != 64:
        raise NotFound(f"workflow {key.owner}/{key.workflow} has no branch {source!r}", hint="or pass a manifest id")
    return kernel._row(source if head is None else head.manifest.hex(), key.owner)


def _plan(
    kernel: Kernel, head: Head, source: Version, theirs: Manifest, strategies: Strategies
) -> tuple[Merge, list[Operation]]:
    """What a merge into this head would do, and the operations of it."""
    from analemma.state.merge.values import Roots, merge_trees

    base, ancestor = Ancestry(kernel._catalog, kernel._tenant).nearest_common(head.manifest, source.id)
    base_id = None if base is None else base.id.hex()
    plan = Merge(source.id.hex(), head.manifest.hex(), base_id, ancestor, False, [], [])
    if plan.base_id == plan.source_id:
        return plan, []
    roots = Roots(None if base is None else base.root, kernel._commits.manifest(head.manifest).root.id, theirs.root.id)
    read = partial(merge_trees, roots, kernel._trees, strategies)
    for manifest in (head.manifest, source.id, *([] if base is None else [base.id])):
        read = partial(kernel._commits.guarded, manifest, read)
    resolution, fast_forward = read()
    plan = replace(
        plan,
        fast_forward=fast_forward,
        changes=[patch_of(operation) for operation in resolution.operations],
        decided=[clash.shown() for clash in resolution.decided],
        conflicts=[clash.shown() for clash in resolution.undecided],
    )
    return plan, resolution.operations


_OURS, _THEIRS, _BOTH = 1, 2, 3


class Ancestry:
    """Walks back from versions; rows are read by the page, and once."""

    def __init__(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        self._catalog = catalog
        self._tenant = tenant
        self._rows: dict[BlockId, Version | None] = {}
        self._moves: dict[BranchKey, tuple[dict[BlockId, BlockId | None], Iterator[Move]]] = {}
        """What is known so far of each branch, by what is read of its journal, and what is not read yet."""

    def nearest_common(self, ours: BlockId, theirs: BlockId) -> tuple[Version | None, Ancestor]:
        """The newest version from which both come, by parents and by what was merged into them."""
        marks: dict[BlockId, int] = {}
        heap: list[tuple[int, int, BlockId]] = []
        expired = False
        visited = 0

        def reach(manifest: BlockId, mark: int) -> bool:
            row = self._row(manifest)
            before = marks.get(manifest, 0)
            if row is not None and before | mark != before:
                marks[manifest] = before | mark
                # Newest first, so that a long line is not walked past the place where the other one left it.
                heapq.heappush(heap, (-row.created_at_us, -row.version, manifest))
            return row is not None

        reach(ours, _OURS)
        reach(theirs, _THEIRS)
        while heap:
            manifest = heapq.heappop(heap)[2]
            row, mark = self._row(manifest), marks[manifest]
            if mark == _BOTH:
                return row, "found"
            visited += 1
            if visited > MOST_VERSIONS:
                return None, "too_far"
            if row is None:
                continue
            for parent in (row.parent, self._merged_into(row)):
                if parent is not None and not reach(parent, mark):
                    expired = True
        return None, "expired" if expired else "none"

    def _row(self, manifest: BlockId) -> Version | None:
        if manifest not in self._rows:
            row = self._rows[manifest] = self._catalog.manifest(self._tenant, manifest)
            if row is not None:
                older = self._catalog.history(self._tenant, row.key, before_version=row.version, limit=PAGE)
                self._rows.update({each.id: each for each in older})
        return self._rows[manifest]

    def _merged_into(self, row: Version) -> BlockId | None:
        """The version that was merged into this one's parent to make it, if it is a merge."""
        known, unread = self._moves.setdefault(row.key, ({}, self._read_moves(row.key)))
        try:
            while row.id not in known:
                manifest, source = next(unread)
                known[manifest] = source
        except StopIteration:
            return None
        except Corrupt:
            if self._catalog.manifest(self._tenant, row.id) is not None:  # guard: merge.journal
                raise
            return None
        return known[row.id]

    def _read_moves(self, key: BranchKey) -> Iterator[Move]:
        """What the journal of a branch says of how it was made, from its end back to its beginning."""
        # The journal of a deleted branch stays under the name that it had.
        journal = key._replace(owner=owner_of(key.owner))
        # Without a head, others are forked from a branch that cannot be had back: later lives of its name, if there are
        # any, are walked past.
        head, last = self._catalog.head(self._tenant, key), 0
        if head is not None:
            last = head.journal_seq
        elif (end := self._catalog.last_record(self._tenant, journal)) is not None:
            last = end.seq
        begins = False
        while last:
            start = max(0, last - PAGE)
            records = self._catalog.journal(self._tenant, journal, after_seq=start, limit=last - start)
            first = records[0].seq if records else last + 1
            if records:
                # A journal begins with the first record, or with a tombstone.
                begins = first == 1 or records[0].kind == DELETED
            if [each.seq for each in records] != [*range(first, last + 1)] or (first > start + 1 and not begins):
                # Nor is it looked for further down: a damaged head may count more records than there ever were.
                raise Corrupt(
                    f"the journal of {place(journal)} lacks records up to {last}",
                    hint="run verify, and restore the catalog from a backup",
                )
            for record in records:
                told = read_record(record)
                # Tags and decisions name a manifest too, but only a move of the head has a version.
                if record.manifest is not None and told["version"] is not None:
                    merged = parse_block_id(told["facts"]["from"]) if record.kind == MERGED else None
                    yield record.manifest, merged
            last = start if first == start + 1 else 0
