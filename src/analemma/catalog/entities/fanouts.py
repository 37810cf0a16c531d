"""Fanouts as rows: one per entity whose change others have to follow; and who these are, by the index entries that name
it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from analemma.catalog.engine.db import Engine, Statements, Transaction
from analemma.catalog.entities.entities import EntityPlace
from analemma.catalog.port import TenantId

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


class ListedFanout(NamedTuple):
    """A fanout, and the entity whose it is."""

    tenant: str
    place: EntityPlace
    row: FanoutRow


class FanoutCounts(NamedTuple):
    """Fanouts of one status, taken together."""

    fanouts: int
    affected: int
    visited: int
    oldest_us: int


def find_fanout(source: Statements, entity: int) -> FanoutRow | None:
    """The fanout of an entity, if it ever had one; it may be over."""
    return source.row(FanoutRow, "fanout", entity=entity)


def hold_fanout(tx: Transaction, entity: int) -> FanoutRow | None:
    """The same, and nobody else goes on with it before this transaction is over."""
    return tx.row(FanoutRow, "hold_fanout", entity=entity)


def ask_fanout(tx: Transaction, tenant: TenantId, entity: int, version: int, *, now_us: int) -> FanoutRow:
    """Count a change: the fanout that is under way will cover it, or else one begins."""
    return tx.rows(FanoutRow, "ask_fanout", tenant=tenant, entity=entity, version=version, now=now_us)[0]


def move_fanout(tx: Transaction, before: FanoutRow, after: FanoutRow) -> None:
    """Write what became of a fanout that this transaction holds."""
    tx.execute(
        "move_fanout",
        entity=before.entity,
        status=after.status,
        seen=after.seen,
        step=after.step,
        passes=after.passes,
        progress=after.progress,
        affected=after.affected,
        processed=after.processed,
        skipped=after.skipped,
        failed=after.failed,
        alert=after.alert,
        priority=after.priority,
        updated_at=after.updated_at_us,
        finished_at=after.finished_at_us,
    )


class FanoutRows:
    """Looks at the fanouts of all tenants."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def page(
        self,
        *,
        tenant: TenantId | None,
        after: int,
        limit: int,
        under_way: bool = False,
        with_alert: bool = False,
    ) -> list[ListedFanout]:
        """Some of them, by the numbers of their entities; `after` is that of the last of the page before."""
        name = "alerted_fanouts" if with_alert else "fanouts_under_way" if under_way else "fanouts"
        rows = self._engine.all(name, tenant=tenant, after=after, limit=limit)
        return [ListedFanout(row[0], EntityPlace(row[1], row[2]), FanoutRow(*row[3:])) for row in rows]

    def counts(self, tenant: TenantId | None) -> tuple[dict[str, FanoutCounts], int, int]:
        """Of those under way, by status; how many have an alert, and of those how many are under way."""
        found = {
            row[0]: FanoutCounts(row[1], int(row[2]), int(row[3]), row[4])
            for row in self._engine.all("fanout_counts", tenant=tenant)
        }
        (alerts,) = self._engine.all("fanout_alert_count", tenant=tenant)
        return found, alerts[0], alerts[1]

    def forget(self, *, finished_before_us: int, limit: int) -> int:
        """Delete some that were finished before that time; how many."""
        return self._engine.execute("forget_fanouts", before=finished_before_us, limit=limit)


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
