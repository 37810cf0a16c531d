"""The ledger of the SQL catalogs: deltas on their way to becoming versions.

An entry leaves the ledger in the transaction that makes its version, so it is applied once, whoever tries and dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from analemma.catalog.engine.db import Engine, Row, Transaction
from analemma.catalog.engine.procedures import Refused
from analemma.catalog.kernel.commits import (
    Batch,
    BranchRecord,
    Move,
    check_request,
    find_key,
    missing_upload,
)
from analemma.catalog.kernel.ledger_port import BranchSettlement, Delta, LedgerEntry, PendingEntry, TicketRow
from analemma.catalog.kernel.versions import stored_id
from analemma.catalog.names import check_key, check_part
from analemma.catalog.outbox.events import in_lanes
from analemma.catalog.port import BranchKey, CommitRequest, Head, Idempotency, TenantId
from analemma.clock import Clock
from analemma.errors import Conflict, Invalid
from analemma.failpoints import declare, hit

BEFORE_INSERT = declare("ledger.before_insert", "the delta is packed and nothing is written")
AFTER_INSERT = declare("ledger.after_insert", "the delta is durable, but the caller does not know")
BEFORE_TRANSACTION = declare("apply.before_transaction", "the versions of pending deltas are built and none is written")
BEFORE_COMMIT = declare("apply.before_commit", "the versions are written inside the transaction")
AFTER_COMMIT = declare("apply.after_commit", "the versions are committed, but nobody knows")

LARGEST = (1 << 63) - 1


class SqlLedger:
    """Implements `LedgerCatalog`'s own part."""

    engine: Engine
    clock: Clock
    key_keep_us: int

    def enter(self, tenant: TenantId, entry: LedgerEntry) -> int:
        return self.enter_all(tenant, [entry])[0]

    def enter_all(self, tenant: TenantId, entries: Sequence[LedgerEntry]) -> list[int]:
        for entry in entries:
            check_key(entry.key)
            if entry.idempotency_key is not None:
                check_part(entry.idempotency_key, "idempotency key")
        hit(BEFORE_INSERT)
        # Everyone locks branches in the order of their keys; within a branch their order stays.
        entering = Entering(tenant, sorted(entries, key=lambda entry: entry.key))
        places = self.engine.write(lambda tx: tx.call("enter_pending", entering)) or []
        hit(AFTER_INSERT)
        found = {entry.secret: place for entry, place in zip(entering.entries, places, strict=True)}
        return [found[entry.secret] for entry in entries]

    def ticket(self, tenant: TenantId, seq: int, secret: bytes) -> TicketRow | None:
        row = self.engine.one("ticket_state", tenant=tenant, seq=seq, secret=secret)
        return None if row is None else TicketRow(BranchKey(*row[:3]), *row[3:])

    def kept_delta(self, tenant: TenantId, seq: int, secret: bytes) -> Delta | None:
        row = self.engine.one("kept_delta", tenant=tenant, seq=seq, secret=secret)
        return None if row is None else Delta(codec=row[0], size=row[1], digest=row[2], body=row[3])

    def pending_request(self, tenant: TenantId, key: BranchKey, idempotency_key: str) -> bytes | None:
        return self.engine.row(
            bytes, "pending_request", tenant=tenant, owner=key.owner, workflow=key.workflow, key=idempotency_key
        )

    def newest_pending(self, tenant: TenantId, key: BranchKey | None = None) -> int | None:
        if key is None:
            row = self.engine.one("newest_pending_of_all", tenant=tenant)
        else:
            row = self.engine.one("newest_pending", **_branch(tenant, key))
        return None if row is None or row[0] is None else int(row[0])

    def pending_count(self, tenant: TenantId) -> int:
        return int(self.engine.value("pending_count", tenant=tenant))

    def pending_branches(
        self, tenant: TenantId, *, before_us: int | None = None, through: int | None = None, limit: int = 100
    ) -> list[BranchKey]:
        return self.engine.rows(
            BranchKey,
            "pending_branches",
            tenant=tenant,
            before=LARGEST if before_us is None else before_us,
            through=LARGEST if through is None else through,
            limit=limit,
        )

    def pending_entries(
        self,
        tenant: TenantId,
        keys: Sequence[BranchKey],
        *,
        through: int | None = None,
        most_entries: int,
        most_bytes: int,
    ) -> list[PendingEntry]:
        rows = self.engine.all(
            "pending_entries",
            tenant=tenant,
            keys=_rows(keys),
            through=LARGEST if through is None else through,
            most_entries=most_entries,
            most_bytes=most_bytes,
        )
        return [_pending(row) for row in rows]

    def heads(self, tenant: TenantId, keys: Sequence[BranchKey]) -> dict[BranchKey, Head]:
        return _heads(self.engine.all("heads", tenant=tenant, keys=_rows(keys)))

    def settle(self, tenant: TenantId, settlements: Sequence[BranchSettlement]) -> list[bool]:
        for settlement in settlements:
            for request in settlement.commits:
                check_request(request)
                _check_own(request)
        hit(BEFORE_TRANSACTION)
        chosen = sorted(settlements, key=lambda each: each.key)
        while chosen:
            settling = _settling(tenant, chosen, self.clock.now_us(), self.key_keep_us)
            try:
                self.engine.write(partial(_settle, settling))
                break
            except Refused as refused:
                # Its head is another by now, or one of its entries is gone: the others are as they were, perhaps.
                chosen.remove(_refused(settling, chosen, refused))
        hit(AFTER_COMMIT)
        done = {each.key for each in chosen}
        return [settlement.key in done for settlement in settlements]

    def known_requests(self, tenant: TenantId, entries: Sequence[PendingEntry]) -> dict[int, Idempotency]:
        known: dict[int, Idempotency] = {}
        for pending in entries:
            key, asked = pending.entry.key, pending.entry.idempotency_key
            if asked is None:
                continue
            row = find_key(self.engine, tenant, key, asked, key_keep_us=self.key_keep_us)
            if row is not None:
                known[pending.seq] = Idempotency(asked, row[0], row[2])
        return known

    def forget_tickets(self, tenant: TenantId, *, before_us: int) -> int:
        return self.engine.execute("forget_tickets", tenant=tenant, before=before_us)


