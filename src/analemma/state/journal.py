"""The journal: each branch's record of what happened to it, every record holding the hash of the one before.

A record is the DAG-CBOR array `["journal", format, fields]`; its hash is SHA-256 of those bytes. The tip stands in the
head row, so a record cannot be dropped, changed or put elsewhere without the chain or the head disagreeing."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from analemma.canon.identity import BlockId
from analemma.canon.values import decode, encode
from analemma.catalog.port import BranchKey, Head, JournalRow
from analemma.errors import Corrupt

FORMAT = 1
KIND = "journal"
COMMITTED = "committed"
EXPIRED = "expired"
"""Removed by retention: the record's facts name the manifests, as hexadecimal text."""
TAGGED = "tagged"
UNTAGGED = "untagged"
PINNED = "pinned"
UNPINNED = "unpinned"
DECIDED = "decided"


def next_record(
    key: BranchKey,
    before: Head | None,
    *,
    kind: str,
    manifest: BlockId | None,
    at_us: int,
    version: int | None = None,
    facts: Mapping[str, Any] | None = None,
) -> JournalRow:
    """The record that follows the branch's tip; with `version`, the one that moves the head to the manifest."""
    seq = 1 if before is None else before.journal_seq + 1
    fields = {
        "owner": key.owner,
        "workflow": key.workflow,
        "branch": key.branch,
        "seq": seq,
        "before": None if before is None else b"\0" + before.journal_tip,
        "kind": kind,
        "manifest": None if manifest is None else b"\0" + manifest,
        "version": version,
        "at": at_us,
        "facts": dict(facts or {}),
    }
    body = encode([KIND, FORMAT, fields])
    return JournalRow(seq, kind, manifest, body, sha256(body).digest(), at_us)


def read_record(row: JournalRow) -> dict[str, Any]:
    """What a record says, once its hash and the columns that repeat it are checked."""
    if sha256(row.body).digest() != row.hash:
        raise Corrupt(f"journal record {row.seq} does not match its hash", seq=row.seq)
    try:
        kind, number, fields = decode(row.body)
        if kind != KIND or number != FORMAT:
            raise ValueError(f"kind {kind!r}, format {number!r}")
        manifest = None if fields["manifest"] is None else fields["manifest"][1:]
        said = (fields["seq"], fields["kind"], manifest, fields["at"])
    except (ValueError, TypeError, KeyError) as exc:
        raise Corrupt(f"journal record {row.seq} cannot be read: {exc}", seq=row.seq) from exc
    if said != (row.seq, row.kind, row.manifest, row.created_at_us):
        raise Corrupt(f"the columns of journal record {row.seq} differ from the record", seq=row.seq)
    return dict(fields)
