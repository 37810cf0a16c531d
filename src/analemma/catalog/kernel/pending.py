"""Pending deltas: acknowledged ones go in, versions and tickets come out (`state.checkpoints.Pending` makes them).

A row is a delta that waits, and later what became of it: it is settled in the transaction that makes its version, so it
is applied once, whoever tries and dies. The entries of a branch have places in the order in which they became durable.
`SqlCatalog` names these functions as its own."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

from analemma.catalog.engine.db import Transaction
from analemma.catalog.kernel.commits import batch_of, change_rows
from analemma.catalog.kernel.versions import NEWEST, branch_columns, stored_id
from analemma.catalog.port import BranchKey, CommitRequest, Head, TenantId
from analemma.failpoints import declare, hit

if TYPE_CHECKING:
    from analemma.catalog.sql_catalog import SqlCatalog

BEFORE_INSERT = declare("ledger.before_insert", "the delta is packed and nothing is written")
AFTER_INSERT = declare("ledger.after_insert", "the delta is durable, but the caller does not know")
BEFORE_TRANSACTION = declare("apply.before_transaction", "the versions of pending deltas are built and none is written")
BEFORE_COMMIT = declare("apply.before_commit", "the versions are written inside the transaction")
AFTER_COMMIT = declare("apply.after_commit", "the versions are committed, but nobody knows")


class PendingEntry(NamedTuple):
    """A delta that is to become the next version of a branch: canonical bytes, stored as `codec` says."""

    key: BranchKey
    secret: bytes
    """16 random bytes: whoever holds a ticket shows them."""
    created_at_us: int
    idempotency_key: str | None
    fingerprint: bytes | None
    codec: int
    size: int
    """Length of the canonical bytes."""
    digest: bytes
    """SHA-256 of the canonical bytes."""
    body: bytes
    seq: int = 0
    """Its place among those of its branch, once it has one."""


class Settlement(NamedTuple):
    """What is to become of one entry: a version (`commit`), a version that there is already, or a failure."""

    seq: int
    commit: CommitRequest | None = None
    receipt: bytes | None = None
    """Of the version; None: it failed."""
    failure: str | None = None


class TicketRow(NamedTuple):
    """Where an entry stands: neither receipt nor failure while it is pending."""

    key: BranchKey
    at_us: int
    """When it was entered or, later, settled."""
    receipt: bytes | None
    failure: str | None


def enter(catalog: SqlCatalog, tenant: TenantId, entry: PendingEntry) -> int:
    """Keep the delta, durably; its place."""
    entering = SimpleNamespace(tenant=tenant, entries=(entry,))
    hit(BEFORE_INSERT)
    places = catalog.engine.write(lambda tx: tx.call("enter_pending", entering), alone=True)
    hit(AFTER_INSERT)
    assert places is not None
    return int(places[0])


def ticket(catalog: SqlCatalog, tenant: TenantId, seq: int, secret: bytes) -> TicketRow | None:
    """Where an entry stands; None unless place, secret and tenant all are its own."""
    row = catalog.engine.one("ticket", tenant=tenant, seq=seq, secret=secret)
    return None if row is None else TicketRow(BranchKey(*row[:3]), *row[3:])


def pending_request(catalog: SqlCatalog, tenant: TenantId, key: BranchKey, idempotency_key: str) -> bytes | None:
    """The fingerprint of what is pending under this key, if anything."""
    return catalog.engine.row(
        bytes, "pending_request", tenant=tenant, owner=key.owner, workflow=key.workflow, key=idempotency_key
    )


def newest_pending(catalog: SqlCatalog, tenant: TenantId, key: BranchKey | None = None) -> int | None:
    """The last place that is taken by an entry that is pending, on one branch or on any."""
    newest: int | None
    if key is None:
        newest = catalog.engine.value("newest_pending_of_all", tenant=tenant)
    else:
        newest = catalog.engine.value("newest_pending", **branch_columns(tenant, key))
    return newest


def pending_count(catalog: SqlCatalog, tenant: TenantId) -> int:
    """How many entries are pending."""
    return int(catalog.engine.value("pending_count", tenant=tenant))


def pending_branches(
    catalog: SqlCatalog, tenant: TenantId, *, before_us: int = NEWEST, through: int = NEWEST, limit: int = 100
) -> list[BranchKey]:
    """Branches with entries that are pending; with such as were made before a time, or have a place up to one."""
    return catalog.engine.rows(
        BranchKey, "pending_branches", tenant=tenant, before=before_us, through=through, limit=limit
    )


def pending_entries(
    catalog: SqlCatalog, tenant: TenantId, keys: Sequence[BranchKey], *, most_entries: int, most_bytes: int
) -> list[PendingEntry]:
    """By place: the first entries of each branch, at most so many in all; and no further ones once their stored
    bytes reach `most_bytes`."""
    rows = catalog.engine.all(
        "pending_entries", tenant=tenant, keys=_rows(keys), most_entries=most_entries, most_bytes=most_bytes
    )
    return [PendingEntry._make((BranchKey(*row[1:4]), *row[4:], row[0])) for row in rows]


def heads(catalog: SqlCatalog, tenant: TenantId, keys: Sequence[BranchKey]) -> dict[BranchKey, Head]:
    """Where those of the branches stand that exist."""
    rows = catalog.engine.all("heads", tenant=tenant, keys=_rows(keys))
    found = [(BranchKey(*row[:3]), row) for row in rows]
    return {key: Head(key, stored_id(row[3], key), *row[4:]) for key, row in found}


def settle(catalog: SqlCatalog, tenant: TenantId, settlements: Sequence[Settlement]) -> None:
    """Make versions of entries, those of a branch each on the one before, and note what became of each, durably and
    in one transaction. Raises and changes nothing: Conflict (a head is another by now, an entry is not pending any
    more, an idempotency key was taken, or an upload collected meanwhile), Unavailable, OutcomeUnknown."""
    requests = [settlement.commit for settlement in settlements if settlement.commit is not None]
    # By place: whoever settles entries locks them in one order.
    entries = sorted(settlements, key=lambda settlement: settlement.seq)
    settling = batch_of(catalog, tenant, requests, {"entries": entries})
    rows = [row for request in requests for row in request.rows]

    def settle(tx: Transaction) -> None:
        tx.call("settle_pending", settling)
        change_rows(tx, rows)
        hit(BEFORE_COMMIT)

    hit(BEFORE_TRANSACTION)
    catalog.engine.write(settle)
    hit(AFTER_COMMIT)


def forget_tickets(catalog: SqlCatalog, tenant: TenantId, *, before_us: int) -> int:
    """Remove what is known of entries that were settled before a time; how many."""
    return catalog.engine.execute("forget_tickets", tenant=tenant, before=before_us)


def _rows(keys: Sequence[BranchKey]) -> list[tuple[str, ...]]:
    """Plain ones, as JSON takes them."""
    return [tuple(key) for key in keys]
