"""Small commits to try a catalog with: each with content, manifest and journal record of its own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from analemma.canon.nodes import BlockId
from analemma.catalog.port import (
    BlockRow,
    BranchKey,
    CommitRequest,
    Head,
    JournalRow,
    KernelCatalog,
    Noting,
    OutboxEvent,
    RecordRequest,
    TenantId,
    Upload,
    UploadId,
    Version,
)

KEY = BranchKey("ann", "report")


def make_block(content: bytes | None = None, **columns: Any) -> BlockRow:
    """A block with this content, or with content of its own."""
    body = os.urandom(24) if content is None else content
    return BlockRow(BlockId(hashlib.sha256(body).digest()), len(body), 0, body, **columns)


def make_request(
    tenant: TenantId,
    expected: Head | None,
    blocks: Iterable[BlockRow] = (),
    *,
    key: BranchKey = KEY,
    message: str | None = None,
    **columns: Any,
) -> CommitRequest:
    """The commit that follows `expected`, with a manifest block of its own beside `blocks`."""
    nonce = os.urandom(16)
    version = 1 if expected is None else expected.version + 1
    seq = 1 if expected is None else expected.journal_seq + 1
    body = make_block(b"manifest" + nonce, links=b"")
    record = b"journal" + nonce
    tip = hashlib.sha256(record).digest()
    parent = None if expected is None else expected.manifest
    return CommitRequest(
        tenant=tenant,
        expected=expected,
        manifest=Version(body.id, key, version, parent, body.id, 1_000_000 + version, "run-1", 3, message),
        record=JournalRow(seq, "commit", body.id, record, tip, 1_000_000 + version),
        blocks=(*blocks, body),
        **columns,
    )


def make_upload(**columns: Any) -> Upload:
    """An intent with an id of its own."""
    upload = UploadId(os.urandom(16))
    return Upload(upload, "temp", f"packs/{upload.hex()}", 100, 1_000_000, **columns)


def make_event(name: str, aggregate: str = "default:ann/report", **columns: Any) -> OutboxEvent:
    """An event of the lane STATE / `aggregate`."""
    return OutboxEvent(name, "STATE", aggregate, "StateCommitted", b"{}", **columns)


def make_record(
    tenant: TenantId,
    expected: Head,
    procedure: Noting = "append_record",
    *,
    kind: str = "noted",
    manifest: BlockId | None = None,
    **details: Any,
) -> RecordRequest:
    """The record that follows `expected`; `after(request)` is the head it leaves."""
    body = b"journal" + os.urandom(16)
    record = JournalRow(
        expected.journal_seq + 1, kind, manifest, body, hashlib.sha256(body).digest(), 2_000_000 + expected.journal_seq
    )
    return RecordRequest(tenant, expected, record, procedure, details)


def after(request: RecordRequest) -> Head:
    """The head that a record leaves behind."""
    return replace(request.expected, journal_seq=request.record.seq, journal_tip=request.record.hash)


def make_line(catalog: KernelCatalog, tenant: TenantId, count: int) -> list[CommitRequest]:
    """So many versions of one branch, committed."""
    requests: list[CommitRequest] = []
    for _ in range(count):
        requests.append(make_request(tenant, requests[-1].head if requests else None))
        catalog.commit(requests[-1])
    return requests


def make_expiry(tenant: TenantId, head: Head, *requests: CommitRequest) -> RecordRequest:
    """The record by which these versions expire."""
    expired = [request.manifest for request in requests]
    return make_record(tenant, head, "expire_versions", kind="expired", expired=expired)
