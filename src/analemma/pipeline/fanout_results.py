"""What callers are told of a fanout."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from analemma.catalog.entities.entities import FanoutRow
from analemma.pipeline.fanout_progress import parse_progress
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.tsid import Version, format_version


class FanoutState(StrEnum):
    """Where a fanout stands."""

    NOTHING = "NOTHING"
    """Nobody joins the entity."""
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    DEFERRED = "DEFERRED"
    """What is left is beyond its limit, and is done when there is nothing else to do."""
    DONE = "DONE"


@dataclass(frozen=True, slots=True)
class DependencyResult:
    """The part of a fanout that goes through one index."""

    entity_type: str
    index_type: str
    limit: int
    affected: int
    processed: int
    skipped: int
    failed: int
    deferred: bool
    """Whether it went beyond its limit."""
    finished: bool


@dataclass(frozen=True, slots=True)
class FanoutResult:
    """How far a fanout is, or how it ended. Who was visited in several passes counts each time."""

    key: EntityKey
    status: FanoutState
    version: str | None = None
    """The newest version of the entity that it was told of."""
    affected: int = 0
    """How many name the entity, in whatever index, when they were last counted."""
    processed: int = 0
    """Compiled to something new."""
    skipped: int = 0
    """They had followed already, or there is nothing to compile them by."""
    failed: int = 0
    """They could not be compiled; each has an event of its own, which is a dead letter if nothing helps."""
    changes: int = 0
    """How many changes it was told of, since ever."""
    passes: int = 0
    """How often it went around for them."""
    alert: str | None = None
    priority: int = 0
    started_at_us: int | None = None
    updated_at_us: int | None = None
    finished_at_us: int | None = None
    dependencies: tuple[DependencyResult, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The same for programs."""
        return {**asdict(self), "key": str(self.key), "status": self.status.value}


def fanout_result(key: EntityKey, row: FanoutRow) -> FanoutResult:
    """What a row says."""
    return FanoutResult(
        key=key,
        status=FanoutState(row.status),
        version=format_version(Version(row.version)),
        affected=row.affected,
        processed=row.processed,
        skipped=row.skipped,
        failed=row.failed,
        changes=row.asked,
        passes=row.passes,
        alert=row.alert,
        priority=row.priority,
        started_at_us=row.started_at_us,
        updated_at_us=row.updated_at_us,
        finished_at_us=row.finished_at_us,
        dependencies=tuple(
            DependencyResult(
                walk.dependency.entity_type,
                walk.dependency.index_type,
                walk.limit,
                walk.affected,
                walk.counts.processed,
                walk.counts.skipped,
                walk.counts.failed,
                walk.deferred,
                walk.finished,
            )
            for walk in parse_progress(row.progress).walks
        ),
    )
