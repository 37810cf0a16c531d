"""Deleting branches and workflows, having them back (`undelete`), and removing them for good: each is one transaction.
No block is read: that is how one gets rid of what is damaged. Blocks go by collection.

A deletion gives all rows of its branches to an owner whom nobody can name (`catalog.port.ASIDE`), and bringing them
back is the same the other way. Journals stay, and end in the tombstone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from analemma.canon.identity import BlockId
from analemma.catalog.engine.db import Transaction, send
from analemma.catalog.engine.procedures import Refused
from analemma.catalog.kernel.commits import change_rows
from analemma.catalog.kernel.versions import branch_columns
from analemma.catalog.outbox.lanes import check_events, in_lanes
from analemma.catalog.port import ASIDE, BranchKey, Head, JournalRow, RowChange, Version
from analemma.clock import attempts, moment
from analemma.errors import Conflict, HeadMoved, NotFound
from analemma.failpoints import declare, hit
from analemma.state.arguments import MAIN, branch_key, check_name, place
from analemma.state.records import DELETED, RESTORED, next_record

if TYPE_CHECKING:
    from analemma.state.kernel import Kernel

BEFORE_TRANSACTION = declare("remove.before_transaction", "branches were looked at, and none is deleted")
BEFORE_COMMIT = declare("remove.before_commit", "branches are deleted inside the transaction")
AFTER_COMMIT = declare("remove.after_commit", "branches are gone, but the caller does not know")

SECOND_US = 1_000_000
FOREVER = (1 << 63) - 1


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


class DeletedRow(NamedTuple):
    """A branch of a deletion, and where it stood."""

    aside: str
    owner: str
    workflow: str
    branch: str
    created_at_us: int
    deleted_at_us: int
    used_again: bool
    """Whether its name was used again since. Then it cannot be had back, for its journal went on."""
    head: Head | None
    """None: its grace is over, and only what others were forked from is left of it."""


def delete(
    kernel: Kernel, *, workflow_id: str, owner_id: str, branch: str | None = None, force: bool = False
) -> list[DeletedBranch]:
    """Delete a workflow with all its branches, or one of them: from now on nobody finds it, nor its versions, tags,
    pins, decisions, idempotency keys and policy. Until its grace is over, `undelete` brings all of that back. What was
    accepted for it and is no version yet will never be one. Its name can be used again, and versions go on counting;
    then what had it before cannot be had back any more.

    Reads no block, so it is the way out where some are lost. Conflict if a run goes on there; with `force`, that is
    cancelled."""
    key = branch_key(owner_id, workflow_id, branch or MAIN)
    for _ in attempts(kernel._clock, f"{place(key)} changes too fast to be deleted", hint="stop its writers"):
        heads = [each for each in _heads(kernel, key) if branch in (None, each.key.branch)]
        if not heads:
            raise NotFound(f"there is no {place(key)}", hint="check the owner, the workflow and the branch")
        aside = f"{ASIDE}{kernel._context.entropy.random_bytes(8).hex()}/{owner_id}"
        change = _Change(key, tuple(heads), owner_id, DELETED, forced=force, whole=branch is None)
        with suppress(HeadMoved):
            _do(kernel, "move_branches", change, target=aside, deletions=[aside])
            rows = _deleted_rows(kernel, owner_id, workflow_id)
            return [_shown(kernel, row, row.head) for row in rows if row.aside == aside and row.head is not None]
    raise AssertionError("unreachable")


def undelete(kernel: Kernel, *, workflow_id: str, owner_id: str, branch: str | None = None) -> list[DeletedBranch]:
    """Have back what the newest deletion of a workflow took, or one branch, as it was; what came back. Idempotency keys
    count again, but for those that were used again meanwhile; checkpoints that waited do not come back.

    NotFound if nothing is deleted there, or its grace is over and it was removed. Conflict if the name of a branch was
    used again since: that one cannot be had back any more, also if what has its name is deleted, but others that were
    deleted with it can, one by one. Conflict, too, if a tag is on another version by now, until it is untagged."""
    key = branch_key(owner_id, workflow_id, branch or MAIN)
    for _ in attempts(kernel._clock, f"{place(key)} changes too fast to be had back", hint="try again"):
        rows = _deleted_rows(kernel, owner_id, workflow_id)
        found = [(row, row.head) for row in rows if row.head is not None and branch in (None, row.branch)]
        if not found:
            raise NotFound(f"no {place(key)} is deleted", hint="it is there, or was removed when its grace was over")
        aside = found[0][0].aside
        chosen = [(row, head) for row, head in found if row.aside == aside]
        change = _Change(key, tuple(head for _, head in chosen), aside, RESTORED)
        with suppress(HeadMoved):
            _do(kernel, "move_branches", change, target=owner_id, deletions=[])
            return [_shown(kernel, row, head) for row, head in chosen]
    raise AssertionError("unreachable")


def deleted(kernel: Kernel, *, owner_id: str | None = None, workflow_id: str | None = None) -> list[DeletedBranch]:
    """What is deleted and can be had back, of everybody, an owner or a workflow: what was deleted last comes first. A
    branch whose name was used again since is not there."""
    owner = None if owner_id is None else check_name(owner_id, "owner")
    workflow = None if workflow_id is None else check_name(workflow_id, "workflow")
    rows = _deleted_rows(kernel, owner, workflow)
    return [_shown(kernel, row, row.head) for row in rows if row.head is not None and not row.used_again]


def is_inherited(kernel: Kernel, row: Version) -> bool:
    """Whether a version of a deleted branch is in the history of a branch that is there."""
    open_ends, seen = [(row.key, row.version)], {row.key}
    while open_ends:
        for fork in _forks_of(kernel, *open_ends.pop()):
            if not fork.owner.startswith(ASIDE):
                return True
            if fork not in seen:
                seen.add(fork)
                open_ends.append((fork, 0))
    return False


def _forks_of(kernel: Kernel, key: BranchKey, version: int) -> list[BranchKey]:
    """The branches that were forked from a version of a branch, or from one behind it."""
    asked = branch_columns(kernel._tenant, key)
    return kernel._context.engine.rows(BranchKey, "forks_of", **asked, version=version)


def remove_due(kernel: Kernel, *, before_us: int, dry_run: bool) -> Iterator[list[BlockId]]:
    """Remove for good what was deleted before a time, branch by branch: the versions that went, or would go. Versions
    that others were forked from stay for as long as those are there, with all before them."""
    engine, tenant = kernel._context.engine, kernel._tenant
    rows = _deleted_rows(kernel, before_us=before_us)
    # What was forked began behind what it was forked from.
    for row in sorted(rows, key=lambda row: row.created_at_us, reverse=True):
        own = BranchKey(row.aside, row.workflow, row.branch)
        versions = [BlockId(each[0]) for each in engine.all("removable_versions", **branch_columns(tenant, own))]
        if row.head is None and not versions and _forks_of(kernel, own, 0):
            continue
        if not dry_run:
            heads = () if row.head is None else (row.head,)
            change = _Change(BranchKey(row.owner, row.workflow), heads, row.aside, waiting="stays", forced=True)
            try:
                _do(kernel, "remove_branches", change, left=[row.branch], keeping=1)
            except HeadMoved:
                # Somebody had it back.
                continue
        yield versions


def remove_workflow(kernel: Kernel, owner: str, workflow: str, rows: Sequence[RowChange] = ()) -> int:
    """Remove a workflow with all its branches for good, and change other rows with them, in one transaction; how many
    branches there were."""
    key = BranchKey(owner, workflow)
    for _ in attempts(kernel._clock, f"{place(key)} changes too fast to be removed", hint="stop its writers"):
        heads = _heads(kernel, key)
        change = _Change(key, tuple(heads), owner, DELETED, forced=True, whole=True, rows=rows)
        with suppress(HeadMoved):
            _do(kernel, "remove_branches", change, left=[head.key.branch for head in heads], keeping=0)
            return len(heads)
    raise AssertionError("unreachable")


def remove_branch(kernel: Kernel, head: Head, rows: Sequence[RowChange]) -> None:
    """Remove the branch that stands here for good, and change other rows with it, in one transaction. A workflow that
    has none left is gone. HeadMoved, with nothing changed, if it stands elsewhere by now, or a checkpoint waits."""
    change = _Change(head.key, (head,), head.key.owner, DELETED, waiting="stays", forced=True, rows=rows)
    _do(kernel, "remove_branches", change, left=[head.key.branch], keeping=0)


class _Change(NamedTuple):
    """What is to become of branches of one workflow: of all, or of none."""

    key: BranchKey
    """Whose they are; any branch of the workflow."""
    heads: tuple[Head, ...]
    """Where they stand. One that has moved on stays, and all others with it."""
    source: str
    """Who has their rows: the workflow's owner, or the owner of a deletion."""
    kind: str | None = None
    """What their journals are told; None: they say so already."""
    waiting: Literal["fails", "stays"] = "fails"
    """What becomes of a checkpoint that waits on one of them; if it stays, all of them do."""
    forced: bool = False
    """Whether a run that goes on keeps nothing: it is cancelled."""
    whole: bool = False
    """Whether these are all branches of the workflow: one that began meanwhile keeps all of them."""
    rows: Sequence[RowChange] = ()
    """What else changes with them."""


