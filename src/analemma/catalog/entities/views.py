"""The rows that views are answered from: entities at a version, with the slices that they have there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from analemma.catalog.engine.db import Engine, Row
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


class ViewRows:
    """What views of one tenant read. Each answer is one statement, so it is of one moment."""

    def __init__(self, engine: Engine, tenant: TenantId) -> None:
        self._engine = engine
        self._tenant = tenant

    def by_keys(
        self, entity_type: str, keys: Sequence[str], slice_types: Sequence[str], version: int | None = None
    ) -> dict[str, EntityRow]:
        """Entities by their ids; those left out that do not exist."""
        rows = self._engine.all(
            "view_by_keys",
            tenant=self._tenant,
            entity_type=entity_type,
            keys=keys,
            slice_types=slice_types,
            version=version,
        )
        return {entity.key: entity for entity in _grouped(rows)}

    def by_range(
        self, entity_type: str, slice_types: Sequence[str], *, prefix: str, after: str | None, limit: int
    ) -> list[EntityRow]:
        """Entities that are served, in the order of their ids: those with a prefix, after an id."""
        low, high = _bounds(prefix, after)
        rows = self._engine.all(
            "view_by_range",
            tenant=self._tenant,
            entity_type=entity_type,
            low=low,
            high=high,
            limit=limit,
            slice_types=slice_types,
        )
        return _grouped(rows)

    def by_index(
        self, entity_type: str, slice_types: Sequence[str], *, index_type: str, value: str, after: int, limit: int
    ) -> list[EntityRow]:
        """Entities that an index finds, in the order of their numbers."""
        rows = self._engine.all(
            "view_by_index",
            tenant=self._tenant,
            entity_type=entity_type,
            index_type=index_type,
            value=value,
            after=after,
            limit=limit,
            slice_types=slice_types,
        )
        return _grouped(rows)

    def keys(self, entity_type: str, *, prefix: str = "", after: str | None = None, limit: int) -> list[str]:
        """The ids of all entities that were ever ingested, deleted ones included, in their order."""
        low, high = _bounds(prefix, after)
        rows = self._engine.all(
            "entity_keys", tenant=self._tenant, entity_type=entity_type, low=low, high=high, limit=limit
        )
        return [row[0] for row in rows]

    def count_served(self, entity_type: str, prefix: str) -> int:
        """How many entities a range has in all."""
        low, high = _bounds(prefix, None)
        return self._count("count_served", entity_type=entity_type, low=low, high=high)

    def count_indexed(self, entity_type: str, index_type: str, value: str) -> int:
        """How many entities an index finds in all."""
        return self._count("count_indexed", entity_type=entity_type, index_type=index_type, value=value)

    def count_by_rules(self, entity_type: str, skipped: Collection[str]) -> dict[str, int]:
        """How many entities are served as they were compiled by other rules than these, by the fingerprint of those;
        what is deleted is not counted. It costs what it finds."""
        rows = self._engine.all(
            "served_by_rules", tenant=self._tenant, entity_type=entity_type, skipped=sorted(skipped)
        )
        return {row[0]: row[1] for row in rows}

    def _count(self, name: str, **parameters: Any) -> int:
        row = self._engine.one(name, tenant=self._tenant, **parameters)
        return 0 if row is None else int(row[0])


def _bounds(prefix: str, after: str | None) -> tuple[str, str]:
    return (prefix if after is None else after + LEAST_SUFFIX), (prefix + AFTER_ALL_KEYS)


def _grouped(rows: Iterable[Row]) -> list[EntityRow]:
    found: dict[int, EntityRow] = {}
    slices: dict[int, list[SliceRow]] = {}
    for row in rows:
        number, key, newest_raw, newest_compiled, serving, version, created_at, no_root, schema_id, schema_version = (
            row[:10]
        )
        if number not in found:
            found[number] = EntityRow(
                number,
                key,
                newest_raw,
                newest_compiled,
                serving,
                version,
                created_at,
                deleted=version is not None and bool(no_root),
                schema=None if schema_id is None else (schema_id, schema_version),
                compiled=None if row[10] is None else CompiledRow(*row[10:14]),
                slices=(),
            )
            slices[number] = []
        if row[14] is not None:
            slices[number].append(SliceRow(*row[14:21]))
    return [entity._replace(slices=tuple(slices[number])) for number, entity in found.items()]
