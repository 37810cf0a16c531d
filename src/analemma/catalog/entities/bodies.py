"""Blocks, as they are written beside the rows that keep them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from analemma.catalog.engine.db import Transaction
from analemma.catalog.engine.procedures import Refused
from analemma.catalog.entities.entities import Overtaken
from analemma.catalog.port import BlockRow, TenantId, UploadId
from analemma.errors import Conflict


def add_bodies(tx: Transaction, tenant: TenantId, blocks: Iterable[BlockRow], uploads: Sequence[UploadId]) -> None:
    """Write every block that the transaction's rows link, and the uploads in which some of them lie. Blocks that are
    there already are spared."""
    found = SimpleNamespace(tenant=tenant, blocks=_in_order(blocks), uploads=sorted(set(uploads)))
    if found.blocks or found.uploads:
        try:
            tx.call("add_bodies", found)
        except Refused:
            raise missing_upload() from None


def write_whole(tx: Transaction, procedure: str, given: Any, *, overtaken: str, hint: str) -> None:
    """Write entities with their blocks; Overtaken, and the transaction must be undone, if they are not as they were."""
    try:
        tx.call(procedure, given)
    except Refused as refused:
        if refused.refusal == "upload_gone":
            raise missing_upload() from None
        raise Overtaken(overtaken, hint=hint) from refused


def replace_bodies(tx: Transaction, tenant: TenantId, blocks: Iterable[BlockRow]) -> None:
    """Have these bytes take the place of stored ones that are damaged; what is not stored is left out."""
    for row in _in_order(blocks):
        columns = {"size": row.size, "codec": row.codec, "body": row.body, "links": row.links}
        tx.execute("replace_block", tenant=tenant, id=row.id, **columns)


def missing_upload() -> Conflict:
    """The collector took an upload before the transaction that finishes it came."""
    return Conflict("an upload was collected meanwhile", hint="do it again")


def _in_order(blocks: Iterable[BlockRow]) -> list[BlockRow]:
    found = {row.id: row for row in blocks}
    return [found[block] for block in sorted(found)]