class _Gone(NamedTuple):
    """A branch that is to go elsewhere, or away: where it stands, and what its journal says of that."""

    head: Head
    record: JournalRow | None


def _do(kernel: Kernel, procedure: str, change: _Change, **more: Any) -> None:
    """Do a procedure with branches, durably. HeadMoved, with nothing changed, if one of them is elsewhere by now or a
    `whole` workflow has others; Conflict if a run goes on, or if a name is used again."""
    from analemma.state.pending import write_failure

    engine, tenant, key, now_us = kernel._context.engine, kernel._tenant, change.key, kernel._clock.now_us()
    gone, records, after = [], [], []
    # In the order of their keys, as everyone locks them.
    for head in sorted(change.heads, key=lambda each: each.key):
        record, own = None, replace(head, key=head.key._replace(owner=key.owner))
        if change.kind is not None:
            facts = {"version": head.version}
            record = next_record(own.key, head, kind=change.kind, manifest=head.manifest, at_us=now_us, facts=facts)
            records.append(_Gone(own, record))
            after.append(replace(own, journal_seq=record.seq, journal_tip=record.hash))
        gone.append(_Gone(head, record))
    announcer = kernel._commits.announcer
    tell = announcer.removed if change.kind == DELETED else announcer.committed
    events = tell(after) if after else ()
    check_events(events)
    lanes, placed = in_lanes(events)
    told = NotFound(f"{place(BranchKey(key.owner, key.workflow))} was deleted", hint="save it anew, if it is needed")
    given = SimpleNamespace(
        tenant=tenant,
        owner=key.owner,
        workflow=key.workflow,
        now=now_us,
        source=change.source,
        whole=int(change.whole),
        forced=int(change.forced),
        failure=write_failure(told) if change.waiting == "fails" else "",
        gone=gone,
        records=records,
        lanes=lanes,
        events=placed,
        **more,
    )

    def move(tx: Transaction) -> bool:
        tx.call(procedure, given)
        if change.forced and change.source == key.owner:
            _cancel_subflows(tx, [branch_columns(tenant, head.key) for head in change.heads], now_us)
        change_rows(tx, change.rows)
        hit(BEFORE_COMMIT)
        return True

    def found() -> bool | None:
        # A record's hash covers everything about it, and they come together.
        for head in after[:1]:
            row = engine.one("record_at", **branch_columns(tenant, head.key), seq=head.journal_seq)
            return (row is not None and row[0] == head.journal_tip) or None
        return None

    hit(BEFORE_TRANSACTION)
    try:
        send(lambda: engine.write(move), found=found)
    except Refused as refused:
        raise _refusal(key, gone[refused.row or 0].head if gone else None, refused.refusal) from None
    hit(AFTER_COMMIT)
    if events:
        announcer.wake()
    for head in change.heads:
        kernel._commits.forget(head.key)


