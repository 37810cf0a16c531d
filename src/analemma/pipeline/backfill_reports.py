"""What backfills tell: plans, how far one is, what verifying found."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from analemma.catalog.entities.backfills import Counts as Counts
from analemma.catalog.entities.backfills import ErrorRow, ScopeCounts
from analemma.pipeline.backfill_scope import BackfillKind, BackfillOptions, BackfillScope, stale_command

State = Literal["PLANNED", "RUNNING", "PAUSED", "CANCELLED", "DONE", "FAILED"]
VerifyMode = Literal["fast", "strict"]

SAMPLES: Final = 10


@dataclass(frozen=True, slots=True)
class NeededBackfill:
    """Entities of a type that are served as other rules made them than those of today."""

    tenant: str
    entity_type: str
    entities: int
    indexes: tuple[str, ...]
    """Indexes of the rules of today that do not know some of them yet: searches by these are incomplete."""

    @property
    def scope(self) -> BackfillScope:
        """What a backfill has to go through."""
        return BackfillScope(tenant=self.tenant, types=(self.entity_type,), stale=True)

    @property
    def command(self) -> str:
        """The same for people."""
        return stale_command(self.tenant, self.entity_type)

    def as_dict(self) -> dict[str, Any]:
        """The same for programs."""
        return {**asdict(self), "command": self.command}


@dataclass(frozen=True, slots=True)
class Sample:
    """An entity, and what is to become of it."""

    entity: str
    what: str


@dataclass(frozen=True, slots=True)
class TypePlan:
    """What there is of one entity type."""

    type: str
    selected: int
    """Entities that the backfill goes through."""
    there: ScopeCounts
    """What the scope has, before it is narrowed down to stale ones."""
    ruleset: str | None
    fingerprint: str
    sinks: tuple[str, ...]
    """Sink rules that are asked for each entity."""


@dataclass(frozen=True)
class BackfillPlan:
    """What a backfill would do. Counts are of the moment when it was made."""

    kind: BackfillKind
    scope: BackfillScope
    types: tuple[TypePlan, ...]
    total: int
    """Entities, or events, to go through."""
    requested: int
    """Sinks that would be asked, over all entities; for `raw_to_slice` that depends on what changes."""
    raw_bytes: int
    samples: tuple[Sample, ...]
    changes: Counts | None = None
    """What a run would count on this very store; None: that was not worked out."""
    exact: bool = True
    """Whether the changes are sure: not if what entities join, and would change, was too much to keep in mind."""

    def as_dict(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "kind": self.kind.value,
            "scope": self.scope.as_dict(),
            "types": [{**asdict(each), "there": each.there._asdict()} for each in self.types],
            "total": self.total,
            "requested": self.requested,
            "raw_bytes": self.raw_bytes,
            "samples": [asdict(each) for each in self.samples],
            "changes": None if self.changes is None else self.changes._asdict(),
            "exact": self.exact,
        }

    def dump(self) -> str:
        """As the catalog keeps it."""
        return json.dumps(self.as_dict())


def load_plan(text: str, kind: BackfillKind, scope: BackfillScope) -> BackfillPlan:
    """As it was."""
    told = json.loads(text)
    return BackfillPlan(
        kind,
        scope,
        tuple(
            TypePlan(**{**each, "there": ScopeCounts(**each["there"]), "sinks": tuple(each["sinks"])})
            for each in told["types"]
        ),
        told["total"],
        told["requested"],
        told["raw_bytes"],
        tuple(Sample(**each) for each in told["samples"]),
        None if told["changes"] is None else Counts(**told["changes"]),
        told["exact"],
    )


@dataclass(frozen=True)
class Backfill:
    """A backfill that is planned, runs or is over."""

    id: str
    tenant: str
    kind: BackfillKind
    scope: BackfillScope
    options: BackfillOptions
    state: State
    reason: str | None
    """Why it failed, or was paused."""
    plan: BackfillPlan
    total: int
    counts: Counts
    errors: tuple[ErrorRow, ...]
    """Some of those that failed."""
    holder: str | None
    """Who runs it, as far as is known."""
    created_at: dt.datetime
    started_at: dt.datetime | None
    finished_at: dt.datetime | None
    verified: VerifyReport | None = None
    """What verifying found, if that was asked for."""

    @property
    def over(self) -> bool:
        """Whether nobody will go on with it."""
        return self.state in ("DONE", "CANCELLED")

    def as_dict(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "id": self.id,
            "tenant": self.tenant,
            "kind": self.kind.value,
            "scope": self.scope.as_dict(),
            "options": asdict(self.options),
            "state": self.state,
            "reason": self.reason,
            "total": self.total,
            "counts": self.counts._asdict(),
            "errors": [each._asdict() for each in self.errors],
            "holder": self.holder,
            "created_at": self.created_at,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "plan": self.plan.as_dict(),
            "verified": None if self.verified is None else self.verified.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """How far something is."""

    done: int
    total: int
    failed: int
    rate: float
    """Per second, of late."""
    eta_s: float | None
    """What is left, at that rate; None: nobody knows yet."""

    def describe(self) -> str:
        """One line."""
        share = f"{100 * self.done // self.total}%" if self.total else "100%"
        left = "" if self.eta_s is None else f", {format_seconds(self.eta_s)} left"
        failed = f", {self.failed:,} failed" if self.failed else ""
        return f"{self.done:,} of {self.total:,} ({share}), {self.rate:,.0f}/s{left}{failed}"


Watch = Callable[[Progress], None]
"""Told how far something is, from time to time, by the thread that waits for it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What verifying found wrong with one entity."""

    entity: str
    version: str | None
    kind: str
    """`wrong`: what is stored is not what the rules make; `corrupt`: it cannot be read, or is not what its hash says;
    `stale`: made by other rules, or of what has changed since; `uncompiled`: its newest version was never compiled."""
    what: str


@dataclass(frozen=True)
class VerifyReport:
    """What verifying found. Nothing was changed."""

    mode: VerifyMode
    entities: int
    versions: int
    slices: int
    wrong: int
    corrupt: int
    stale: int
    uncompiled: int
    problems: tuple[Problem, ...] = field(default=())
    """The first of each kind that were found; all are counted."""

    @property
    def ok(self) -> bool:
        """Whether everything is what it should be."""
        return not (self.wrong or self.corrupt or self.stale or self.uncompiled)

    @property
    def damaged(self) -> bool:
        """Whether something is there that no compile made."""
        return bool(self.wrong or self.corrupt)

    def as_dict(self) -> dict[str, Any]:
        """The same for programs."""
        return {**asdict(self), "ok": self.ok}


def format_seconds(seconds: float) -> str:
    """`5025` -> `1h23m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
