"""Who names an entity in an index: the entries read backwards."""

from __future__ import annotations

from typing import NamedTuple

from analemma.catalog.engine import Statements
from analemma.catalog.entities import EntityPlace


class DependantRow(NamedTuple):
    """An entity whose index entries name another."""

    number: int
    place: EntityPlace
    newest_compiled: int | None


def dependants(source: Statements, target: int, *, after: int = 0, limit: int = 100) -> list[DependantRow]:
    """A page of those, by number. In whatever index: a ruleset of today may have another than the one that an entity
    was compiled by."""
    rows = source.all("dependants", target=target, after=after, limit=limit)
    return [DependantRow(number, EntityPlace(kind, key), compiled) for number, kind, key, compiled in rows]
