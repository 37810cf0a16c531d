"""Rows of backfills: what each goes through, how far its shards came, who runs it; and what there is within a scope.
Shards move in the transaction that does the work, so that what is done is counted, once, and what is counted is
done."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from analemma.catalog.engine.db import Engine, Statements
from analemma.catalog.entities.slices import key_bounds
from analemma.catalog.port import TenantId

RUNNING = "RUNNING"


class Counts(NamedTuple):
    """What was done."""

    done: int = 0
    """Entities, or events, that were gone through; each once."""
    changed: int = 0
    """Versions that were compiled to something else than they were, or events that are delivered again."""
    slices: int = 0
    """Slices that were written, tombstones among them."""
    tombstones: int = 0
    requested: int = 0
    """Sinks that were asked to ship an entity."""
    failed: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(*map(sum, zip(self, other, strict=True)))


class ShardRow(NamedTuple):
    """A range of entities to go through, and how far that is."""

    shard: int
    """Its place among those of the backfill; 0 before it is written down."""
    level: int
    type: str
    first: int
    last: int
    total: int
    cursor: str
    step: int = 0
    failed: int = 0


class BackfillRow(NamedTuple):
    """A backfill, and what its shards did in all."""

    number: int
    tenant_name: str
    tenant: TenantId
    id: str
    kind: str
    scope: str
    options: str
    plan: str
    state: str
    reason: str | None
    fence: int
    holder: str | None
    lease_until_us: int | None
    created_at_us: int
    started_at_us: int | None
    finished_at_us: int | None
    total: int
    counts: Counts

    @classmethod
    def of(cls, *row: Any) -> BackfillRow:
        """One of its columns, the last of which are the counts."""
        return cls._make((*row[:17], Counts(*row[17:])))


class ErrorRow(NamedTuple):
    """Something that failed."""

    entity: str
    kind: str
    reason: str


class ScopeCounts(NamedTuple):
    """What a type has within a scope."""

    entities: int
    never_compiled: int
    behind: int
    """Compiled, and not from their newest version."""
    other_rules: int
    """Compiled by other rules than those of today."""
    raw_bytes: int
    compiled: int


class BackfillEntity(NamedTuple):
    """An entity that a backfill comes to."""

    number: int
    key: str
    newest_raw: int
    newest_compiled: int | None
    serving_version: int | None
    ship_seq: int
    compile_seq: int


@dataclass(frozen=True, slots=True)
class EntityChoice:
    """Which entities of a type."""

    type: str
    prefix: str = ""
    ids: tuple[str, ...] | None = None
    fingerprint: str = ""
    """Of the rules that apply."""
    stale: bool = False
    """Only those that were not compiled by these rules from their newest version."""
    compiled: bool = False
    """Only those that were compiled."""

    def columns(self) -> dict[str, Any]:
        return {
            "type": self.type,
            **key_bounds(self.prefix),
            "ids": self.ids,
            "fingerprint": self.fingerprint,
        }

    def conditions(self) -> dict[str, Any]:
        return {**self.columns(), "stale": self.stale, "compiled": self.compiled}


def standing(source: Statements, number: int, fence: int) -> str | None:
    """The state of a backfill, or None if another has it now."""
    row = source.one("backfill_standing", number=number)
    return None if row is None or row[1] != fence else str(row[0])


def scope_page(
    source: Statements, tenant: TenantId, choice: EntityChoice, *, first: int, last: int, limit: int
) -> list[BackfillEntity]:
    """A page of the entities chosen, by number."""
    return source.rows(
        BackfillEntity, "backfill_page", tenant=tenant, first=first, last=last, limit=limit, **choice.conditions()
    )


class StoredEntry(NamedTuple):
    """An index entry as it lies there."""

    type: str
    value: str
    target_type: str | None
    target_key: str | None
    tenant: int
    entity_type: str
    waiting: int
    """0: of the newest compiled version and of the served one; 1: only of the former; 2: only of the latter."""


def stored_entries(source: Engine, entities: Collection[int]) -> dict[int, list[StoredEntry]]:
    """Everything that each of these entities, by number, is found by."""
    found: dict[int, list[StoredEntry]] = {number: [] for number in entities}
    for number, *entry in source.all("stored_entries", entities=list(found)):
        found[number].append(StoredEntry(*entry))
    return found
