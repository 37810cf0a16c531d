"""Commits, and journal records that leave the head's version alone (tags, pins, decisions, expiries, each with its
rows): one procedure, one transaction (`commit_versions` of `sql/kernel/commits.sql` compares and sets the head); what
it takes, and what whoever is refused is told. Whether one happened whose answer was lost is looked up
(`engine.db.send`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from analemma.canon.nodes import BlockId
from analemma.catalog.engine.db import Transaction, send
from analemma.catalog.engine.procedures import Refused
from analemma.catalog.kernel.versions import branch_columns, read_head
from analemma.catalog.names import check_key
from analemma.catalog.outbox.lanes import in_lanes
from analemma.catalog.port import (
    BranchKey,
    CommitRequest,
    Committed,
    Head,
    Idempotency,
    JournalRow,
    OutboxEvent,
    RecordRequest,
    RowChange,
    TenantId,
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
RECORD_BEFORE_TRANSACTION = declare("record.before_transaction", "a record is made, and nothing of it is written")
RECORD_BEFORE_COMMIT = declare("record.before_commit", "the record and its row are written inside the transaction")
RECORD_AFTER_COMMIT = declare("record.after_commit", "the record is there, but the caller does not know")
EXPIRE_BEFORE_COMMIT = declare("expire.before_commit", "the versions are deleted inside the transaction")
EXPIRE_AFTER_COMMIT = declare("expire.after_commit", "the versions are gone, but the caller does not know")


class _Move(NamedTuple):
    """What becomes of a branch: from where it stands to its last new version, by way of the first."""

    expected: Head | None
    manifest: Version
    record: JournalRow
    first: Version
    unless_pending: bool


class Recorded(NamedTuple):
    """The next record of a branch's journal."""

    key: BranchKey
    record: JournalRow


def batch_of(
    catalog: SqlCatalog, tenant: TenantId, requests: Sequence[CommitRequest], beside: Mapping[str, Any]
) -> SimpleNamespace:
    """Requests as procedures take them, those of each branch in their order, and what one takes beside; Invalid unless
    each is of one piece. Their texts are checked where callers give them, but for keys and events."""
    moves: dict[BranchKey, _Move] = {}
    parents: set[BlockId] = set()
    events: list[OutboxEvent] = []
    for request in requests:
        manifest, expected = request.manifest, request.expected
        key = manifest.key
        check_key(key)
        if expected is not None:
            if expected.key != key or manifest.version != expected.version + 1:
                raise Invalid("a version follows the one before it, on the same branch")
            parents.add(expected.manifest)
        events += request.events
        earlier = moves.get(key)
        begun = (expected, manifest) if earlier is None else (earlier.expected, earlier.first)
        moves[key] = _Move(begun[0], manifest, request.record, begun[1], request.unless_pending)
    # Heads in the order of their keys, as everyone locks them.
    ordered = [moves[key] for key in sorted(moves)]
    lanes, placed = in_lanes(events) if events else ((), ())
    batch = SimpleNamespace(
        tenant=tenant,
        now=catalog.clock.now_us(),
        keep=catalog.key_keep_us,
        heads=[move for move in ordered if move.expected is not None],
        begun=[move for move in ordered if move.expected is None],
        lanes=lanes,
        events=placed,
        # A head that is moved names the expected manifest: nobody removes that who does not hold the head.
        bases=sorted({base for request in requests for base in request.bases} - parents),
        # As they were emitted, version by version: packing takes the place of a manifest's block for the end of its
        # commit.
        blocks=[*{block.id: block for request in requests for block in request.blocks}.values()],
        uploads=sorted({upload for request in requests for upload in request.uploads}),
        versions=[request.manifest for request in requests],
        records=[Recorded(request.manifest.key, request.record) for request in requests],
        keys=[request for request in requests if request.idempotency is not None],
    )
    vars(batch).update(beside)
    return batch


