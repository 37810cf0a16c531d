"""Entities by their keys: where each stands, placeholders for those that something refers to, blocks as they are
written beside their rows; and fanouts, one per entity whose change others have to follow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

from analemma.catalog.engine.db import Engine, Statements, Transaction
from analemma.catalog.engine.procedures import Refused
from analemma.catalog.port import BlockRow, TenantId, UploadId
from analemma.errors import Conflict

MAXIMUM_VERSION = (1 << 63) - 1
"""What a column of the catalog holds."""


class Overtaken(Conflict):
    """Something was written to an entity since it was read; nothing may be written of what was made of that."""


class EntityPlace(NamedTuple):
    """An entity within its tenant."""

    type: str
    id: str


class EntityRow(NamedTuple):
    """Where an entity stands."""

    number: int
    newest_raw: int | None
    """None: a placeholder, for an entity that does not exist."""
    newest_hash: bytes | None
    newest_compiled: int | None
    serving_version: int | None
    """The version that readers get who name none."""
    ship_seq: int
    compile_seq: int


def find_entity(source: Statements, tenant: TenantId, place: EntityPlace) -> EntityRow | None:
    """Where an entity, or a placeholder, stands."""
    return source.row(EntityRow, "entity", tenant=tenant, type=place.type, key=place.id)


def add_placeholders(engine: Engine, tenant: TenantId, places: Iterable[EntityPlace]) -> None:
    """Make rows for entities that are referred to and have none: there must be something to lock."""
    rows = [(tenant, place.type, place.id) for place in sorted(set(places))]

    def move(tx: Transaction) -> None:
        tx.execute_many("add_entity", rows)

    engine.write(move)


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


FanoutStatus = Literal["QUEUED", "RUNNING", "DEFERRED", "DONE"]


class FanoutRow(NamedTuple):
    """A fanout as its row has it."""

    entity: int
    status: FanoutStatus
    version: int
    asked: int
    seen: int
    step: int
    passes: int
    progress: str
    affected: int
    processed: int
    skipped: int
    failed: int
    alert: str | None
    priority: int
    started_at_us: int
    updated_at_us: int
    finished_at_us: int | None


class DependantRow(NamedTuple):
    """An entity whose index entries name another."""

    number: int
    place: EntityPlace
    newest_compiled: int | None
    serving_version: int | None
