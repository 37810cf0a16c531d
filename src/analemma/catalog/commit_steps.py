"""A commit as a sequence of statements, for a database with one writer (SQLite)."""

from __future__ import annotations

from analemma.canon.identity import BlockId
from analemma.catalog.bodies import spare_blocks
from analemma.catalog.commits import (
    AFTER_BLOCKS,
    AFTER_HEAD,
    BEFORE_COMMIT,
    change_rows,
    find_replay,
    head_moved,
    missing_base,
    missing_upload,
    read_head,
)
from analemma.catalog.engine import Transaction
from analemma.catalog.outbox_producing import add_events_in_steps
from analemma.catalog.port import BlockRow, CommitRequest, Committed, TenantId
from analemma.failpoints import hit


def commit_in_steps(tx: Transaction, request: CommitRequest, *, now_us: int, key_keep_us: int) -> Committed:
    """Write everything, or raise and leave it to the transaction to undo the rest."""
    replayed = find_replay(tx, request, key_keep_us=key_keep_us)
    if replayed is not None:
        return replayed
    tenant, key = request.tenant, request.head.key
    if not _move_head(tx, request):
        raise head_moved(request, read_head(tx, tenant, key))
    hit(AFTER_HEAD)
    if request.events:
        add_events_in_steps(tx, tenant, request.events, now_us=now_us)
    # The head that was just moved named the expected manifest, and a foreign key holds what a head names.
    held = None if request.expected is None else request.expected.manifest
    for base in request.bases:
        if base != held and tx.one("base_exists", tenant=tenant, id=base) is None:  # guard: base.sqlite
            raise missing_base(base.hex())
    # As they were emitted, the manifest's last: with one writer no order of locks matters, and packing takes the place
    # of a manifest's block for the end of its commit.
    stored = _add_blocks(tx, tenant, list({block.id: block for block in request.blocks}.values()))
    hit(AFTER_BLOCKS)
    _add_manifest(tx, request)
    if request.expected is None:
        begin_branch(tx, request)
    tx.execute_many(
        "add_journal",
        [
            (
                tenant,
                key.owner,
                key.workflow,
                key.branch,
                row.seq,
                row.kind,
                row.manifest,
                row.body,
                row.hash,
                row.created_at_us,
            )
            for row in request.journal
        ],
    )
    for upload in request.uploads:
        if tx.execute("finish_upload", tenant=tenant, id=upload) != 1:
            raise missing_upload()
    receipt = remember_request(tx, request, key_keep_us=key_keep_us)
    change_rows(tx, request.rows)
    hit(BEFORE_COMMIT)
    return Committed(request.manifest.id, stored, receipt=receipt)


def _move_head(tx: Transaction, request: CommitRequest) -> bool:
    head, expected = request.head, request.expected
    row = {
        "tenant": request.tenant,
        "owner": head.key.owner,
        "workflow": head.key.workflow,
        "branch": head.key.branch,
        "manifest": head.manifest,
        "version": head.version,
        "journal_seq": head.journal_seq,
        "journal_tip": head.journal_tip,
    }
    if expected is None:
        return tx.execute("create_head", **row) == 1
    moved = tx.execute(
        "move_head",
        **row,
        expected_manifest=expected.manifest,
        expected_version=expected.version,
        expected_journal_seq=expected.journal_seq,
        expected_journal_tip=expected.journal_tip,
        unless_pending=request.unless_pending,
    )
    return moved == 1


def begin_branch(tx: Transaction, request: CommitRequest) -> None:
    """The rows of a branch whose first version this is, and of its workflow."""
    manifest = request.manifest
    key = manifest.key
    tx.execute(
        "add_workflow", tenant=request.tenant, owner=key.owner, workflow=key.workflow, created_at=manifest.created_at_us
    )
    tx.execute(
        "add_branch",
        tenant=request.tenant,
        owner=key.owner,
        workflow=key.workflow,
        branch=key.branch,
        first_manifest=manifest.id,
        parent=manifest.parent,
        created_at=manifest.created_at_us,
    )


def _add_blocks(tx: Transaction, tenant: TenantId, blocks: list[BlockRow]) -> frozenset[BlockId]:
    added = tx.execute_many(
        "add_blocks",
        [
            (tenant, row.id, row.size, row.codec, row.body, row.upload, row.offset, row.length, row.links)
            for row in blocks
        ],
    )
    if added == len(blocks):
        return frozenset([row.id for row in blocks])
    stored = (
        frozenset(BlockId(row[0]) for row in tx.all("blocks_just_added", count=added)) if added > 0 else frozenset()
    )
    spare_blocks(tx, tenant, [row.id for row in blocks if row.id not in stored])
    return stored


def _add_manifest(tx: Transaction, request: CommitRequest) -> None:
    manifest = request.manifest
    tx.execute(
        "add_manifest",
        tenant=request.tenant,
        id=manifest.id,
        owner=manifest.key.owner,
        workflow=manifest.key.workflow,
        branch=manifest.key.branch,
        version=manifest.version,
        parent=manifest.parent,
        root=manifest.root,
        created_at=manifest.created_at_us,
        execution=manifest.execution,
        segment=manifest.segment,
        message=manifest.message,
    )


def remember_request(tx: Transaction, request: CommitRequest, *, key_keep_us: int) -> bytes | None:
    """Keep the receipt under the caller's key, if it named one, in the place of one that counts no more."""
    asked = request.idempotency
    if asked is None:
        return None
    head = request.head.key
    whose = {"tenant": request.tenant, "owner": head.owner, "workflow": head.workflow, "key": asked.key}
    tx.execute("drop_old_key", **whose, keep=key_keep_us)
    tx.execute(
        "add_idempotency",
        **whose,
        fingerprint=asked.fingerprint,
        manifest=request.manifest.id,
        receipt=asked.receipt,
    )
    return asked.receipt
