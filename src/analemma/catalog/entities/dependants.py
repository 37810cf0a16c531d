"""Who names an entity in an index: the entries read backwards."""

from __future__ import annotations

from typing import NamedTuple

from analemma.catalog.engine.db import Statements
from analemma.catalog.entities.entities import EntityPlace


class DependantRow(NamedTuple):
    """An entity whose index entries name another."""

    number: int
    place: EntityPlace
    newest_compiled: int | None
    serving_version: int | None


def has_dependants(source: Statements, target: int) -> bool:
    """Whether anybody names an entity."""
    return source.one("any_dependant", target=target) is not None


def dependencies_of(source: Statements, target: int) -> dict[tuple[str, str], int]:
    """By entity type and index, how many name an entity. Whatever the index: a ruleset of today may have others than
    the one that an entity was compiled by."""
    return {(row[0], row[1]): row[2] for row in source.all("dependencies_of", target=target)}


def dependants(
    source: Statements, target: int, *, entity_type: str, index_type: str, after: int, until: int, limit: int
) -> list[DependantRow]:
    """A page of those of one type and index, by number."""
    rows = source.all(
        "dependants",
        target=target,
        entity_type=entity_type,
        index_type=index_type,
        after=after,
        until=until,
        limit=limit,
    )
    return [DependantRow(number, EntityPlace(kind, key), *versions) for number, kind, key, *versions in rows]
