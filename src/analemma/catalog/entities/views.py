"""The rows that views are answered from: entities at a version, with the slices that they have there."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, NamedTuple

from analemma.catalog.engine.db import Statements
from analemma.catalog.entities.slices import SliceRow
from analemma.catalog.port import TenantId

AFTER_ALL_KEYS: Final = "\U0010ffff" * 129
"""Greater than every id: those have at most 512 bytes, so at most 128 of the greatest characters."""
LEAST_SUFFIX: Final = "\x01"
"""Ids hold no control characters, so the least id after X is not less than X with this behind it."""


class CompiledRow(NamedTuple):
    """The newest compile of a version."""

    revision: int
    ruleset_id: str
    ruleset_version: str
    fingerprint: str


class EntityRow(NamedTuple):
    """An entity at a version."""

    number: int
    key: str
    newest_raw: int | None
    newest_compiled: int | None
    serving_version: int | None
    version: int | None
    """The one that was asked for, or is served; None if there is none."""
    created_at_us: int | None
    deleted: bool
    schema: tuple[str, str] | None
    compiled: CompiledRow | None
    slices: tuple[SliceRow, ...]


def entities_with_slices(source: Statements, statement: str, **asked: Any) -> list[EntityRow]:
    """The entities that one of `view_by_keys`, `view_by_range` and `view_by_index` answers, in its order. Each is one
    statement, so its answer is of one moment."""
    found: dict[int, EntityRow] = {}
    slices: dict[int, list[SliceRow]] = {}
    for row in source.all(statement, **asked):
        number = row[0]
        if number not in found:
            is_deleted = row[5] is not None and bool(row[7])
            schema = None if row[8] is None else (row[8], row[9])
            compiled = None if row[10] is None else CompiledRow(*row[10:14])
            found[number] = EntityRow._make((*row[:7], is_deleted, schema, compiled, ()))
            slices[number] = []
        if row[14] is not None:
            slices[number].append(SliceRow(*row[14:]))
    return [entity._replace(slices=tuple(slices[number])) for number, entity in found.items()]


def count_by_rules(source: Statements, tenant: TenantId, entity_type: str, skipped: Collection[str]) -> dict[str, int]:
    """How many entities are served as they were compiled by other rules than these, by the fingerprint of those; what
    is deleted is not counted. It costs what it finds."""
    rows = source.all("served_by_rules", tenant=tenant, entity_type=entity_type, skipped=sorted(skipped))
    return {row[0]: row[1] for row in rows}


def key_bounds(prefix: str, after: str | None = None) -> dict[str, str]:
    """The ids with a prefix, after an id, as statements ask for them."""
    return {"low": prefix if after is None else after + LEAST_SUFFIX, "high": prefix + AFTER_ALL_KEYS}
