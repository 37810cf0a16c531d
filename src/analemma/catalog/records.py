"""Journal records that leave the head's version alone: tags, pins, decisions, expiries, each with its rows.

The head row is locked first and its tip compared, as a commit does. So whatever a caller read of the branch's versions,
tags and pins after reading the head is still true when its record is written."""

from __future__ import annotations

from typing import Any, assert_never

from analemma.canon.identity import BlockId
from analemma.catalog.commits import read_head
from analemma.catalog.engine import Row, Statements, Transaction
from analemma.catalog.names import check_part, check_texts
from analemma.catalog.port import (
    BranchKey,
    DropPin,
    DropTag,
    Expire,
    ExpiredRow,
    Head,
    ManifestRow,
    PinRow,
    PutDecision,
    PutPin,
    PutTag,
    RecordRequest,
    TagRow,
    TenantId,
)
from analemma.errors import Conflict, Expired, HeadMoved, Invalid
from analemma.failpoints import declare, hit

BEFORE_TRANSACTION = declare("record.before_transaction", "a record is made, and nothing of it is written")
RECORD_BEFORE_COMMIT = declare("record.before_commit", "the record and its row are written inside the transaction")
RECORD_AFTER_COMMIT = declare("record.after_commit", "the record is there, but the caller does not know")
EXPIRE_BEFORE_COMMIT = declare("expire.before_commit", "the versions are deleted inside the transaction")
EXPIRE_AFTER_COMMIT = declare("expire.after_commit", "the versions are gone, but the caller does not know")


def check_record(request: RecordRequest) -> None:
    """Raise Invalid for what no database should be asked to store."""
    check_texts((request.record.kind,))
    effect = request.effect
    if isinstance(effect, PutTag):
        check_part(effect.tag.name, "tag")
        check_texts((effect.tag.message,))
    elif isinstance(effect, PutPin):
        check_texts((effect.pin.reason,))
    elif isinstance(effect, Expire) and request.expected.version in effect.versions:
        raise Invalid("the head cannot expire")


def append_record(tx: Transaction, request: RecordRequest) -> None:
    """Write the record and its effect, or raise and leave it to the transaction to undo the rest."""
    expected, record = request.expected, request.record
    branch = branch_columns(request.tenant, expected.key)
    moved = tx.execute(
        "move_tip",
        **branch,
        manifest=expected.manifest,
        version=expected.version,
        journal_seq=record.seq,
        journal_tip=record.hash,
        expected_journal_seq=expected.journal_seq,
        expected_journal_tip=expected.journal_tip,
    )
    if moved != 1:
        raise _tip_moved(expected, read_head(tx, request.tenant, expected.key))
    # guard: mark.version_exists
    if record.manifest is not None and tx.one("version_exists", **branch, id=record.manifest) is None:
        raise Expired(f"manifest {record.manifest.hex()} has expired", manifest=record.manifest.hex())
    _apply(tx, request, branch)
    tx.execute(
        "add_record",
        **branch,
        seq=record.seq,
        kind=record.kind,
        manifest=record.manifest,
        body=record.body,
        hash=record.hash,
        created_at=record.created_at_us,
    )
    hit(EXPIRE_BEFORE_COMMIT if isinstance(request.effect, Expire) else RECORD_BEFORE_COMMIT)


def is_appended(source: Statements, request: RecordRequest) -> bool:
    """Whether the record is there: asked when the answer to writing it was lost."""
    row = source.one("record_at", **branch_columns(request.tenant, request.expected.key), seq=request.record.seq)
    return row is not None and row[0] == request.record.hash


def _apply(tx: Transaction, request: RecordRequest, branch: dict[str, Any]) -> None:
    tenant, key, effect = request.tenant, request.expected.key, request.effect
    workflow = {"tenant": tenant, "owner": key.owner, "workflow": key.workflow}
    match effect:
        case None:
            return
        case PutTag(tag, moved_from):
            row = {
                **branch,
                "name": tag.name,
                "manifest": tag.manifest,
                "message": tag.message,
                "created_at": tag.created_at_us,
            }
            if moved_from is None:
                done = tx.execute("add_tag", **row)
            else:
                done = tx.execute("move_tag", **row, expected_manifest=moved_from)
        case DropTag(name, manifest):
            done = tx.execute("drop_tag", **workflow, name=name, manifest=manifest)
        case PutPin(pin):
            done = tx.execute(
                "put_pin", **branch, manifest=pin.manifest, reason=pin.reason, created_at=pin.created_at_us
            )
        case DropPin(manifest):
            done = tx.execute("drop_pin", tenant=tenant, manifest=manifest)
        case PutDecision(manifest, version, decision):
            done = tx.execute("put_decision", **branch, manifest=manifest, version=version, decision=decision)
        case Expire():
            done = _expire(tx, effect, branch, request.record.created_at_us)
        case _:
            assert_never(effect)
    if done == 0:
        raise Conflict("the tag, the pin or the versions are not as they were", hint="look again")


def _expire(tx: Transaction, effect: Expire, branch: dict[str, Any], now_us: int) -> int:
    """How many versions went: all of them, or none."""
    chosen = {**branch, "versions": effect.versions}
    held = {row[0] for row in tx.all("hold_versions", **chosen)}
    # guard: expiry.held
    if held != set(effect.manifests) or tx.all("protected_versions", **chosen):  # guard: expiry.protected
        return 0
    tx.execute("remember_expired", **chosen, expired_at=now_us)
    return tx.execute("drop_versions", **chosen)


def manifest_row(row: Row) -> ManifestRow:
    """A row of `manifest` or `history`."""
    return ManifestRow(row[0], BranchKey(*row[1:4]), *row[4:])


def tag_row(row: Row) -> TagRow:
    """A row of `tag` or `tags`."""
    name, owner, workflow, branch, manifest, *rest = row
    return TagRow(name, BranchKey(owner, workflow, branch), BlockId(manifest), *rest)


def pin_row(row: Row) -> PinRow:
    """A row of `pins`."""
    owner, workflow, branch, manifest, *rest = row
    return PinRow(BranchKey(owner, workflow, branch), BlockId(manifest), *rest)


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
