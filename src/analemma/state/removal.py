"""Deleting branches and workflows, having them back, and removing them for good. No block is read: that is how one gets
rid of what is damaged. Blocks go by collection."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from analemma.canon.identity import BlockId
from analemma.catalog.port import ASIDE, BranchKey, Head, RowChange, Version
from analemma.clock import attempts, moment
from analemma.errors import HeadMoved, NotFound
from analemma.state.arguments import MAIN, branch_key, check_name, place
from analemma.state.records import DELETED, RESTORED, next_record

if TYPE_CHECKING:
    # Loaded by who deletes: every program has the verbs.
    from analemma.catalog.kernel.removal import DeletedRow, Removal
    from analemma.state.kernel import Kernel

SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class DeletedBranch:
    """A branch that is deleted, as it stood."""

    owner_id: str
    workflow_id: str
    branch: str
    version: int
    manifest_id: str
    deleted_at: dt.datetime
    until: dt.datetime
    """From then on the collector removes it, and it cannot be had back."""

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return {**asdict(self), "deleted_at": self.deleted_at.isoformat(), "until": self.until.isoformat()}


def delete(
    kernel: Kernel, *, workflow_id: str, owner_id: str, branch: str | None = None, force: bool = False
) -> list[DeletedBranch]:
    """Delete a workflow with all its branches, or one of them: from now on nobody finds it, nor its versions, tags,
    pins, decisions, idempotency keys and policy. Until its grace is over, `undelete` brings all of that back. What was
    accepted for it and is no version yet will never be one. Its name can be used again, and versions go on counting;
    then what had it before cannot be had back any more.

    Reads no block, so it is the way out where some are lost. Conflict if a run goes on there; with `force`, that is
    cancelled."""
    from analemma.catalog.kernel.removal import deleted_branches, move_branches, workflow_heads

    key = branch_key(owner_id, workflow_id, branch or MAIN)
    engine, tenant = kernel._context.engine, kernel._tenant
    for _ in attempts(kernel._clock, f"{place(key)} changes too fast to be deleted", hint="stop its writers"):
        heads = [each for each in workflow_heads(engine, tenant, key) if branch in (None, each.key.branch)]
        if not heads:
            raise NotFound(f"there is no {place(key)}", hint="check the owner, the workflow and the branch")
        aside = f"{ASIDE}{kernel._context.entropy.random_bytes(8).hex()}/{owner_id}"
        removal = _removal(kernel, key, heads, whole=branch is None, forced=force)
        with suppress(HeadMoved):
            move_branches(engine, removal, owner_id, aside, deleting=True)
            _done(kernel, removal)
            rows = deleted_branches(engine, tenant, owner=owner_id, workflow=workflow_id)
            return [_shown(kernel, row, row.head) for row in rows if row.aside == aside and row.head is not None]
    raise AssertionError("unreachable")


def undelete(kernel: Kernel, *, workflow_id: str, owner_id: str, branch: str | None = None) -> list[DeletedBranch]:
    """Have back what the newest deletion of a workflow took, or one branch, as it was; what came back. Idempotency keys
    count again, but for those that were used again meanwhile; checkpoints that waited do not come back.

    NotFound if nothing is deleted there, or its grace is over and it was removed. Conflict if the name of a branch was
    used again since: that one cannot be had back any more, also if what has its name is deleted, but others that were
    deleted with it can, one by one. Conflict, too, if a tag is on another version by now, until it is untagged."""
    from analemma.catalog.kernel.removal import deleted_branches, move_branches

    key = branch_key(owner_id, workflow_id, branch or MAIN)
    engine, tenant = kernel._context.engine, kernel._tenant
    for _ in attempts(kernel._clock, f"{place(key)} changes too fast to be had back", hint="try again"):
        rows = deleted_branches(engine, tenant, owner=owner_id, workflow=workflow_id)
        found = [(row, row.head) for row in rows if row.head is not None and branch in (None, row.branch)]
        if not found:
            raise NotFound(f"no {place(key)} is deleted", hint="it is there, or was removed when its grace was over")
        chosen = [(row, head) for row, head in found if row.aside == found[0][0].aside]
        removal = _removal(kernel, key, [head for _, head in chosen], kind=RESTORED)
        with suppress(HeadMoved):
            move_branches(engine, removal, chosen[0][0].aside, owner_id, deleting=False)
            _done(kernel, removal)
            return [_shown(kernel, row, head) for row, head in chosen]
    raise AssertionError("unreachable")


def deleted(kernel: Kernel, *, owner_id: str | None = None, workflow_id: str | None = None) -> list[DeletedBranch]:
    """What is deleted and can be had back, of everybody, an owner or a workflow: what was deleted last comes first. A
    branch whose name was used again since is not there."""
    from analemma.catalog.kernel.removal import deleted_branches

    owner = None if owner_id is None else check_name(owner_id, "owner")
    workflow = None if workflow_id is None else check_name(workflow_id, "workflow")
    rows = deleted_branches(kernel._context.engine, kernel._tenant, owner=owner, workflow=workflow)
    return [_shown(kernel, row, row.head) for row in rows if row.head is not None and not row.used_again]


def is_inherited(kernel: Kernel, row: Version) -> bool:
    """Whether a version of a deleted branch is in the history of a branch that is there."""
    from analemma.catalog.kernel.removal import forks_of

    open_ends, seen = [(row.key, row.version)], {row.key}
    while open_ends:
        for fork in forks_of(kernel._context.engine, kernel._tenant, *open_ends.pop()):
            if not fork.owner.startswith(ASIDE):
                return True
            if fork not in seen:
                seen.add(fork)
                open_ends.append((fork, 0))
    return False


def remove_due(kernel: Kernel, *, before_us: int, dry_run: bool) -> Iterator[list[BlockId]]:
    """Remove for good what was deleted before a time, branch by branch: the versions that went, or would go. Versions
    that others were forked from stay for as long as those are there, with all before them."""
    from analemma.catalog.kernel.removal import (
        Gone,
        Removal,
        deleted_branches,
        forks_of,
        removable_versions,
        remove_branches,
    )

    engine, tenant = kernel._context.engine, kernel._tenant
    rows = deleted_branches(engine, tenant, before_us=before_us)
    # What was forked began behind what it was forked from.
    for row in sorted(rows, key=lambda row: row.created_at_us, reverse=True):
        versions = removable_versions(engine, tenant, row.key)
        if row.head is None and not versions and forks_of(engine, tenant, row.key, 0):
            continue
        if not dry_run:
            gone = () if row.head is None else (Gone(row.head),)
            removal = Removal(
                tenant, BranchKey(row.owner, row.workflow), gone, forced=True, at_us=kernel._clock.now_us()
            )
            try:
                remove_branches(engine, removal, row.aside, [row.branch], keeping=True)
            except HeadMoved:
                # Somebody had it back.
                continue
        yield versions


def remove_workflow(kernel: Kernel, owner: str, workflow: str, rows: Sequence[RowChange] = ()) -> int:
    """Remove a workflow with all its branches for good, and change other rows with them, in one transaction; how many
    branches there were."""
    from analemma.catalog.kernel.removal import workflow_heads

    key = BranchKey(owner, workflow)
    for _ in attempts(kernel._clock, f"{place(key)} changes too fast to be removed", hint="stop its writers"):
        heads = workflow_heads(kernel._context.engine, kernel._tenant, key)
        removal = _removal(kernel, key, heads, whole=True, forced=True)
        with suppress(HeadMoved):
            _remove(kernel, removal._replace(rows=tuple(rows)))
            return len(heads)
    raise AssertionError("unreachable")


def remove_branch(kernel: Kernel, head: Head, rows: Sequence[RowChange]) -> None:
    """Remove the branch that stands here for good, and change other rows with it, in one transaction. A workflow that
    has none left is gone. HeadMoved, with nothing changed, if it stands elsewhere by now, or a checkpoint waits."""
    removal = _removal(kernel, head.key, [head], forced=True)
    _remove(kernel, removal._replace(rows=tuple(rows), failure=""))


def _remove(kernel: Kernel, removal: Removal) -> None:
    """A deletion without grace."""
    from analemma.catalog.kernel.removal import remove_branches

    left = [each.head.key.branch for each in removal.gone]
    remove_branches(kernel._context.engine, removal, removal.key.owner, left, keeping=False)
    _done(kernel, removal)


def _removal(
    kernel: Kernel,
    key: BranchKey,
    heads: Sequence[Head],
    *,
    kind: str = DELETED,
    whole: bool = False,
    forced: bool = False,
) -> Removal:
    """What is to become of branches that stand here, and what their journals and others are told of it."""
    from analemma.catalog.kernel.removal import Gone, Removal
    from analemma.state.pending import write_failure

    now_us = kernel._clock.now_us()
    gone, after = [], []
    for head in heads:
        own, facts = head.key._replace(owner=key.owner), {"version": head.version}
        record = next_record(own, head, kind=kind, manifest=head.manifest, at_us=now_us, facts=facts)
        gone.append(Gone(head, record))
        after.append(Head(own, head.manifest, head.version, record.seq, record.hash))
    announcer = kernel._commits.announcer
    events = announcer.removed(after) if kind == DELETED else announcer.committed(after)
    told = NotFound(f"{place(BranchKey(key.owner, key.workflow))} was deleted", hint="save it anew, if it is needed")
    return Removal(kernel._tenant, key, tuple(gone), events, (), whole, forced, now_us, write_failure(told))


def _done(kernel: Kernel, removal: Removal) -> None:
    if removal.events:
        kernel._commits.announcer.wake()
    for each in removal.gone:
        kernel._commits.forget(each.head.key)


def _shown(kernel: Kernel, row: DeletedRow, head: Head) -> DeletedBranch:
    until_us = row.deleted_at_us + int(kernel._context.settings.delete_grace_s * SECOND_US)
    deleted_at, until = moment(row.deleted_at_us), moment(until_us)
    return DeletedBranch(row.owner, row.workflow, row.branch, head.version, head.manifest.hex(), deleted_at, until)
