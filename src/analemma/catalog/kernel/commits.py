"""A commit: one procedure, one transaction; what it takes, and what whoever is refused is told."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

from analemma.canon.identity import BlockId
from analemma.catalog.engine.db import Row, Statements, Transaction, send
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
    JournalRow,
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


def check_request(request: CommitRequest) -> None:
    """Raise Invalid unless a request is of one piece; its other texts are checked where callers give them."""
    head, manifest, expected = request.head, request.manifest, request.expected
    check_key(head.key)
    if manifest.key != head.key or manifest.id != head.manifest or manifest.version != head.version:
        raise Invalid("the head does not name the manifest of the same commit")
    if expected is not None and (expected.key != head.key or head.version != expected.version + 1):
        raise Invalid("a version follows the one before it, on the same branch")
    if request.events:
        check_events(request.events)


class Move(NamedTuple):
    """What becomes of one branch: its head, and its first version if it begins. (A commit of its own says the same.)"""

    head: Head | None
    expected: Head | None
    manifest: Version | None = None
    unless_pending: bool = False


class BranchRecord(NamedTuple):
    """A record, and of which branch's journal."""

    key: BranchKey
    record: JournalRow


class Batch(NamedTuple):
    """Everything that procedures which make versions take, whether of one commit or of many."""

    tenant: TenantId
    now: int
    keep: int
    heads: Sequence[Move | CommitRequest]
    begun: Sequence[Move | CommitRequest]
    lanes: Sequence[LanePlan]
    events: Sequence[PlacedEvent]
    bases: Sequence[BlockId]
    blocks: Sequence[BlockRow]
    uploads: Sequence[UploadId]
    versions: Sequence[Version]
    records: Sequence[BranchRecord]
    keys: Sequence[CommitRequest]


def commit(catalog: SqlCatalog, request: CommitRequest) -> Committed:
    """Write everything, durably, or raise and write nothing."""
    check_request(request)
    engine, key_keep_us = catalog.engine, catalog.key_keep_us
    hit(BEFORE_TRANSACTION)
    batch = _batch(request, catalog.clock.now_us(), key_keep_us)
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

    try:
        stored = send(
            lambda: engine.write(write, alone=not rows), found=lambda: [] if _is_stored(engine, request) else None
        )
    except Refused as refused:
        committed = _refused(engine, request, refused, key_keep_us)
    else:
        receipt = None if request.idempotency is None else request.idempotency.receipt
        committed = Committed(request.manifest.id, frozenset(stored), receipt=receipt)
    hit(AFTER_COMMIT)
    return committed


def receipt(catalog: SqlCatalog, tenant: TenantId, key: BranchKey, idempotency_key: str) -> Idempotency | None:
    """What was committed under a key that counts, if anything."""
    row = find_key(catalog.engine, tenant, key, idempotency_key, key_keep_us=catalog.key_keep_us)
    return None if row is None else Idempotency(idempotency_key, row[0], row[2])


def _batch(request: CommitRequest, now_us: int, key_keep_us: int) -> Batch:
    own, expected = (request,), request.expected
    # The head that is moved names the expected manifest: nobody removes that who does not hold the head.
    bases = {*request.bases} - ({expected.manifest} if expected is not None else set())
    return Batch(
        request.tenant,
        now_us,
        key_keep_us,
        own if expected is not None else (),
        own if expected is None else (),
        *(in_lanes(request.events) if request.events else ((), ())),
        sorted(bases),
        [*{block.id: block for block in request.blocks}.values()],
        sorted(set(request.uploads)),
        (request.manifest,),
        [BranchRecord(request.head.key, record) for record in request.journal],
        own if request.idempotency is not None else (),
    )


def _is_stored(source: Statements, request: CommitRequest) -> bool:
    found = {"tenant": request.tenant, "id": request.manifest.id}
    # It may have been committed, followed by others, and expired, all before we asked.
    return source.one("manifest", **found) is not None or (
        source.one("expired", tenant=request.tenant, manifest=request.manifest.id) is not None
    )


def _refused(source: Statements, request: CommitRequest, refused: Refused, key_keep_us: int) -> Committed:
    """The answer to a request that was made before; for any other, raise what it is told."""
    match refused.refusal:
        case "base_gone":
            assert refused.row is not None
            raise missing_base(_batch(request, 0, 0).bases[refused.row].hex()) from None
        case "upload_gone":
            raise missing_upload() from None
        case "key_known" | "head_moved" | "branch_exists":
            pass
        case _:
            raise other_rows(request.rows[0].statement) from None
    # Whoever moved the head may have been this very request, sent twice.
    replayed = find_replay(source, request, key_keep_us=key_keep_us)
    if replayed is not None:
        return replayed
    if refused.refusal == "key_known":
        raise Unavailable("the idempotency key was taken meanwhile", hint="try again") from refused
    found = read_head(source, request.tenant, request.head.key)
    if refused.doubt is not None and request.unless_pending and found == request.expected:
        # It says nothing about the lost one: what is pending was entered since, perhaps.
        raise refused.doubt
    raise head_moved(request, found) from None


def find_replay(source: Statements, request: CommitRequest, *, key_keep_us: int) -> Committed | None:
    """The answer given before under the request's idempotency key, if there was one and the key still counts."""
    if request.idempotency is None:
        return None
    row = find_key(source, request.tenant, request.head.key, request.idempotency.key, key_keep_us=key_keep_us)
    return None if row is None else replay(request, row)


def find_key(source: Statements, tenant: TenantId, key: BranchKey, asked: str, *, key_keep_us: int) -> Row | None:
    """Fingerprint, manifest and receipt of what was committed under a key that counts: one that is not older than keys
    are kept, or whose version is there."""
    return source.one("idempotency", tenant=tenant, owner=key.owner, workflow=key.workflow, key=asked, keep=key_keep_us)


def replay(request: CommitRequest, row: Row) -> Committed:
    """Give the stored answer again, or raise Conflict if another request was made under the key."""
    assert request.idempotency is not None
    fingerprint, manifest, receipt = row
    if fingerprint != request.idempotency.fingerprint:  # guard: key.other_request
        raise Conflict(
            f"the idempotency key {request.idempotency.key!r} was used for another request",
            hint="use a new key for a new request",
            idempotency_key=request.idempotency.key,
        )
    return Committed(BlockId(manifest), frozenset(), replayed=True, receipt=receipt)


def head_moved(request: CommitRequest, found: Head | None) -> HeadMoved:
    """The refusal of a compare-and-set, with what was found instead."""
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


def missing_base(manifest: str) -> Expired:
    """A manifest that the commit builds on has been removed."""
    return Expired(f"manifest {manifest} has expired", hint="build on a version that is still there", manifest=manifest)


def change_rows(tx: Transaction, rows: Sequence[RowChange]) -> None:
    """Make the changes that others want in the same transaction; Conflict, and it must be undone, if one of them finds
    other rows than it should."""
    for change in rows:
        if not change_row(tx, change):
            raise other_rows(change.statement)


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


def other_rows(statement: str) -> Conflict:
    """A change that was to go with a commit did not find what it has to change."""
    return Conflict(f"{statement} did not find what it has to change", hint="look again", statement=statement)


def missing_upload() -> Conflict:
    """The collector took an upload before its commit came."""
    return Conflict("an upload of this commit was collected meanwhile", hint="upload and commit again")
