"""Going back and branching off: new versions on old roots, which copy nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from analemma.canon.identity import BlockId, parse_block_id
from analemma.canon.trees import Edited
from analemma.catalog.kernel.versions import branch_columns
from analemma.catalog.port import BranchKey, Head, JournalRow, Version
from analemma.errors import Conflict, Corrupt, Expired, HeadMoved, Invalid, NotFound
from analemma.state.arguments import CURRENT_HEAD, MAIN, branch_key, check_new_branch, place
from analemma.state.commits import Proposal
from analemma.state.records import FORKED, ROLLED_BACK, Commit, manifest_links
from analemma.state.refs import decision_of

if TYPE_CHECKING:
    from analemma.state.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Rollback:
    """What rolling back would change."""

    version: int
    manifest_id: str
    previous_manifest_id: str
    """The newest version, whose state would be replaced."""
    changes: list[dict[str, Any]]


@overload
def rollback_to_version(
    kernel: Kernel,
    *,
    workflow_id: str,
    owner_id: str,
    version: int,
    branch: str = MAIN,
    preview: Literal[False] = False,
    previous_manifest_id: str | None = None,
    deep: bool = False,
) -> Commit: ...


@overload
def rollback_to_version(
    kernel: Kernel,
    *,
    workflow_id: str,
    owner_id: str,
    version: int,
    branch: str = MAIN,
    preview: Literal[True],
    previous_manifest_id: str | None = None,
    deep: bool = False,
) -> Rollback: ...


def rollback_to_version(
    kernel: Kernel,
    *,
    workflow_id: str,
    owner_id: str,
    version: int,
    branch: str = MAIN,
    preview: bool = False,
    previous_manifest_id: str | None = None,
    deep: bool = False,
) -> Commit | Rollback:
    """Make an earlier version's state the newest again, as a new version; with `preview`, only say what that would
    change.

    Costs what the preview costs, whatever the size of the state, and history is kept: rolling back can itself be
    rolled back. What differs from the newest version is read and verified first, with `deep` all of the earlier
    one; Corrupt, with nothing changed, if any of it is damaged. With `previous_manifest_id`, such as a preview's,
    the head must still be that manifest, or HeadMoved is raised and nothing changes."""
    key = branch_key(owner_id, workflow_id, branch)
    act = plan_rollback if preview else roll_back
    target = kernel._version_row(key, version)
    return act(kernel, key, target, previous_manifest_id=previous_manifest_id, deep=deep)


def plan_rollback(
    kernel: Kernel, key: BranchKey, target: Version, *, previous_manifest_id: str | None, deep: bool
) -> Rollback:
    """What going back to a version, of any branch, would change."""
    expected = None if previous_manifest_id is None else parse_block_id(previous_manifest_id)
    _check_whole(kernel, key, target, deep=deep)
    head = kernel._commits.head(key)
    if expected not in (None, head.manifest):
        message = f"{place(key)} has moved on: it is at version {head.version}"
        raise HeadMoved(message, hint="reload and retry", key=key, expected=expected, found=head)
    changes = kernel.diff(head.manifest.hex(), target.id.hex())
    return Rollback(target.version, target.id.hex(), head.manifest.hex(), changes)


def roll_back(
    kernel: Kernel, key: BranchKey, target: Version, *, previous_manifest_id: str | None, deep: bool = False
) -> Commit:
    """Make the state of a version, of any branch, the newest of a branch."""
    expected = CURRENT_HEAD if previous_manifest_id is None else parse_block_id(previous_manifest_id)
    _check_whole(kernel, key, target, deep=deep)
    manifest = kernel._commits.manifest(target.id)
    version, elsewhere = target.version, "" if target.key == key else f" of {place(target.key)}"

    def propose(head: Head | None) -> Proposal:
        return Proposal(
            key,
            Edited(manifest.root, ()),
            head,
            bases=(target.id,),
            message=f"roll back to version {version}{elsewhere}",
            config=manifest.config,
            segments=manifest.segments,
            kind=ROLLED_BACK,
            facts={"version": version} if target.key == key else {"version": version, "from": target.manifest_id},
            rows=partial(kernel._catalog.carried_rows, kernel._tenant, target, key, at_us=kernel._clock.now_us()),
        )

    return kernel._commits.commit_next(key, expected, propose)


def _check_whole(kernel: Kernel, key: BranchKey, target: Version, *, deep: bool) -> None:
    """Raise Corrupt if a version is damaged: only where it differs from the newest of the branch, unless `deep`, as
    what that has too is no worse afterwards, and there may be gigabytes of it."""
    from analemma.state.verify import verify_version

    beside = [] if deep else _roots_of(kernel, kernel._commits.head(key).manifest)
    found = verify_version(kernel._catalog, kernel._tenant, kernel._blocks, target.id, beside=beside)
    if found.problems:
        # Expired since we found it, perhaps: then that is what there is to say.
        kernel._row(target.id.hex(), None)
        raise Corrupt(
            f"version {target.version} of {place(target.key)} cannot be rolled back to: {found.problems[0]}",
            hint="restore the block from a second copy, or roll back to another version",
            version=target.version,
        )


def _roots_of(kernel: Kernel, manifest: BlockId) -> list[BlockId]:
    """What a version keeps; nothing if it cannot be read: that may be why somebody goes back."""
    try:
        return manifest_links(kernel._commits.manifest(manifest))
    except (Corrupt, Expired):
        return []


def fork(
    kernel: Kernel,
    manifest_id: str,
    *,
    owner_id: str,
    workflow_id: str | None = None,
    branch: str | None = None,
    message: str | None = None,
) -> Commit:
    """Start a new workflow (at version 1), or a new branch of the same one (counting on), from any version. Copies
    nothing. A branch for which checkpoints were accepted exists: they are applied, and then it is a Conflict."""
    source = kernel._row(manifest_id, owner_id)
    if (workflow_id is None) == (branch is None):
        raise Invalid("a fork makes a new workflow or a new branch", hint="pass workflow_id or branch, not both")
    key = branch_key(
        owner_id, source.key.workflow if workflow_id is None else workflow_id, MAIN if branch is None else branch
    )
    manifest = kernel._commits.manifest(source.id)
    if kernel._commits.head_after_pending(key) is not None:
        raise _exists(key)
    check_new_branch(key.branch)
    proposal = Proposal(
        key,
        Edited(manifest.root, ()),
        None,
        bases=(source.id,),
        parent=source.id,
        version=1 if workflow_id is not None else source.version + 1,
        message=message,
        config=manifest.config,
        segments=manifest.segments,
        kind=FORKED,
        facts={"from": source.id.hex()},
        rows=partial(kernel._catalog.carried_rows, kernel._tenant, source, key, at_us=kernel._clock.now_us()),
    )
    try:
        return kernel._commits.commit(proposal)
    except HeadMoved as exc:
        raise _exists(key) from exc


def _exists(key: BranchKey) -> Conflict:
    return Conflict(f"{place(key)} exists already", hint="choose another name")


def last_safe_manifest(kernel: Kernel, *, workflow_id: str, owner_id: str, branch: str = MAIN) -> Version:
    """The newest version whose newest decision is `approved`; NotFound if there is none. Costs the same however
    many versions and decisions there are."""
    key = branch_key(owner_id, workflow_id, branch)
    with kernel._catalog.snapshot() as seen:
        rows = seen.history(kernel._tenant, key, decision="approved", limit=1)
        # The row only finds the version. What counts is the journal's record, whose hash is checked.
        asked = branch_columns(kernel._tenant, key)
        records = seen.engine.rows(JournalRow, "decisions", **asked, manifest=rows[0].id) if rows else []
    if not rows:
        kernel._commits.head(key)
        raise NotFound(f"{place(key)} has no approved version", hint="record a decision with decide()")
    if not records or decision_of(records[-1]).decision != "approved":
        raise Corrupt(
            f"version {rows[0].version} of {place(key)} is listed as approved, and its journal says otherwise",
            hint="run verify",
            manifest=rows[0].id.hex(),
        )
    return rows[0]


@overload
def rollback_to_last_safe(
    kernel: Kernel,
    *,
    workflow_id: str,
    owner_id: str,
    branch: str = MAIN,
    preview: Literal[False] = False,
    previous_manifest_id: str | None = None,
    deep: bool = False,
) -> Commit: ...


@overload
def rollback_to_last_safe(
    kernel: Kernel,
    *,
    workflow_id: str,
    owner_id: str,
    branch: str = MAIN,
    preview: Literal[True],
    previous_manifest_id: str | None = None,
    deep: bool = False,
) -> Rollback: ...


def rollback_to_last_safe(
    kernel: Kernel,
    *,
    workflow_id: str,
    owner_id: str,
    branch: str = MAIN,
    preview: bool = False,
    previous_manifest_id: str | None = None,
    deep: bool = False,
) -> Commit | Rollback:
    """Make the newest approved state the newest again, as a new version; with `preview`, only say what that would
    change. `previous_manifest_id` and `deep` as in `rollback_to_version`."""
    act = plan_rollback if preview else roll_back
    safe = kernel.last_safe_manifest(workflow_id=workflow_id, owner_id=owner_id, branch=branch)
    return act(kernel, safe.key, safe, previous_manifest_id=previous_manifest_id, deep=deep)