class Entering(NamedTuple):
    """What `enter_pending` takes."""

    tenant: TenantId
    entries: Sequence[LedgerEntry]


def _settle(settling: SimpleNamespace, tx: Transaction) -> None:
    tx.call("settle_pending", settling)
    hit(BEFORE_COMMIT)


def _settling(
    tenant: TenantId, settlements: Sequence[BranchSettlement], now_us: int, key_keep_us: int
) -> SimpleNamespace:
    requests = [request for settlement in settlements for request in settlement.commits]
    moves = [Move(each.head, each.expected, each.first) for each in settlements]
    batch = Batch(
        tenant,
        now_us,
        key_keep_us,
        [move for move in moves if move.expected is not None],
        [move for move in moves if move.expected is None and move.manifest is not None],
        *in_lanes([event for request in requests for event in request.events]),
        # A branch's head cannot expire: its manifest needs no lock of its own.
        (),
        # As they were emitted, version by version: packing takes the place of a manifest's block for the end of its
        # commit.
        [*{block.id: block for request in requests for block in request.blocks}.values()],
        sorted({upload for request in requests for upload in request.uploads}),
        [request.manifest for request in requests],
        [BranchRecord(request.head.key, record) for request in requests for record in request.journal],
        [request for request in requests if request.idempotency is not None],
    )
    return SimpleNamespace(
        **batch._asdict(),
        absent=[each.key for each in settlements if each.expected is None and each.first is None],
        entries=[step for settlement in settlements for step in settlement.steps],
    )


def _refused(settling: SimpleNamespace, chosen: Sequence[BranchSettlement], refused: Refused) -> BranchSettlement:
    """Whose settlement stood in the way; raise if none did."""
    row = refused.row
    assert row is not None
    match refused.refusal:
        case "head_moved":
            key = settling.heads[row].head.key
        case "branch_exists":
            key = settling.begun[row].head.key
        case "head_exists":
            key = settling.absent[row]
        case "entry_gone":
            return next(each for each in chosen if settling.entries[row] in each.steps)
        case "upload_gone":
            raise missing_upload() from None
        case _:
            raise Conflict("an idempotency key of a pending delta was taken meanwhile", hint="look again") from None
    return next(each for each in chosen if each.key == key)


def _check_own(request: CommitRequest) -> None:
    """Raise Invalid for what only a commit of its own can do: the versions of entries are written many at a time."""
    parent = () if request.expected is None else (request.expected.manifest,)
    if request.rows or not set(request.bases) <= set(parent):
        raise Invalid(
            "a version of a pending delta brings rows of others, or links blocks of others than the version before it"
        )


def _pending(row: Row) -> PendingEntry:
    seq, owner, workflow, branch, secret, codec, size, body, digest, created_at, idempotency_key, fingerprint = row
    return PendingEntry(
        seq,
        LedgerEntry(
            BranchKey(owner, workflow, branch),
            secret,
            Delta(codec=codec, size=size, body=body, digest=digest),
            created_at,
            idempotency_key,
            fingerprint,
        ),
    )


def _heads(rows: Sequence[Row]) -> dict[BranchKey, Head]:
    found = {}
    for owner, workflow, branch, manifest, version, journal_seq, journal_tip in rows:
        key = BranchKey(owner, workflow, branch)
        found[key] = Head(key, stored_id(manifest, key), version, journal_seq, journal_tip)
    return found


def _rows(keys: Sequence[BranchKey]) -> list[tuple[str, str, str]]:
    return [(key.owner, key.workflow, key.branch) for key in keys]


def _branch(tenant: TenantId, key: BranchKey) -> dict[str, Any]:
    return {"tenant": tenant, "owner": key.owner, "workflow": key.workflow, "branch": key.branch}
