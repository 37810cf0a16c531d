"""Journal records that leave the head's version alone: tags, pins, decisions, expiries, each with its rows.

The head row is locked first and its tip compared, as a commit does. So whatever a caller read of the branch's versions,
tags and pins after reading the head is still true when its record is written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from analemma.catalog.engine.db import Statements, Transaction, send
from analemma.catalog.engine.procedures import Refused
from analemma.catalog.kernel.versions import branch_columns, read_head
from analemma.catalog.port import RecordRequest
from analemma.errors import AnalemmaError, Conflict, Expired, HeadMoved, Invalid
from analemma.failpoints import declare, hit

if TYPE_CHECKING:
    from analemma.catalog.sql_catalog import SqlCatalog

BEFORE_TRANSACTION = declare("record.before_transaction", "a record is made, and nothing of it is written")
RECORD_BEFORE_COMMIT = declare("record.before_commit", "the record and its row are written inside the transaction")
RECORD_AFTER_COMMIT = declare("record.after_commit", "the record is there, but the caller does not know")
EXPIRE_BEFORE_COMMIT = declare("expire.before_commit", "the versions are deleted inside the transaction")
EXPIRE_AFTER_COMMIT = declare("expire.after_commit", "the versions are gone, but the caller does not know")


def append(catalog: SqlCatalog, request: RecordRequest) -> None:
    """Write the record and what it tells of, durably, or raise and change nothing."""
    engine, expires = catalog.engine, request.procedure == "expire_versions"
    if request.expected.version in (gone.version for gone in request.details.get("expired", ())):
        raise Invalid("the head cannot expire")
    given = SimpleNamespace(tenant=request.tenant, expected=request.expected, record=request.record, **request.details)

    def write(tx: Transaction) -> bool:
        tx.call(request.procedure, given)
        hit(EXPIRE_BEFORE_COMMIT if expires else RECORD_BEFORE_COMMIT)
        return True

    def found() -> bool | None:
        # A record's hash covers everything about it.
        at = branch_columns(request.tenant, request.expected.key)
        return engine.row(bytes, "record_at", **at, seq=request.record.seq) == request.record.hash or None

    hit(BEFORE_TRANSACTION)
    try:
        send(lambda: engine.write(write), found=found)
    except Refused as refused:
        raise _refusal(engine, request, refused) from None
    hit(EXPIRE_AFTER_COMMIT if expires else RECORD_AFTER_COMMIT)


def _refusal(source: Statements, request: RecordRequest, refused: Refused) -> AnalemmaError:
    key = request.expected.key
    if refused.refusal == "head_moved":
        return HeadMoved(
            f"the journal of {key.owner}/{key.workflow}@{key.branch} is not where this record was made",
            hint="reload and retry",
            key=key,
            expected=request.expected,
            found=read_head(source, request.tenant, key),
        )
    if refused.refusal == "version_gone":
        assert request.record.manifest is not None
        manifest = request.record.manifest.hex()
        return Expired(f"manifest {manifest} has expired", manifest=manifest)
    return Conflict("the tag, the pin or the versions are not as they were", hint="look again")
