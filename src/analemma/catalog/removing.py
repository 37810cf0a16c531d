"""Removing whole branches: their versions, journal and marks go in one transaction, and one row says what was there.

Nothing of a branch can be verified once it is gone, so its journal goes with it. The row keeps where each branch stood
and the end of its hash chain: whoever holds a receipt can tell what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from analemma.catalog.commits import change_rows, read_head
from analemma.catalog.engine import Engine, Transaction
from analemma.catalog.lost_answers import send
from analemma.catalog.outbox_producing import enqueue
from analemma.catalog.port import BranchKey, Head, OutboxEvent, RowChange, TenantId
from analemma.catalog.records import branch_columns
from analemma.errors import HeadMoved
from analemma.failpoints import declare, hit

BEFORE_TRANSACTION = declare("remove.before_transaction", "branches were looked at, and none is deleted")
BEFORE_COMMIT = declare("remove.before_commit", "branches are deleted inside the transaction")
AFTER_COMMIT = declare("remove.after_commit", "branches are gone, but the caller does not know")

PARTS = (
    "drop_branch_tags",
    "drop_branch_pins",
    "drop_branch_versions",
    "drop_branch_journal",
    "drop_branch_expired",
    "drop_branch",
)


@dataclass(frozen=True, slots=True)
class RemovalRequest:
    """Branches of one workflow that go together, or not at all."""

    tenant: TenantId
    owner: str
    workflow: str
    heads: tuple[Head, ...]
    """Where each of them stands: one that has moved on stays, and all others with it."""
    removed_at_us: int
    body: bytes
    """What is left of them, as the journal writes records."""
    hash: bytes
    rows: tuple[RowChange, ...] = ()
    """What else goes with them."""
    whole: bool = False
    """Whether these are all branches of the workflow: one that began meanwhile keeps all of them."""
    events: tuple[OutboxEvent, ...] = ()


def remove_branches(engine: Engine, request: RemovalRequest) -> None:
    """Remove them, durably. Raises HeadMoved and changes nothing if one of them is elsewhere by now, or deltas wait for
    it, or a `whole` workflow has others."""
    hit(BEFORE_TRANSACTION)
    workflow = {"tenant": request.tenant, "owner": request.owner, "workflow": request.workflow}
    send(
        lambda: engine.write(lambda tx: _remove(tx, request)),
        found=lambda: engine.one("removal", **workflow, hash=request.hash) is not None or None,
    )
    hit(AFTER_COMMIT)


def _remove(tx: Transaction, request: RemovalRequest) -> bool:
    # The set of branches, then heads in the order of their keys, then versions: the order of every commit.
    workflow = {"tenant": request.tenant, "owner": request.owner, "workflow": request.workflow}
    tx.one("hold_branches", **workflow)
    heads = sorted(request.heads, key=lambda head: head.key)
    for head in heads:
        at = {"manifest": head.manifest, "version": head.version}
        tip = {"journal_seq": head.journal_seq, "journal_tip": head.journal_tip}
        if tx.execute("drop_head", **branch_columns(request.tenant, head.key), **at, **tip) != 1:
            raise HeadMoved(
                f"branch {head.key.branch} of workflow {head.key.owner}/{head.key.workflow} is not where it was",
                hint="look again",
                key=head.key,
                expected=head,
                found=read_head(tx, request.tenant, head.key),
            )
    for head in heads:
        branch = branch_columns(request.tenant, head.key)
        # A commit that builds on one of the versions is waited for: then what it takes over is its own.
        tx.all("hold_branch", **branch)
        for statement in PARTS:
            tx.execute(statement, **branch)
    if heads and tx.execute("drop_workflow", **workflow):
        tx.execute("drop_workflow_keys", **workflow)
        tx.execute("drop_workflow_policy", **workflow)
    if heads:
        tx.execute("add_removal", **workflow, removed_at=request.removed_at_us, body=request.body, hash=request.hash)
    # Behind the heads, which whoever writes to these lanes holds before them.
    enqueue(tx, request.tenant, request.events, now_us=request.removed_at_us)
    change_rows(tx, request.rows)
    # Last: a branch whose rows were just changed with the others is seen here.
    if request.whole and (other := tx.one("any_head", **workflow)) is not None:
        raise HeadMoved(
            f"branch {other[0]} of workflow {request.owner}/{request.workflow} began meanwhile",
            hint="look again",
            key=BranchKey(request.owner, request.workflow, other[0]),
        )
    hit(BEFORE_COMMIT)
    return True
