"""Journal records that leave the head's version alone: tags, pins, decisions, expiries, each with its rows.

The head row is locked first and its tip compared, as a commit does. So whatever a caller read of the branch's versions,
tags and pins after reading the head is still true when its record is written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from analemma.canon.identity import BlockId
from analemma.catalog.engine.db import Engine, Row, Statements, Transaction
from analemma.catalog.engine.lost_answers import send
from analemma.catalog.engine.procedures import Refused
from analemma.catalog.kernel.commits import read_head, stored_id
from analemma.catalog.names import check_part, check_texts
from analemma.catalog.port import BranchKey, ExpiredRow, Head, Pin, RecordRequest, Tag, TenantId, Version
from analemma.errors import AnalemmaError, Conflict, Expired, HeadMoved, Invalid
from analemma.failpoints import declare, hit

BEFORE_TRANSACTION = declare("record.before_transaction", "a record is made, and nothing of it is written")
RECORD_BEFORE_COMMIT = declare("record.before_commit", "the record and its row are written inside the transaction")
RECORD_AFTER_COMMIT = declare("record.after_commit", "the record is there, but the caller does not know")
EXPIRE_BEFORE_COMMIT = declare("expire.before_commit", "the versions are deleted inside the transaction")
EXPIRE_AFTER_COMMIT = declare("expire.after_commit", "the versions are gone, but the caller does not know")


def check_record(request: RecordRequest) -> None:
    """Raise Invalid for what no database should be asked to store."""
    details = request.details
    check_texts((request.record.kind, details.get("message"), details.get("reason")))
    if "name" in details:
        check_part(details["name"], "tag")
    if request.expected.version in (gone.version for gone in details.get("expired", ())):
        raise Invalid("the head cannot expire")


def append_record(engine: Engine, request: RecordRequest) -> None:
    """Write the record and what it tells of, durably, or raise and change nothing."""
    expires = request.procedure == "expire_versions"
    given = SimpleNamespace(tenant=request.tenant, expected=request.expected, record=request.record, **request.details)

    def write(tx: Transaction) -> bool:
        tx.call(request.procedure, given)
        hit(EXPIRE_BEFORE_COMMIT if expires else RECORD_BEFORE_COMMIT)
        return True

    hit(BEFORE_TRANSACTION)
    try:
        send(lambda: engine.write(write), found=lambda: _is_appended(engine, request) or None)
    except Refused as refused:
        raise _refusal(engine, request, refused) from None
    hit(EXPIRE_AFTER_COMMIT if expires else RECORD_AFTER_COMMIT)


def _is_appended(source: Statements, request: RecordRequest) -> bool:
    """Whether the record is there: its hash covers everything about it."""
    row = source.one("record_at", **branch_columns(request.tenant, request.expected.key), seq=request.record.seq)
    return row is not None and row[0] == request.record.hash


def _refusal(source: Statements, request: RecordRequest, refused: Refused) -> AnalemmaError:
    if refused.refusal == "head_moved":
        return _tip_moved(request.expected, read_head(source, request.tenant, request.expected.key))
    if refused.refusal == "version_gone":
        assert request.record.manifest is not None
        manifest = request.record.manifest.hex()
        return Expired(f"manifest {manifest} has expired", manifest=manifest)
    return Conflict("the tag, the pin or the versions are not as they were", hint="look again")


def manifest_row(row: Row) -> Version:
    """A row of `manifest` or `history`."""
    key = BranchKey(*row[1:4])
    return Version(stored_id(row[0], key), key, *row[4:])


def tag_row(row: Row) -> Tag:
    """A row of `tag` or `tags`."""
    name, owner, workflow, branch, manifest, *rest = row
    return Tag(name, BranchKey(owner, workflow, branch), BlockId(manifest), *rest)


def pin_row(row: Row) -> Pin:
    """A row of `pins`."""
    owner, workflow, branch, manifest, *rest = row
    return Pin(BranchKey(owner, workflow, branch), BlockId(manifest), *rest)


def expired_row(row: Row) -> ExpiredRow:
    """A row of `expired`, `expired_version` or `expired_versions`."""
    manifest, owner, workflow, branch, version, expired_at = row
    return ExpiredRow(BlockId(manifest), BranchKey(owner, workflow, branch), version, expired_at)


def branch_columns(tenant: TenantId, key: BranchKey) -> dict[str, Any]:
    """What names a branch in every statement."""
    return {"tenant": tenant, "owner": key.owner, "workflow": key.workflow, "branch": key.branch}


def _tip_moved(expected: Head, found: Head | None) -> HeadMoved:
    key = expected.key
    return HeadMoved(
        f"the journal of {key.owner}/{key.workflow}@{key.branch} is not where this record was made",
        hint="reload and retry",
        key=key,
        expected=expected,
        found=found,
    )
