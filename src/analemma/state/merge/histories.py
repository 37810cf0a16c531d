"""Bringing the changes of one line of history into another: from where the two come, what each changed since, and what
becomes of a place that both did. What they share is not read."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from analemma.canon.edit import Edited, Operation
from analemma.canon.identity import BlockId, parse_block_id
from analemma.canon.pointer import Path, format_pointer
from analemma.canon.read import MISSING, Nodes, Walk, container_kind, locate, step
from analemma.canon.trees import Trees
from analemma.catalog.port import BranchKey, Head, TenantId, Version
from analemma.errors import Corrupt, Invalid, NotFound
from analemma.state.arguments import CURRENT_HEAD, MAIN, branch_key, check_name, is_reserved, place
from analemma.state.commits import Proposal
from analemma.state.records import DELETED, MERGED, Commit, Manifest, read_record

# What becomes of values is loaded by who merges: every program has the verb.
if TYPE_CHECKING:
    from analemma.catalog.sql_catalog import SqlCatalog
    from analemma.state.kernel import Kernel
    from analemma.state.merge.values import Clash, Resolution, Strategies, Strategy

PAGE = 200
MOST_VERSIONS = 100_000
"""How many versions are looked at before two lines count as unrelated."""

Changes = Mapping[Path, Sequence[Operation]]
"""What one side changed, by place."""
ByPlace = Callable[[Trees, BlockId, Iterable[Operation]], Changes]


@dataclass(frozen=True, slots=True)
class Roots:
    """Three trees: where two sides come from (None: they are compared as if they had begun empty), and the sides."""

    base: BlockId | None
    ours: BlockId
    theirs: BlockId


def reconcile(
    roots: Roots,
    ours: Changes,
    theirs: Changes,
    trees: Trees,
    strategies: Strategies,
    *,
    rebase: bool = False,
) -> tuple[list[Operation], Resolution]:
    """The operations that bring what theirs changed to ours, and how conflicts were decided.

    Of a rebase, both sides having come to the same is a conflict like any other: two who counted from 1 to 2 would have
    counted once."""
    from analemma.state.merge.values import ABSENT, Clash, Comparison, compare, resolve

    our_places, their_places = _Touched(ours), _Touched(theirs)
    contested = [path for path in _outermost([*ours, *theirs]) if our_places.at(path) and their_places.at(path)]
    under = set(contested)
    found = Comparison(
        taken=[operation for path, each in theirs.items() if not _is_covered(path, under) for operation in each],
        ours_alone=[path for path in ours if not their_places.at(path)],
        theirs_alone=[path for path in theirs if not our_places.at(path)],
    )

    def values_at(paths: Iterable[Path]) -> list[Clash]:
        wanted = list(paths)
        sides = [
            {} if root is None or not wanted else trees.get_many(root, wanted)
            for root in (roots.base, roots.ours, roots.theirs)
        ]
        return [Clash(path, *[side.get(path, ABSENT) for side in sides]) for path in wanted]

    def may_differ(path: Path) -> bool:
        # Both sides may have come to the same: that is seen from hashes, without reading what they came to, unless
        # somebody chose how to decide it.
        if rebase or strategies.may_be_given(path):
            return True
        return trees.fingerprint(roots.ours, path) != trees.fingerprint(roots.theirs, path)

    for clash in values_at(filter(may_differ, contested)):
        compare(clash.base, clash.ours, clash.theirs, clash.path, found, trees.registry)
    resolution = resolve(found, strategies, values_at, trees.registry, rebase=rebase)
    return resolution.with_taken(found.taken), resolution


def rebase(
    roots: Roots, operations: Iterable[Operation], trees: Trees, by_place: ByPlace, strategies: Strategies
) -> list[Operation]:
    """The operations that bring what led from the base to theirs onto ours, which others have moved; Conflict, with
    `conflicts`, where both changed something and no strategy decides."""
    assert roots.base is not None
    head = by_place(trees, roots.base, trees.diff(roots.base, roots.ours))
    made, resolution = reconcile(roots, head, by_place(trees, roots.base, operations), trees, strategies, rebase=True)
    if resolution.undecided:
        from analemma.state.merge.values import refusal

        raise refusal(resolution.undecided)
    return made


def changes_by_place(trees: Trees, root: BlockId, operations: Iterable[Operation]) -> dict[Path, list[Operation]]:
    """Operations by the field they change; those inside a list by the list, whose positions mean nothing to the other
    side."""
    listed = list(operations)
    parents = list(dict.fromkeys(operation.path[:-1] for operation in listed))
    lengths = Nodes(trees.fetch).run(_list_above(root, parent) for parent in parents)
    lists = {parent: length for parent, length in zip(parents, lengths, strict=True) if length is not None}
    changes: dict[Path, list[Operation]] = {}
    for operation in listed:
        length = lists.get(operation.path[:-1], len(operation.path))
        changes.setdefault(operation.path[:length], []).append(operation)
    return changes


@dataclass(frozen=True, slots=True)
class Merge:
    """What a merge did, or would do."""

    source_id: str
    """The manifest whose changes were merged in."""
    target_id: str
    """The manifest they were merged into."""
    base_id: str | None
    """The nearest version both come from; None: they were compared as if they had begun empty."""
    ancestor: Literal["found", "none", "expired", "too_far"]
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


@dataclass(frozen=True, slots=True)
class _Plan:
    """A merge into one particular head."""

    target: BlockId
    ours: Manifest
    ancestor: Ancestor
    fast_forward: bool = False
    operations: list[Operation] = field(default_factory=list)
    decided: list[Clash] = field(default_factory=list)
    undecided: list[Clash] = field(default_factory=list)
    nothing_new: bool = False


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
    plan = _plan(kernel, kernel._commits.head_after_pending(key) or kernel._commits.head(key), row, theirs, chosen)
    if preview or plan.nothing_new:
        return _merge_of(plan, row)

    def propose(head: Head | None) -> Proposal:
        nonlocal plan
        if head is None:
            raise NotFound(f"there is no {place(key)}", hint="fork the source instead")
        if head.manifest != plan.target:
            plan = _plan(kernel, head, row, theirs, chosen)
        if plan.nothing_new:
            raise _NothingNew
        if plan.undecided:
            raise refusal(plan.undecided)
        base = plan.ancestor.row
        return Proposal(
            key,
            _merged_tree(kernel, plan, theirs),
            head,
            bases=(row.id,),
            message=message or f"merge {source}",
            config=plan.ours.config,
            segments=plan.ours.segments,
            kind=MERGED,
            facts={"from": row.id.hex(), "source": source, "base": None if base is None else base.id.hex()},
        )

    try:
        commit = kernel._commits.commit_next(key, CURRENT_HEAD, propose)
    except _NothingNew:
        return _merge_of(plan, row)
    return _merge_of(plan, row, commit)


def _source_row(kernel: Kernel, key: BranchKey, source: str) -> Version:
    check_name(source, "source")
    if source == key.branch:
        raise Invalid(f"branch {source} cannot be merged into itself", hint="name another source")
    head = kernel._commits.head_after_pending(BranchKey(key.owner, key.workflow, source))
    if head is None and len(source) != 64:
        raise NotFound(f"workflow {key.owner}/{key.workflow} has no branch {source!r}", hint="or pass a manifest id")
    return kernel._row(source if head is None else head.manifest.hex(), key.owner)


def _plan(kernel: Kernel, head: Head, source: Version, theirs: Manifest, strategies: Strategies) -> _Plan:
    ours = kernel._commits.manifest(head.manifest)
    ancestor = Ancestry(kernel._catalog, kernel._tenant).nearest_common(head.manifest, source.id)
    base = ancestor.row
    if base is not None and base.id == source.id:
        return _Plan(head.manifest, ours, ancestor, nothing_new=True)
    roots = Roots(None if base is None else base.root, ours.root.id, theirs.root.id)
    read: Callable[[], _Plan] = partial(_compared, kernel, roots, _Plan(head.manifest, ours, ancestor), strategies)
    for manifest in (head.manifest, source.id, *([] if base is None else [base.id])):
        read = partial(kernel._commits.guarded, manifest, read)
    return read()


def _compared(kernel: Kernel, roots: Roots, plan: _Plan, strategies: Strategies) -> _Plan:
    ours, theirs = _sides(roots, kernel._trees)
    free = {path: operations for path, operations in theirs.items() if not is_reserved(path[0])}
    operations, resolution = reconcile(roots, ours, free, kernel._trees, strategies)
    return replace(
        plan,
        fast_forward=roots.base is not None and not ours and len(free) == len(theirs),
        operations=operations,
        decided=resolution.decided,
        undecided=resolution.undecided,
    )


def _merged_tree(kernel: Kernel, plan: _Plan, theirs: Manifest) -> Edited:
    if plan.fast_forward:
        return Edited(theirs.root, ())
    edited = kernel._trees.edit(plan.ours.root.id, plan.operations)
    if edited.root.kind != "map":
        raise Invalid("a strategy puts something else in the place of the state", hint="a state is a dict of fields")
    return edited


def _sides(roots: Roots, trees: Trees) -> tuple[Changes, Changes]:
    """What each side changed."""
    if roots.base is not None:
        base = roots.base
        ours, theirs = [changes_by_place(trees, base, trees.diff(base, side)) for side in (roots.ours, roots.theirs)]
        return ours, theirs
    # As if both had begun empty: what only one has it added, what both have differently both added.
    differences = changes_by_place(trees, roots.ours, trees.diff(roots.ours, roots.theirs))
    ours = {path: each for path, each in differences.items() if _whole(path, each) != "add"}
    theirs = {path: each for path, each in differences.items() if _whole(path, each) != "remove"}
    return ours, theirs


def _whole(path: Path, operations: list[Operation]) -> str:
    """What happened to the field itself; changes inside a list replace it."""
    return operations[0].op if operations[0].path == path else "replace"


def _merge_of(plan: _Plan, source: Version, commit: Commit | None = None) -> Merge:
    base = plan.ancestor.row
    return Merge(
        source_id=source.id.hex(),
        target_id=plan.target.hex(),
        base_id=None if base is None else base.id.hex(),
        ancestor=plan.ancestor.reason,
        fast_forward=plan.fast_forward,
        changes=[
            {"op": op, "path": format_pointer(path)} | ({} if op == "remove" else {"value": value})
            for op, path, value in plan.operations
        ],
        decided=[clash.shown() for clash in plan.decided],
        conflicts=[clash.shown() for clash in plan.undecided],
        commit=commit,
    )


_OURS, _THEIRS, _BOTH = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Ancestor:
    """The version two lines share, or why there is none to read."""

    row: Version | None
    reason: Literal["found", "none", "expired", "too_far"]


@dataclass(slots=True)
class _Merges:
    """What is known so far of the merges into one branch, reading its journal backwards."""

    unread: int
    """The highest sequence number that was not read yet."""
    begins: bool = False
    """Whether what was read goes down to where a journal may begin: the first record, or a tombstone."""
    seen: set[BlockId] = field(default_factory=set)
    sources: dict[BlockId, BlockId] = field(default_factory=dict)


class Ancestry:
    """Walks back from versions; rows are read by the page, and once."""

    def __init__(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        self._catalog = catalog
        self._tenant = tenant
        self._rows: dict[BlockId, Version | None] = {}
        self._merges: dict[BranchKey, _Merges] = {}

    def nearest_common(self, ours: BlockId, theirs: BlockId) -> Ancestor:
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
                return Ancestor(row, "found")
            visited += 1
            if visited > MOST_VERSIONS:
                return Ancestor(None, "too_far")
            if row is None:
                continue
            for parent in (row.parent, self._merged_into(row)):
                if parent is not None and not reach(parent, mark):
                    expired = True
        return Ancestor(None, "expired" if expired else "none")

    def _row(self, manifest: BlockId) -> Version | None:
        if manifest not in self._rows:
            row = self._rows[manifest] = self._catalog.manifest(self._tenant, manifest)
            if row is not None:
                older = self._catalog.history(self._tenant, row.key, before_version=row.version, limit=PAGE)
                self._rows.update({each.id: each for each in older})
        return self._rows[manifest]

    def _merged_into(self, row: Version) -> BlockId | None:
        """The version that was merged into this one's parent to make it, if it is a merge."""
        known = self._merges.get(row.key)
        # The journal of a deleted branch stays under the name that it had.
        journal = row.key._replace(owner=row.owner_id)
        if known is None:
            # Without a head, others are forked from a branch that cannot be had back: later lives of its name, if there
            # are any, are walked past.
            end = self._catalog.head(self._tenant, row.key) or self._catalog.last_record(self._tenant, journal)
            unread = end.journal_seq if isinstance(end, Head) else 0 if end is None else end.seq
            known = self._merges[row.key] = _Merges(unread)
        while known.unread and row.id not in known.seen:
            start = max(0, known.unread - PAGE)
            records = self._catalog.journal(self._tenant, journal, after_seq=start, limit=known.unread - start)
            first = records[0].seq if records else known.unread + 1
            if records:
                known.begins = first == 1 or records[0].kind == DELETED
            lacks = [each.seq for each in records] != [*range(first, known.unread + 1)]
            lacks = lacks or (first > start + 1 and not known.begins)
            if lacks and self._catalog.manifest(self._tenant, row.id) is not None:  # guard: merge.journal
                # Nor is it looked for further down: a damaged head may count more records than there ever were.
                raise Corrupt(
                    f"the journal of {place(journal)} lacks records up to {known.unread}",
                    hint="run verify, and restore the catalog from a backup",
                )
            known.unread = start if first == start + 1 else 0
            for record in records:
                told = read_record(record)
                # Tags and decisions name a manifest too, but only a move of the head has a version.
                if record.manifest is not None and told["version"] is not None:
                    known.seen.add(record.manifest)
                    if record.kind == MERGED:
                        known.sources[record.manifest] = parse_block_id(told["facts"]["from"])
        return known.sources.get(row.id)


def _list_above(root: BlockId, path: Path) -> Walk[int | None]:
    """How long the path of the outermost list on the way to this path is, itself included; None if there is none."""
    wire = yield from locate(root, ())
    for length, token in enumerate(path):
        if container_kind(wire) == "list":
            return length
        wire = yield from step(wire, token)
        if wire is MISSING:
            return None
    return len(path) if container_kind(wire) == "list" else None


class _Touched:
    """Tells where one side changed something."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._above = {path[:length] for path in changes for length in range(len(path))}

    def at(self, path: Path) -> bool:
        """Whether something was changed at, above or below this path."""
        return path in self._above or _is_covered(path, self._changes)


def _is_covered(path: Path, paths: Container[Path]) -> bool:
    """Whether this path, or one above it, is among these."""
    return any(path[:length] in paths for length in range(len(path) + 1))


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """Those paths that are not below another one, in order."""
    chosen: dict[Path, None] = {}
    for path in sorted(paths, key=lambda each: (len(each), each)):
        if not _is_covered(path, chosen):
            chosen[path] = None
    return sorted(chosen)
