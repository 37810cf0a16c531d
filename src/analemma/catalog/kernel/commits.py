"""A commit: one procedure, one transaction; what it takes, and what whoever is refused is told. Whether one
happened whose answer was lost is looked up (`engine.db.send`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

from analemma.canon.identity import BlockId
from analemma.catalog.engine.db import Transaction, send
from analemma.catalog.engine.procedures import Refused
from analemma.catalog.kernel.versions import read_head
from analemma.catalog.names import check_key
from analemma.catalog.outbox.lanes import LanePlan, PlacedEvent, check_events, in_lanes
from analemma.catalog.port import (
    BlockRow,
    BranchKey,
    CommitRequest,
    Committed,
    Head,
    Idempotency,
    OutboxEvent,
    RowChange,
    TenantId,
    UploadId,
    Version,
)
from analemma.errors import Conflict, Expired, HeadMoved, Invalid, Unavailable
from analemma.failpoints import declare, hit

if TYPE_CHECKING:
    from analemma.catalog.sql_catalog import SqlCatalog

KEY_KEEP_US = 30 * 86_400 * 1_000_000
"""So long an idempotency key counts at least, unless the settings say otherwise."""

BEFORE_TRANSACTION = declare("commit.before_transaction", "nothing is written yet")
BEFORE_COMMIT = declare("commit.before_commit", "everything is written, nothing is committed")
AFTER_COMMIT = declare("commit.after_commit", "committed, but the caller does not know")


class Batch(NamedTuple):
    """Everything that procedures which make versions take, whether of one commit or of many."""

    tenant: TenantId
    now: int
    keep: int
    heads: Sequence[CommitRequest]
    """Branches that go on, and what becomes of each."""
    begun: Sequence[CommitRequest]
    """Branches that begin."""
    lanes: Sequence[LanePlan]
    events: Sequence[PlacedEvent]
    bases: Sequence[BlockId]
    blocks: Sequence[BlockRow]
    uploads: Sequence[UploadId]
    versions: Sequence[Version]
    records: Sequence[CommitRequest]
    keys: Sequence[CommitRequest]


def batch_of(catalog: SqlCatalog, tenant: TenantId, requests: Sequence[CommitRequest]) -> Batch:
    """Requests as procedures take them, those of each branch in their order; Invalid unless each is of one piece. Their
    texts are checked where callers give them, but for keys and events."""
    moves: dict[BranchKey, CommitRequest] = {}
    parents: set[BlockId] = set()
    events: list[OutboxEvent] = []
    for request in requests:
        head, manifest, expected = request.head, request.manifest, request.expected
        check_key(head.key)
        if manifest.key != head.key or manifest.id != head.manifest or manifest.version != head.version:
            raise Invalid("the head does not name the manifest of the same commit")
        if expected is not None:
            if expected.key != head.key or head.version != expected.version + 1:
                raise Invalid("a version follows the one before it, on the same branch")
            parents.add(expected.manifest)
        if request.events:
            check_events(request.events)
            events += request.events
        first = moves.get(head.key)
        if first is not None:
            request = replace(request, expected=first.expected, manifest=first.manifest)
        moves[head.key] = request
    # Heads in the order of their keys, as everyone locks them.
    ordered = [moves[key] for key in sorted(moves)]
    return Batch(
        tenant,
        catalog.clock.now_us(),
        catalog.key_keep_us,
        [request for request in ordered if request.expected is not None],
        [request for request in ordered if request.expected is None],
        *(in_lanes(events) if events else ((), ())),
        # A head that is moved names the expected manifest: nobody removes that who does not hold the head.
        sorted({base for request in requests for base in request.bases} - parents),
        # As they were emitted, version by version: packing takes the place of a manifest's block for the end of its
        # commit.
        [*{block.id: block for request in requests for block in request.blocks}.values()],
        sorted({upload for request in requests for upload in request.uploads}),
        [request.manifest for request in requests],
        requests,
        [request for request in requests if request.idempotency is not None],
    )


def commit(catalog: SqlCatalog, request: CommitRequest) -> Committed:
    """Write everything, durably, or raise and write nothing."""
    batch = batch_of(catalog, request.tenant, (request,))
    given: object = batch
    procedure, rows = "commit_versions", request.rows
    if len(rows) == 1 and rows[0].commit is not None and batch.heads and not batch.keys:
        procedure, given = rows[0].commit, SimpleNamespace(**{**batch._asdict(), **rows[0].parameters})
        rows = ()

    def write(tx: Transaction) -> list[BlockId]:
        stored = tx.call(procedure, given)
        change_rows(tx, rows)
        if tx.is_open:
            hit(BEFORE_COMMIT)
        return stored or []

    def found() -> list[BlockId] | None:
        made = request.tenant, request.manifest.id
        # It may have been committed, followed by others, and expired, all before we asked.
        return None if catalog.manifest(*made) is None and catalog.expired(*made) is None else []

    hit(BEFORE_TRANSACTION)
    try:
        committed = Committed(frozenset(send(lambda: catalog.engine.write(write, alone=not rows), found=found)))
    except Refused as refused:
        committed = Committed(receipt=_refused(catalog, request, batch, refused))
    hit(AFTER_COMMIT)
    return committed


def receipt(catalog: SqlCatalog, tenant: TenantId, key: BranchKey, idempotency_key: str) -> Idempotency | None:
    """What was committed under a key that counts: one that is not older than keys are kept, or whose version is
    there."""
    row = catalog.engine.one(
        "idempotency",
        tenant=tenant,
        owner=key.owner,
        workflow=key.workflow,
        key=idempotency_key,
        keep=catalog.key_keep_us,
    )
    return None if row is None else Idempotency(idempotency_key, *row)


def _refused(catalog: SqlCatalog, request: CommitRequest, batch: Batch, refused: Refused) -> bytes:
    """The receipt of a request that was made before; for any other, raise what it is told."""
    match refused.refusal:
        case "base_gone":
            assert refused.row is not None
            manifest = batch.bases[refused.row].hex()
            hint = "build on a version that is still there"
            raise Expired(f"manifest {manifest} has expired", hint=hint, manifest=manifest) from None
        case "upload_gone":
            raise missing_upload() from None
        case "key_known" | "head_moved" | "branch_exists":
            pass
        case _:
            raise _other_rows(request.rows[0].statement) from None
    tenant, key, asked = request.tenant, request.head.key, request.idempotency
    # Whoever moved the head may have been this very request, sent twice.
    before = None if asked is None else receipt(catalog, tenant, key, asked.key)
    if asked is not None and before is not None:
        if before.fingerprint != asked.fingerprint:  # guard: key.other_request
            raise Conflict(
                f"the idempotency key {asked.key!r} was used for another request",
                hint="use a new key for a new request",
                idempotency_key=asked.key,
            )
        return before.receipt
    if refused.refusal == "key_known":
        raise Unavailable("the idempotency key was taken meanwhile", hint="try again") from refused
    found = read_head(catalog.engine, tenant, key)
    if refused.doubt is not None and request.unless_pending and found == request.expected:
        # It says nothing about the lost one: what is pending was entered since, perhaps.
        raise refused.doubt
    raise _head_moved(request, found) from None


def _head_moved(request: CommitRequest, found: Head | None) -> HeadMoved:
    key, expected = request.head.key, request.expected
    wanted = "no branch" if expected is None else f"version {expected.version}"
    there = "none" if found is None else f"version {found.version}"
    return HeadMoved(
        f"{key.owner}/{key.workflow}@{key.branch} is not where this commit was built: expected {wanted}, found {there}",
        hint="reload and retry",
        key=key,
        expected=expected,
        found=found,
    )


def change_rows(tx: Transaction, rows: Sequence[RowChange]) -> None:
    """Make the changes that others want in the same transaction; Conflict, and it must be undone, if one of them finds
    other rows than it should."""
    for change in rows:
        if not change_row(tx, change):
            raise _other_rows(change.statement)


def change_row(tx: Transaction, change: RowChange) -> bool:
    """Whether it found what it has to change."""
    if change.commit is None:
        touched = tx.execute(change.statement, **change.parameters)
        return change.touches is None or touched == change.touches
    try:
        tx.call(change.statement, SimpleNamespace(**change.parameters))
    except Refused:
        return False
    return True


def _other_rows(statement: str) -> Conflict:
    return Conflict(f"{statement} did not find what it has to change", hint="look again", statement=statement)


def missing_upload() -> Conflict:
    """The collector took an upload before its commit came."""
    return Conflict("an upload of this commit was collected meanwhile", hint="upload and commit again")
