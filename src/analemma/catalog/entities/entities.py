"""Entities by their keys: where each stands, and placeholders for those that something refers to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from analemma.catalog.engine.db import Engine, Statements, Transaction
from analemma.catalog.port import TenantId
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
