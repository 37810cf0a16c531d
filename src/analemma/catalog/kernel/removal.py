"""Deleting branches, bringing them back, and removing them for good: each is one transaction.

A deletion gives all rows of its branches to an owner whom nobody can name (`catalog.port.ASIDE`), and bringing them
back is the same the other way. Journals stay, and end in the tombstone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

from analemma.canon.identity import BlockId
from analemma.catalog.engine.db import Engine, Statements, Transaction, send
from analemma.catalog.engine.procedures import Refused
from analemma.catalog.kernel.commits import change_rows
from analemma.catalog.kernel.versions import branch_columns
from analemma.catalog.outbox.lanes import check_events, in_lanes
from analemma.catalog.port import BranchKey, Head, JournalRow, OutboxEvent, RowChange, TenantId
from analemma.catalog.runs.runs import cancel_below
from analemma.errors import Conflict, HeadMoved
from analemma.failpoints import declare, hit

BEFORE_TRANSACTION = declare("remove.before_transaction", "branches were looked at, and none is deleted")
BEFORE_COMMIT = declare("remove.before_commit", "branches are deleted inside the transaction")
AFTER_COMMIT = declare("remove.after_commit", "branches are gone, but the caller does not know")

FOREVER = (1 << 63) - 1


class Gone(NamedTuple):
    """A branch that is to go elsewhere, or away: where it stands, and what its journal says of that."""

    head: Head
    record: JournalRow | None = None
    """None: it says so already."""


class Removal(NamedTuple):
    """Branches of one workflow that go together, or not at all. Their heads are where their rows are: at the workflow's
    owner, or at that of a deletion."""

    tenant: TenantId
    key: BranchKey
    """Whose they are; any branch of the workflow."""
    gone: tuple[Gone, ...]
    """One that has moved on stays, and all others with it."""
    events: tuple[OutboxEvent, ...] = ()
    rows: tuple[RowChange, ...] = ()
    """What else goes with them."""
    whole: bool = False
    """Whether these are all branches of the workflow: one that began meanwhile keeps all of them."""
    forced: bool = False
    """Whether a run that goes on keeps nothing: it is cancelled."""
    at_us: int = 0
    failure: str = ""
    """What whoever waits for a checkpoint on one of them is told; without it, one that waits keeps all of them."""


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

    @property
    def key(self) -> BranchKey:
        """Where its rows are."""
        return BranchKey(self.aside, self.workflow, self.branch)


def move_branches(engine: Engine, removal: Removal, source: str, target: str, *, deleting: bool) -> None:
    """Delete branches, or bring them back, durably. HeadMoved, with nothing changed, if one of them is elsewhere by now
    or a `whole` workflow has others; Conflict if a run goes on, or if a name is used again."""
    given = _given(removal, source)
    given.target, given.deletions = target, [target] if deleting else []
    _do(engine, removal, "move_branches", given)


def remove_branches(engine: Engine, removal: Removal, source: str, left: Sequence[str], *, keeping: bool) -> None:
    """Remove branches for good, with what is left of others. HeadMoved, with nothing changed, if one of them is
    elsewhere by now or a `whole` workflow has others. With `keeping`, what others were forked from stays."""
    given = _given(removal, source)
    given.keeping, given.left = int(keeping), left
    _do(engine, removal, "remove_branches", given)


def _given(removal: Removal, source: str) -> SimpleNamespace:
    check_events(removal.events)
    lanes, events = in_lanes(removal.events)
    # Heads in the order of their keys, as everyone locks them.
    gone = sorted(removal.gone, key=lambda each: each.head.key)
    owner = removal.key.owner
    return SimpleNamespace(
        tenant=removal.tenant,
        owner=owner,
        workflow=removal.key.workflow,
        now=removal.at_us,
        source=source,
        whole=int(removal.whole),
        forced=int(removal.forced),
        failure=removal.failure,
        gone=gone,
        records=[
            each._replace(head=replace(each.head, key=each.head.key._replace(owner=owner)))
            for each in gone
            if each.record is not None
        ],
        lanes=lanes,
        events=events,
    )


def _do(engine: Engine, removal: Removal, procedure: str, given: SimpleNamespace) -> None:
    def remove(tx: Transaction) -> bool:
        tx.call(procedure, given)
        if removal.forced and given.source == given.owner:
            _cancel_subflows(tx, removal)
        change_rows(tx, removal.rows)
        hit(BEFORE_COMMIT)
        return True

    def found() -> bool | None:
        # A record's hash covers everything about it, and they come together.
        for each in given.records[:1]:
            row = engine.one("record_at", **branch_columns(removal.tenant, each.head.key), seq=each.record.seq)
            return (row is not None and row[0] == each.record.hash) or None
        return None

    hit(BEFORE_TRANSACTION)
    try:
        send(lambda: engine.write(remove), found=found)
    except Refused as refused:
        raise _refusal(removal, given.gone[refused.row or 0].head if given.gone else None, refused.refusal) from None
    hit(AFTER_COMMIT)


def _cancel_subflows(tx: Transaction, removal: Removal) -> None:
    """End what runs that were just cancelled have begun in other workflows: nobody waits for it any more."""
    keys = [branch_columns(removal.tenant, each.head.key) for each in removal.gone]
    parents = [row[0] for key in keys for row in tx.all("cancelled_parents", **key)]

    def idle(key: BranchKey) -> RowChange:
        said = {"owner": key.owner, "workflow": key.workflow, "name": None, "status": "IDLE", "now": removal.at_us}
        return RowChange("set_workflow", {"tenant": removal.tenant, **said}, None)

    cancel_below(tx, parents, idle)


def _refusal(removal: Removal, head: Head | None, refusal: str) -> Conflict:
    key = removal.key if head is None else head.key._replace(owner=removal.key.owner)
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


def workflow_heads(source: Statements, tenant: TenantId, key: BranchKey) -> list[Head]:
    """Where the branches of a workflow stand."""
    rows = source.all("heads_of_workflow", tenant=tenant, owner=key.owner, workflow=key.workflow)
    return [Head(key._replace(branch=row[0]), *row[1:]) for row in rows]


def deleted_branches(
    source: Statements,
    tenant: TenantId,
    *,
    owner: str | None = None,
    workflow: str | None = None,
    before_us: int = FOREVER,
) -> list[DeletedRow]:
    """What is deleted, the newest deletion first."""
    rows = source.all("deleted_branches", tenant=tenant, owner=owner, workflow=workflow, before=before_us)
    found = []
    for aside, whose, named, branch, created_at_us, deleted_at_us, used_again, *stood in rows:
        head = None if stood[0] is None else Head(BranchKey(aside, named, branch), *stood)
        found.append(DeletedRow(aside, whose, named, branch, created_at_us, deleted_at_us, bool(used_again), head))
    return found


def removable_versions(source: Statements, tenant: TenantId, key: BranchKey) -> list[BlockId]:
    """The versions of a deleted branch that nothing was forked from, nor from those behind them."""
    return [BlockId(row[0]) for row in source.all("removable_versions", **branch_columns(tenant, key))]


def forks_of(source: Statements, tenant: TenantId, key: BranchKey, version: int) -> list[BranchKey]:
    """The branches that were forked from a version of a branch, or from one behind it."""
    rows = source.all("forks_of", **branch_columns(tenant, key), version=version)
    return [BranchKey(*row) for row in rows]