def commit(catalog: SqlCatalog, request: CommitRequest) -> Committed:
    """Write everything, durably, or raise and write nothing."""
    procedure, rows = "commit_versions", request.rows
    beside: Mapping[str, Any] = {}
    match rows:
        case (RowChange(commit=str(together)) as change,):
            procedure, beside, rows = together, change.parameters, ()
    batch = batch_of(catalog, request.tenant, (request,), beside)

    def write(tx: Transaction) -> list[BlockId]:
        stored = tx.call(procedure, batch)
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
        committed = Committed(known=_known(catalog, request, batch.bases, refused))
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


def _known(catalog: SqlCatalog, request: CommitRequest, bases: Sequence[BlockId], refused: Refused) -> Idempotency:
    """What was committed under the request's key before; for any other refusal, raise what it is told."""
    tenant, expected = request.tenant, request.expected
    match refused.refusal:
        case "key_known":
            assert request.idempotency is not None
            known = receipt(catalog, tenant, request.manifest.key, request.idempotency.key)
            if known is None:
                raise Unavailable("the idempotency key was taken meanwhile", hint="try again") from refused
            return known
        case "head_moved" | "branch_exists":
            found = read_head(catalog.engine, tenant, request.manifest.key)
            if refused.doubt is not None and request.unless_pending and found == expected:
                # It says nothing about the lost one: what is pending was entered since, perhaps.
                raise refused.doubt
            raise _head_moved(request.manifest.key, expected, found) from None
        case "base_gone":
            assert refused.row is not None
            manifest = bases[refused.row].hex()
            hint = "build on a version that is still there"
            raise Expired(f"manifest {manifest} has expired", hint=hint, manifest=manifest) from None
        case "upload_gone":
            raise missing_upload() from None
        case _:
            raise _other_rows(request.rows[0].statement) from None


def _head_moved(key: BranchKey, expected: Head | None, found: Head | None) -> HeadMoved:
    wanted = "no branch" if expected is None else f"version {expected.version}"
    there = "none" if found is None else f"version {found.version}"
    return HeadMoved(
        f"{key.owner}/{key.workflow}@{key.branch} is not where this was made: expected {wanted}, found {there}",
        hint="reload and retry",
        key=key,
        expected=expected,
        found=found,
    )


def append(catalog: SqlCatalog, request: RecordRequest) -> None:
    """Write a record that leaves the head's version alone, and what it tells of, durably, or raise and change nothing.

    The head row is locked first and its tip compared, as for a commit. So whatever a caller read of the branch's
    versions, tags and pins after reading the head is still true when the record is written."""
    engine, key, expires = catalog.engine, request.expected.key, request.procedure == "expire_versions"
    if request.expected.version in (gone.version for gone in request.details.get("expired", ())):
        raise Invalid("the head cannot expire")
    given = SimpleNamespace(tenant=request.tenant, expected=request.expected, record=request.record, **request.details)

    def write(tx: Transaction) -> bool:
        tx.call(request.procedure, given)
        hit(EXPIRE_BEFORE_COMMIT if expires else RECORD_BEFORE_COMMIT)
        return True

    def found() -> bool | None:
        # A record's hash covers everything about it.
        at = branch_columns(request.tenant, key)
        return engine.row(bytes, "record_at", **at, seq=request.record.seq) == request.record.hash or None

    hit(RECORD_BEFORE_TRANSACTION)
    try:
        send(lambda: engine.write(write), found=found)
    except Refused as refused:
        if refused.refusal == "head_moved":
            raise _head_moved(key, request.expected, read_head(engine, request.tenant, key)) from None
        if refused.refusal == "version_gone":
            assert request.record.manifest is not None
            manifest = request.record.manifest.hex()
            raise Expired(f"manifest {manifest} has expired", manifest=manifest) from None
        raise Conflict("the tag, the pin or the versions are not as they were", hint="look again") from None
    hit(EXPIRE_AFTER_COMMIT if expires else RECORD_AFTER_COMMIT)


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
