"""What every SQL catalog does around a commit: checks, replays, refusals, and the order in which things are locked."""

from __future__ import annotations

from collections.abc import Sequence

from analemma.canon.identity import BlockId
from analemma.catalog.engine import Row, Statements
from analemma.catalog.names import check_key, check_part, check_texts
from analemma.catalog.outbox_producing import check_events
from analemma.catalog.port import BlockRow, BranchKey, CommitRequest, Committed, Head, RowChange, TenantId
from analemma.errors import Conflict, Expired, HeadMoved, Invalid
from analemma.failpoints import declare

KEY_KEEP_US = 30 * 86_400 * 1_000_000
"""So long an idempotency key counts at least, unless the settings say otherwise."""

BEFORE_TRANSACTION = declare("commit.before_transaction", "nothing is written yet")
AFTER_HEAD = declare("commit.after_head", "the head has moved inside the transaction")
AFTER_BLOCKS = declare("commit.after_blocks", "the blocks are written inside the transaction")
BEFORE_COMMIT = declare("commit.before_commit", "everything is written, nothing is committed")
AFTER_COMMIT = declare("commit.after_commit", "committed, but the caller does not know")


def check_request(request: CommitRequest) -> None:
    """Raise Invalid for what no database should be asked to store."""
    head, manifest, expected = request.head, request.manifest, request.expected
    check_key(head.key)
    if manifest.key != head.key or manifest.id != head.manifest or manifest.version != head.version:
        raise Invalid("the head does not name the manifest of the same commit")
    if expected is not None and (expected.key != head.key or head.version != expected.version + 1):
        raise Invalid("a version follows the one before it, on the same branch")
    check_texts((manifest.execution, manifest.message))
    check_texts(record.kind for record in request.journal)
    if request.idempotency is not None:
        check_part(request.idempotency.key, "idempotency key")
    check_events(request.events)


def blocks_in_order(request: CommitRequest) -> list[BlockRow]:
    """Each emitted block once, by id: two commits that lock the same blocks lock them in the same order."""
    blocks = {block.id: block for block in request.blocks}
    return [blocks[block] for block in sorted(blocks)]


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


def read_head(source: Statements, tenant: TenantId, key: BranchKey) -> Head | None:
    """Where the branch stands."""
    row = source.one("head", tenant=tenant, owner=key.owner, workflow=key.workflow, branch=key.branch)
    return None if row is None else Head(key, BlockId(row[0]), *row[1:])


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


def change_rows(tx: Statements, rows: Sequence[RowChange]) -> None:
    """Make the changes that others want in the same transaction; Conflict, and it must be undone, if one of them finds
    other rows than it should."""
    for change in rows:
        touched = tx.execute(change.statement, **change.parameters)
        if change.touches is not None and touched != change.touches:
            raise other_rows(change.statement, touched, change.touches)


def other_rows(statement: str, found: int, wanted: int) -> Conflict:
    """A change that was to go with a commit did not find what it has to change."""
    return Conflict(f"{statement} found {found} rows instead of {wanted}", hint="look again", statement=statement)


def missing_upload() -> Conflict:
    """The collector took an upload before its commit came."""
    return Conflict("an upload of this commit was collected meanwhile", hint="upload and commit again")
