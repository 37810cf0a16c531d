"""Fanouts as rows: one per entity whose change others have to follow; and who these are, by the index entries that name
it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from analemma.catalog.engine.db import Statements, Transaction
from analemma.catalog.entities.entities import EntityPlace

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


def find_fanout(source: Statements, entity: int) -> FanoutRow | None:
    """The fanout of an entity, if it ever had one; it may be over."""
    return source.row(FanoutRow, "fanout", entity=entity)


def hold_fanout(tx: Transaction, entity: int) -> FanoutRow | None:
    """The same, and nobody else goes on with it before this transaction is over."""
    return tx.row(FanoutRow, "hold_fanout", entity=entity)


def has_dependants(source: Statements, target: int) -> bool:
    """Whether anybody names an entity."""
    return source.one("any_dependant", target=target) is not None
