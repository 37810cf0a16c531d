"""The verb that brings the changes of one line of history into another."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from analemma.canon.identity import BlockId
from analemma.canon.pointer import Path, format_pointer
from analemma.canon.read import MISSING, NodeSource, Walk, container_kind, locate, step
from analemma.canon.trees import Edited, Operation
from analemma.catalog.port import BranchKey, Head, ManifestRow
from analemma.errors import Invalid, NotFound
from analemma.state.ancestry import Ancestor, Ancestry
from analemma.state.arguments import branch_key, check_name
from analemma.state.committer import Proposal
from analemma.state.kernel_base import CURRENT_HEAD, MAIN, KernelBase, place
from analemma.state.merge_strategies import ABSENT, Strategies, Strategy
from analemma.state.merging import Clash, Comparison, Resolution, compare, refusal, resolve
from analemma.state.records import MERGED, Manifest
from analemma.state.reserved_fields import is_reserved
from analemma.state.versions import Commit, commit_of


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
    resolution: Resolution = field(default_factory=Resolution)
    nothing_new: bool = False


class _NothingNew(Exception):
    """Somebody else merged the same source while this merge was being tried again."""


class Merging(KernelBase):
    """Merges branches."""

    def merge(
        self,
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
        key = branch_key(owner_id, workflow_id, into)
        row = self._source_row(key, source)
        theirs = self._read_manifest(row.id)
        chosen = Strategies(strategy, strategies)
        plan = self._plan(self._head_after_pending(key) or self._head(key), row, theirs, chosen)
        if preview or plan.nothing_new:
            return _merge_of(plan, row)

        def propose(head: Head | None) -> Proposal:
            nonlocal plan
            if head is None:
                raise NotFound(f"there is no {place(key)}", hint="fork the source instead")
            if head.manifest != plan.target:
                plan = self._plan(head, row, theirs, chosen)
            if plan.nothing_new:
                raise _NothingNew
            if plan.resolution.undecided:
                raise refusal(plan.resolution.undecided)
            base = plan.ancestor.row
            return Proposal(
                key,
                self._merged_tree(plan, theirs),
                head,
                bases=(row.id,),
                message=message or f"merge {source}",
                config=plan.ours.config,
                segments=plan.ours.segments,
                kind=MERGED,
                facts={"from": row.id.hex(), "source": source, "base": None if base is None else base.id.hex()},
            )

        try:
            commit = commit_of(self._commit(key, CURRENT_HEAD, propose))
        except _NothingNew:
            return _merge_of(plan, row)
        return _merge_of(plan, row, commit)

    def _source_row(self, key: BranchKey, source: str) -> ManifestRow:
        check_name(source, "source")
        if source == key.branch:
            raise Invalid(f"branch {source} cannot be merged into itself", hint="name another source")
        head = self._head_after_pending(BranchKey(key.owner, key.workflow, source))
        if head is None and len(source) != 64:
            raise NotFound(
                f"workflow {key.owner}/{key.workflow} has no branch {source!r}", hint="or pass a manifest id"
            )
        return self._row(source if head is None else head.manifest.hex(), key.owner)

    def _plan(self, head: Head, source: ManifestRow, theirs: Manifest, strategies: Strategies) -> _Plan:
        ours = self._read_manifest(head.manifest)
        ancestor = Ancestry(self._catalog, self._tenant).nearest_common(head.manifest, source.id)
        base = ancestor.row
        if base is not None and base.id == source.id:
            return _Plan(head.manifest, ours, ancestor, nothing_new=True)
        roots = _Roots(None if base is None else base.root, ours.root.id, theirs.root.id)
        plan = _Plan(head.manifest, ours, ancestor)
        read: Callable[[], _Plan] = partial(self._compared, roots, plan, strategies)
        for manifest in (head.manifest, source.id, *([] if base is None else [base.id])):
            read = partial(self._guarded, manifest, read)
        return read()

    def _compared(self, roots: _Roots, plan: _Plan, strategies: Strategies) -> _Plan:
        our_changes, their_changes, reserved = self._changes(roots)
        found = Comparison()
        ours, theirs = _Touched(our_changes), _Touched(their_changes)
        for path, operations in their_changes.items():
            if not ours.at(path):
                found.taken += operations
        both = _outermost([*our_changes, *their_changes])
        contested = [path for path in both if ours.at(path) and theirs.at(path)]
        # Both sides may have come to the same: that is seen from hashes, without reading what they came to, unless
        # somebody chose how to decide it.
        fingerprint = self._trees.fingerprint
        differing = [
            path
            for path in contested
            if strategies.may_be_given(path) or fingerprint(roots.ours, path) != fingerprint(roots.theirs, path)
        ]
        for clash in self._values_at(roots, differing):
            compare(clash.base, clash.ours, clash.theirs, clash.path, found, self._trees.registry)
        found.ours_alone += [path for path in our_changes if not theirs.at(path)]
        found.theirs_alone += [path for path in their_changes if not ours.at(path)]
        resolution = resolve(found, strategies, lambda paths: self._values_at(roots, paths), self._trees.registry)
        return _Plan(
            plan.target,
            plan.ours,
            plan.ancestor,
            fast_forward=roots.base is not None and not our_changes and not reserved,
            operations=resolution.with_taken(found.taken),
            resolution=resolution,
        )

    def _changes(self, roots: _Roots) -> tuple[_Changes, _Changes, bool]:
        """What each side changed, and whether theirs touched reserved fields, which are left out."""
        if roots.base is not None:
            ours = self._by_place(roots.base, self._trees.diff(roots.base, roots.ours))
            theirs = self._by_place(roots.base, self._trees.diff(roots.base, roots.theirs))
        else:
            # As if both had begun empty: what only one has it added, what both have differently both added.
            differences = self._by_place(roots.ours, self._trees.diff(roots.ours, roots.theirs))
            ours = {path: each for path, each in differences.items() if _whole(path, each) != "add"}
            theirs = {path: each for path, each in differences.items() if _whole(path, each) != "remove"}
        kept = {path: operations for path, operations in theirs.items() if not is_reserved(path[0])}
        return ours, kept, len(kept) < len(theirs)

    def _by_place(self, root: BlockId, operations: Iterable[Operation]) -> _Changes:
        """Operations by the field they change; those inside a list by the list, whose positions mean nothing to the
        other side."""
        listed = list(operations)
        parents = list(dict.fromkeys(operation.path[:-1] for operation in listed))
        lengths = NodeSource(self._trees.fetch).run(_list_above(root, parent) for parent in parents)
        lists = {parent: length for parent, length in zip(parents, lengths, strict=True) if length is not None}
        changes: _Changes = {}
        for operation in listed:
            length = lists.get(operation.path[:-1], len(operation.path))
            changes.setdefault(operation.path[:length], []).append(operation)
        return changes

    def _values_at(self, roots: _Roots, paths: Iterable[Path]) -> list[Clash]:
        wanted = list(paths)
        sides = [
            {} if root is None or not wanted else self._trees.get_many(root, wanted)
            for root in (roots.base, roots.ours, roots.theirs)
        ]
        return [Clash(path, *[side.get(path, ABSENT) for side in sides]) for path in wanted]

    def _merged_tree(self, plan: _Plan, theirs: Manifest) -> Edited:
        if plan.fast_forward:
            return Edited(theirs.root, ())
        edited = self._trees.edit(plan.ours.root.id, plan.operations)
        if edited.root.kind != "map":
            raise Invalid(
                "a strategy puts something else in the place of the state", hint="a state is a dict of fields"
            )
        return edited


@dataclass(frozen=True, slots=True)
class _Roots:
    """The three trees of a merge."""

    base: BlockId | None
    ours: BlockId
    theirs: BlockId


_Changes = dict[Path, list[Operation]]


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


def _whole(path: Path, operations: list[Operation]) -> str:
    """What happened to the field itself; changes inside a list replace it."""
    return operations[0].op if operations[0].path == path else "replace"


class _Touched:
    """Tells where one side changed something."""

    def __init__(self, changes: _Changes) -> None:
        self._changes = changes
        self._above = {path[:length] for path in changes for length in range(len(path))}

    def at(self, path: Path) -> bool:
        """Whether something was changed at, above or below this path."""
        return path in self._above or _covered(path, self._changes)


def _covered(path: Path, paths: Container[Path]) -> bool:
    """Whether this path, or one above it, is among these."""
    return any(path[:length] in paths for length in range(len(path) + 1))


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """Those paths that are not below another one, in order."""
    chosen: dict[Path, None] = {}
    for path in sorted(paths, key=lambda each: (len(each), each)):
        if not _covered(path, chosen):
            chosen[path] = None
    return sorted(chosen)


def _merge_of(plan: _Plan, source: ManifestRow, commit: Commit | None = None) -> Merge:
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
        decided=[clash.shown() for clash in plan.resolution.decided],
        conflicts=[clash.shown() for clash in plan.resolution.undecided],
        commit=commit,
    )
