"""A commit as one statement, for a database with many writers (PostgreSQL)."""

from __future__ import annotations

from typing import Any

from analemma.canon.identity import BlockId
from analemma.catalog.arrays import Blobs, Integers, Texts, unless_empty
from analemma.catalog.commits import blocks_in_order, find_replay, head_moved, read_head, replay
from analemma.catalog.engine import Statements
from analemma.catalog.outbox_producing import event_parameters
from analemma.catalog.port import CommitRequest, Committed
from analemma.errors import Conflict, Internal, Unavailable


def commit_in_one_statement(source: Statements, request: CommitRequest, *, now_us: int, key_keep_us: int) -> Committed:
    """Write everything, or raise and write nothing. `source` may be the engine itself or an open transaction."""
    try:
        if takes_rows_along(request):
            row = source.one("commit_run", **plain_parameters(request), **_run_parameters(request))
        elif is_plain(request):
            row = source.one("commit_plain", **plain_parameters(request))
        else:
            row = source.one("commit", **parameters(request, now_us=now_us, key_keep_us=key_keep_us))
    except Conflict as exc:
        if exc.facts.get("constraint") != "idempotency_pkey":
            raise
        return _replay_of_rival(source, request, exc, key_keep_us)
    assert row is not None
    moved, stored, *seen = row
    if seen[0] is not None:
        return replay(request, tuple(seen))
    if moved:
        receipt = None if request.idempotency is None else request.idempotency.receipt
        return Committed(request.manifest.id, frozenset(map(BlockId, stored or ())), receipt=receipt)
    # Again: whoever moved the head may have been this very request, sent twice.
    replayed = find_replay(source, request, key_keep_us=key_keep_us)
    if replayed is not None:
        return replayed
    raise head_moved(request, read_head(source, request.tenant, request.head.key))


def _replay_of_rival(source: Statements, request: CommitRequest, exc: Conflict, key_keep_us: int) -> Committed:
    """Someone committed under the same key, on another branch, since our statement looked."""
    try:
        replayed = find_replay(source, request, key_keep_us=key_keep_us)
    except Internal:
        # Inside a larger transaction, which the refused row has ended: run again, it will find the key at once.
        raise Unavailable("the idempotency key was taken meanwhile", hint="try again", retry=True) from exc
    if replayed is None:
        raise exc
    return replayed


def is_plain(request: CommitRequest) -> bool:
    """Whether the cheaper statement will do."""
    return (
        request.expected is not None
        and len(request.journal) == 1
        and not request.events
        and not request.uploads
        and request.idempotency is None
        and all(row.upload is None for row in request.blocks)
    )


def takes_rows_along(request: CommitRequest) -> bool:
    """Whether the rows that go with a commit are those of a run's segment, which one statement writes with it."""
    return len(request.rows) == 1 and request.rows[0].statement == "advance_run" and is_plain(request)


def _run_parameters(request: CommitRequest) -> dict[str, Any]:
    return {f"run_{name}": value for name, value in request.rows[0].parameters.items()}


def plain_parameters(request: CommitRequest) -> dict[str, Any]:
    """The request as the parameters of the statement `commit_plain`."""
    (record,) = request.journal
    return {
        **_shared_parameters(request),
        "record_seq": record.seq,
        "record_kind": record.kind,
        "record_manifest": record.manifest,
        "record_body": record.body,
        "record_hash": record.hash,
        "record_time": record.created_at_us,
    }


def parameters(request: CommitRequest, *, now_us: int, key_keep_us: int) -> dict[str, Any]:
    """The request as the parameters of the statement `commit`."""
    asked, journal = request.idempotency, request.journal
    blocks, uploads = blocks_in_order(request), sorted(set(request.uploads))
    return {
        **_shared_parameters(request),
        "uploads": unless_empty(Blobs(uploads)),
        "upload_count": len(uploads),
        "block_uploads": unless_empty(Blobs([row.upload for row in blocks])),
        "block_offsets": unless_empty(Integers([row.offset for row in blocks])),
        "block_lengths": unless_empty(Integers([row.length for row in blocks])),
        "journal_seqs": Integers([row.seq for row in journal]),
        "journal_kinds": Texts([row.kind for row in journal]),
        "journal_manifests": Blobs([row.manifest for row in journal]),
        "journal_bodies": Blobs([row.body for row in journal]),
        "journal_hashes": Blobs([row.hash for row in journal]),
        "journal_times": Integers([row.created_at_us for row in journal]),
        "idempotency_key": None if asked is None else asked.key,
        "fingerprint": None if asked is None else asked.fingerprint,
        "receipt": None if asked is None else asked.receipt,
        "key_keep": key_keep_us,
        "now": now_us,
        **event_parameters(request.events),
    }


def _shared_parameters(request: CommitRequest) -> dict[str, Any]:
    head, manifest, expected = request.head, request.manifest, request.expected
    blocks, bases = blocks_in_order(request), sorted(set(request.bases))
    return {
        "tenant": request.tenant,
        "owner": head.key.owner,
        "workflow": head.key.workflow,
        "branch": head.key.branch,
        "manifest": head.manifest,
        "version": head.version,
        "journal_seq": head.journal_seq,
        "journal_tip": head.journal_tip,
        "expected_manifest": None if expected is None else expected.manifest,
        "expected_version": None if expected is None else expected.version,
        "expected_journal_seq": None if expected is None else expected.journal_seq,
        "expected_journal_tip": None if expected is None else expected.journal_tip,
        "unless_pending": request.unless_pending,
        "parent": manifest.parent,
        "root": manifest.root,
        "created_at": manifest.created_at_us,
        "execution": manifest.execution,
        "segment": manifest.segment,
        "message": manifest.message,
        "bases": Blobs(bases),
        "base_count": len(bases),
        "block_ids": Blobs([row.id for row in blocks]),
        "block_sizes": Integers([row.size for row in blocks]),
        "block_codecs": Integers([row.codec for row in blocks]),
        "block_bodies": Blobs([row.body for row in blocks]),
        "block_links": Blobs([row.links for row in blocks]),
    }
