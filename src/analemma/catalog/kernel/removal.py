"""Removing whole branches: their versions, journal and marks go in one transaction, and one row says what was there.

Nothing of a branch can be verified once it is gone, so its journal goes with it. The row keeps where each branch stood
and the end of its hash chain: whoever holds a receipt can tell what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

from analemma.catalog.engine.db import Engine, Transaction, send
from analemma.catalog.engine.procedures import Refused
from analemma.catalog.kernel.commits import change_rows
from analemma.catalog.kernel.versions import read_head
from analemma.catalog.outbox.events import check_events, in_lanes
from analemma.catalog.port import BranchKey, Head, OutboxEvent, RowChange, TenantId
from analemma.errors import HeadMoved
from analemma.failpoints import declare, hit

BEFORE_TRANSACTION = declare("remove.before_transaction", "branches were looked at, and none is deleted")
BEFORE_COMMIT = declare("remove.before_commit", "branches are deleted inside the transaction")
AFTER_COMMIT = declare("remove.after_commit", "branches are gone, but the caller does not know")


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
    workflow = {"tenant": request.tenant, "owner": request.owner, "workflow": request.workflow}
    # Heads in the order of their keys, as everyone locks them.
    heads = sorted(request.heads, key=lambda head: head.key)
    lanes, events = in_lanes(request.events)
    check_events(request.events)
    given = SimpleNamespace(
        **workflow,
        now=request.removed_at_us,
        gone=heads,
        removals=[request] if heads else [],
        lanes=lanes,
        events=events,
    )

    def remove(tx: Transaction) -> bool:
        tx.call("remove_branches", given)
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

    hit(BEFORE_TRANSACTION)
    try:
        send(
            lambda: engine.write(remove),
            found=lambda: engine.one("removal", **workflow, hash=request.hash) is not None or None,
        )
    except Refused as refused:
        head = heads[refused.row or 0]
        raise HeadMoved(
            f"branch {head.key.branch} of workflow {head.key.owner}/{head.key.workflow} is not where it was",
            hint="look again",
            key=head.key,
            expected=head,
            found=read_head(engine, request.tenant, head.key),
        ) from None
    hit(AFTER_COMMIT)
