"""Entering and settling entries in one statement each, for a database with many writers (PostgreSQL)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analemma.catalog.arrays import Blobs, Integers, Texts
from analemma.catalog.commits import missing_upload
from analemma.catalog.engine import Statements
from analemma.catalog.ledger_port import BranchSettlement, LedgerEntry
from analemma.catalog.outbox_producing import event_parameters
from analemma.catalog.port import CommitRequest, TenantId
from analemma.errors import Conflict


def enter_in_one_statement(source: Statements, tenant: TenantId, entries: Sequence[LedgerEntry]) -> dict[bytes, int]:
    """Insert the entries; place by secret."""
    rows = source.all(
        "enter",
        tenant=tenant,
        owners=Texts([entry.key.owner for entry in entries]),
        workflows=Texts([entry.key.workflow for entry in entries]),
        branches=Texts([entry.key.branch for entry in entries]),
        secrets=Blobs([entry.secret for entry in entries]),
        times=Integers([entry.created_at_us for entry in entries]),
        keys=Texts([entry.idempotency_key for entry in entries]),
        fingerprints=Blobs([entry.fingerprint for entry in entries]),
        codecs=Integers([entry.delta.codec for entry in entries]),
        sizes=Integers([entry.delta.size for entry in entries]),
        digests=Blobs([entry.delta.digest for entry in entries]),
        stored=Integers([len(entry.delta.body) for entry in entries]),
        bodies=Blobs([entry.delta.body for entry in entries]),
    )
    return {bytes(secret): int(seq) for secret, seq in rows}


def settle_in_one_statement(
    source: Statements, tenant: TenantId, settlements: Sequence[BranchSettlement], *, now_us: int, key_keep_us: int
) -> None:
    """Write everything, or raise; the transaction must then be undone. Heads and entries are held already."""
    requests = [request for settlement in settlements for request in settlement.commits]
    begun = [each for each in settlements if each.expected is None and each.commits]
    grown = [each for each in settlements if each.expected is not None and each.commits]
    uploads = sorted({upload for request in requests for upload in request.uploads})
    row = source.one(
        "settle",
        tenant=tenant,
        settled_at=now_us,
        key_keep=key_keep_us,
        uploads=Blobs(uploads),
        **_new_heads(begun),
        **_moved_heads(grown),
        **_blocks(requests),
        **_manifests(requests),
        **_journal(requests),
        **_known(requests),
        **_outcomes(settlements),
        **event_parameters([event for request in requests for event in request.events]),
    )
    assert row is not None
    created, moved, finished, settled = row
    if created != len(begun) or moved != len(grown):
        raise Conflict("another branch of the same name began at this moment", hint="look again")
    if finished != len(uploads):
        raise missing_upload()
    assert settled == sum(len(each.steps) for each in settlements)


def _new_heads(begun: Sequence[BranchSettlement]) -> dict[str, Any]:
    first = [each.commits[0].manifest for each in begun]
    last = [each.commits[-1].head for each in begun]
    return {
        "new_owners": Texts([head.key.owner for head in last]),
        "new_workflows": Texts([head.key.workflow for head in last]),
        "new_branches": Texts([head.key.branch for head in last]),
        "new_manifests": Blobs([head.manifest for head in last]),
        "new_versions": Integers([head.version for head in last]),
        "new_journal_seqs": Integers([head.journal_seq for head in last]),
        "new_journal_tips": Blobs([head.journal_tip for head in last]),
        "new_firsts": Blobs([row.id for row in first]),
        "new_times": Integers([row.created_at_us for row in first]),
    }


def _moved_heads(grown: Sequence[BranchSettlement]) -> dict[str, Any]:
    last = [each.commits[-1].head for each in grown]
    return {
        "owners": Texts([head.key.owner for head in last]),
        "workflows": Texts([head.key.workflow for head in last]),
        "branches": Texts([head.key.branch for head in last]),
        "manifests": Blobs([head.manifest for head in last]),
        "versions": Integers([head.version for head in last]),
        "journal_seqs": Integers([head.journal_seq for head in last]),
        "journal_tips": Blobs([head.journal_tip for head in last]),
    }


def _blocks(requests: Sequence[CommitRequest]) -> dict[str, Any]:
    found = {block.id: block for request in requests for block in request.blocks}
    # By id over all of them: two transactions that lock the same blocks lock them in the same order.
    blocks = [found[block] for block in sorted(found)]
    return {
        "block_ids": Blobs([row.id for row in blocks]),
        "block_sizes": Integers([row.size for row in blocks]),
        "block_codecs": Integers([row.codec for row in blocks]),
        "block_bodies": Blobs([row.body for row in blocks]),
        "block_uploads": Blobs([row.upload for row in blocks]),
        "block_offsets": Integers([row.offset for row in blocks]),
        "block_lengths": Integers([row.length for row in blocks]),
        "block_links": Blobs([row.links for row in blocks]),
    }


def _manifests(requests: Sequence[CommitRequest]) -> dict[str, Any]:
    rows = [request.manifest for request in requests]
    return {
        "manifest_ids": Blobs([row.id for row in rows]),
        "manifest_owners": Texts([row.key.owner for row in rows]),
        "manifest_workflows": Texts([row.key.workflow for row in rows]),
        "manifest_branches": Texts([row.key.branch for row in rows]),
        "manifest_versions": Integers([row.version for row in rows]),
        "manifest_parents": Blobs([row.parent for row in rows]),
        "manifest_roots": Blobs([row.root for row in rows]),
        "manifest_times": Integers([row.created_at_us for row in rows]),
        "manifest_executions": Texts([row.execution for row in rows]),
        "manifest_segments": Integers([row.segment for row in rows]),
        "manifest_messages": Texts([row.message for row in rows]),
    }


def _journal(requests: Sequence[CommitRequest]) -> dict[str, Any]:
    rows = [(request.head.key, record) for request in requests for record in request.journal]
    return {
        "record_owners": Texts([key.owner for key, _ in rows]),
        "record_workflows": Texts([key.workflow for key, _ in rows]),
        "record_branches": Texts([key.branch for key, _ in rows]),
        "record_seqs": Integers([record.seq for _, record in rows]),
        "record_kinds": Texts([record.kind for _, record in rows]),
        "record_manifests": Blobs([record.manifest for _, record in rows]),
        "record_bodies": Blobs([record.body for _, record in rows]),
        "record_hashes": Blobs([record.hash for _, record in rows]),
        "record_times": Integers([record.created_at_us for _, record in rows]),
    }


def _known(requests: Sequence[CommitRequest]) -> dict[str, Any]:
    rows = [(request.head, request.idempotency) for request in requests if request.idempotency is not None]
    return {
        "known_owners": Texts([head.key.owner for head, _ in rows]),
        "known_workflows": Texts([head.key.workflow for head, _ in rows]),
        "known_keys": Texts([asked.key for _, asked in rows]),
        "known_fingerprints": Blobs([asked.fingerprint for _, asked in rows]),
        "known_manifests": Blobs([head.manifest for head, _ in rows]),
        "known_receipts": Blobs([asked.receipt for _, asked in rows]),
    }


def _outcomes(settlements: Sequence[BranchSettlement]) -> dict[str, Any]:
    steps = [step for each in settlements for step in each.steps]
    return {
        "seqs": Integers([step.seq for step in steps]),
        "receipts": Blobs([step.receipt for step in steps]),
        "failures": Texts([step.failure for step in steps]),
    }