def _cancel_subflows(tx: Transaction, branches: Sequence[dict[str, Any]], now_us: int) -> None:
    """End what runs that were just cancelled have begun in other workflows: nobody waits for it any more."""
    # Loaded by who deletes: every program has the verbs.
    from analemma.catalog.runs.runs import cancel_below

    parents = [row[0] for branch in branches for row in tx.all("cancelled_parents", **branch)]

    def idle(key: BranchKey) -> RowChange:
        said = {"owner": key.owner, "workflow": key.workflow, "name": None, "status": "IDLE", "now": now_us}
        return RowChange("set_workflow", {"tenant": branches[0]["tenant"], **said}, None)

    cancel_below(tx, parents, idle)


def _refusal(key: BranchKey, head: Head | None, refusal: str) -> Conflict:
    key = key if head is None else head.key._replace(owner=key.owner)
    name = f"branch {key.branch} of workflow {key.owner}/{key.workflow}"
    match refusal:
        case "run_goes_on":
            return Conflict(f"a run of {name} goes on", hint="cancel it, or delete with force", branch=key.branch)
        case "name_used":
            others = "other branches that were deleted with it come back by their names"
            return Conflict(f"{name} cannot be had back: its name was used again", hint=others, branch=key.branch)
        case "thread_used":
            return Conflict(f"the thread of {name} is used again", hint="delete that first", branch=key.branch)
        case "tag_used":
            return Conflict(f"a tag of {name} is on another version by now", hint="untag that first", branch=key.branch)
        case "branch_began":
            return HeadMoved(f"another branch of workflow {key.owner}/{key.workflow} began", hint="look again", key=key)
        case _:
            return HeadMoved(f"{name} is not where it was", hint="look again", key=key, expected=head)


def _heads(kernel: Kernel, key: BranchKey) -> list[Head]:
    """Where the branches of a workflow stand."""
    asked = {"tenant": kernel._tenant, "owner": key.owner, "workflow": key.workflow}
    rows = kernel._context.engine.all("heads_of_workflow", **asked)
    return [Head(key._replace(branch=branch), *stood) for branch, *stood in rows]


def _deleted_rows(
    kernel: Kernel, owner: str | None = None, workflow: str | None = None, *, before_us: int = FOREVER
) -> list[DeletedRow]:
    """What is deleted, the newest deletion first."""
    asked = {"tenant": kernel._tenant, "owner": owner, "workflow": workflow, "before": before_us}
    found = []
    for *row, used_again, manifest, version, seq, tip in kernel._context.engine.all("deleted_branches", **asked):
        aside, _, named, branch, *_ = row
        head = None if manifest is None else Head(BranchKey(aside, named, branch), manifest, version, seq, tip)
        found.append(DeletedRow._make((*row, bool(used_again), head)))
    return found


def _shown(kernel: Kernel, row: DeletedRow, head: Head) -> DeletedBranch:
    until_us = row.deleted_at_us + int(kernel._context.settings.delete_grace_s * SECOND_US)
    deleted_at, until = moment(row.deleted_at_us), moment(until_us)
    return DeletedBranch(row.owner, row.workflow, row.branch, head.version, head.manifest.hex(), deleted_at, until)
