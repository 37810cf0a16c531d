"""What callers get to know of deploys: where one stands, why, and how it came there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, NoReturn

import analemma.errors
from analemma.catalog.entities.deploys import DeployRow, DeployState, SinkRow
from analemma.errors import AnalemmaError, Internal, NotFound
from analemma.outbox.failures import LONGEST_REASON, describe
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.tsid import Version, format_version

Compiling = Literal["sync", "async"]
CutoverAt = Literal["ready", "done"]

TOLD_PATHS: Final = 50
"""Of the paths that had a slice rebuilt, so many are kept for `explain`."""


@dataclass(frozen=True, slots=True)
class DeployError:
    """Why a deploy failed."""

    kind: str
    """Of the error, as everywhere."""
    message: str
    hint: str | None = None
    sink: str | None = None
    """The sink rule, if it was a sink that would not."""
    slices: tuple[str, ...] = ()
    """The slices that it was about, as far as is known."""

    @staticmethod
    def of(error: BaseException) -> DeployError:
        """What an error says."""
        if not isinstance(error, AnalemmaError):
            return DeployError("internal", describe(error))
        hint = None if error.hint is None else _storable(error.hint)
        return DeployError(error.kind, _storable(error.message), hint, slices=tuple(error.facts.get("slices", ())))

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


@dataclass(frozen=True, slots=True)
class Deploy:
    """One document on its way to readers and sinks."""

    id: str
    state: DeployState
    version: str
    """The version of the entity that the document is."""
    tenant: str
    entity_type: str
    entity_id: str
    created: bool
    """False: the newest version had this content already, and the deploy is of that one."""
    compile: Compiling
    ship: tuple[str, ...] | None
    """The sink rules that were named; None: every one that matches."""
    cutover: CutoverAt
    attempt: int
    """1, and one more for every retry."""
    served: bool
    """Whether readers who named no version got this one when the deploy came to its cutover."""
    superseded_by: str | None
    """The newer version that was there already, so that this one was left out."""
    error: DeployError | None
    idempotency_key: str | None
    created_at_us: int
    updated_at_us: int
    finished_at_us: int | None

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens by itself: it is DONE or FAILED."""
        return self.state.is_over

    def check(self) -> Deploy:
        """This deploy; if it failed, the error why is raised instead."""
        if self.state is DeployState.FAILED:
            _raise(self)
        return self

    def as_dict(self) -> dict[str, Any]:
        """The same for programs."""
        return {**asdict(self), "state": self.state.value}


@dataclass(frozen=True, slots=True)
class DeployPage:
    """Some deploys, the newest first, and where the next ones begin."""

    deploys: list[Deploy]
    next_cursor: str | None
    """For the next page; None if this is the last."""


@dataclass(frozen=True, slots=True)
class DeployStep:
    """A transition that took place."""

    state: DeployState
    before: DeployState | None
    attempt: int
    reason: str | None
    at_us: int


@dataclass(frozen=True, slots=True)
class ExplainedSlice:
    """What the compile did with a slice."""

    type: str
    outcome: Literal["written", "unchanged", "tombstone"]
    why: tuple[str, ...] = ()
    """What had it rebuilt: changed paths, changed joins, or how all of it changed. Nothing: it was not looked at."""
    more: int = 0
    """How many further reasons there were."""


@dataclass(frozen=True, slots=True)
class SinkWait:
    """Why a sink that was asked has not answered. Times are the database's."""

    attempts: int
    """How often it was tried and failed."""
    failure: str | None
    """What it said the last time."""
    next_attempt_us: int | None
    """When it is tried again; None: as soon as a worker comes to it, or not by itself."""
    resting_until_us: int | None
    """Until when the sink is left alone, if it did not answer."""
    resting_reason: str | None
    """What it said then; None if only one tenant was asked for: it may have been about another's."""
    dead_letter: str | None
    """The request that was given up on, until somebody replays or discards it, or retries the deploy."""

    def describe(self, now_us: int) -> str:
        """In words; nothing if it was not tried yet."""
        said = []
        if self.attempts or self.failure:
            times = f"tried {self.attempts} time{'' if self.attempts == 1 else 's'}" if self.attempts else "failed"
            said.append(f"{times}: {self.failure}")
        if self.dead_letter is not None:
            said.append(f"given up, see the dead letter {self.dead_letter}")
        elif self.resting_until_us is not None:
            why = f": {self.resting_reason}" if self.resting_reason and not said else ""
            said.append(f"left alone for {_seconds(self.resting_until_us - now_us)}{why}")
        elif self.next_attempt_us is not None:
            said.append(f"tried again in {_seconds(self.next_attempt_us - now_us)}")
        return f" ({'; '.join(said)})" if said else ""


@dataclass(frozen=True, slots=True)
class ExplainedSink:
    """What a sink rule has to do with the deploy."""

    rule: str
    asked: bool
    why: str
    """Why it was asked to ship, or why not."""
    slices: tuple[str, ...] = ()
    """The slices that had it asked."""
    state: str | None = None
    """WAITING, ANSWERED or FAILED, of one that was asked."""
    ship_seq: int | None = None
    """What it was asked to take."""
    answered_seq: int | None = None
    """What it had when it answered; a greater one is a newer state."""
    reason: str | None = None
    asked_at_us: int | None = None
    answered_at_us: int | None = None
    waiting: SinkWait | None = None
    """Of one that has not answered."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything there is to say about a deploy."""

    deploy: Deploy
    ruleset: str | None = None
    """By which it was compiled; None: it is not."""
    mode: str | None = None
    """FULL or INCREMENTAL."""
    revision: int | None = None
    up_to_date: bool = False
    """Whether the version had been compiled to exactly this before."""
    slices: tuple[ExplainedSlice, ...] = ()
    sinks: tuple[ExplainedSink, ...] = ()
    told: tuple[str, ...] = ()
    """The slices whose dependants the cutover had follow."""
    steps: tuple[DeployStep, ...] = ()
    attempts: int = 0
    """How often its event was tried and failed, since its last attempt began."""
    waits_for: str | None = None
    """What has to happen next, in words; None: nothing, it is over."""

    def as_dict(self) -> dict[str, Any]:
        """The same for programs."""
        return {**asdict(self), "deploy": self.deploy.as_dict()}


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A deploy that an entity is not served because of."""

    deploy: Deploy
    waits_for: str | None

    def error(self, key: EntityKey) -> NotFound:
        """What readers hear."""
        deploy = self.deploy
        said = f"{key.type} {key.id} is not served: deploy {deploy.id} of version {deploy.version} is {deploy.state}"
        hint = f"`analemma deploys explain {deploy.id}` says more"
        if deploy.error is not None:
            said += f": {deploy.error.message}"
            hint = f"mend what failed, then `analemma deploys retry {deploy.id}`"
        elif self.waits_for is not None:
            said += f", and waits for {self.waits_for}"
        return NotFound(said, hint=hint, entity_key=str(key), deploy=deploy.id, state=deploy.state.value)


@dataclass(frozen=True, slots=True)
class Report:
    """What a compile did for a deploy, as the deploy keeps it."""

    ruleset: str
    mode: str
    revision: int
    up_to_date: bool
    slices: tuple[ExplainedSlice, ...] = ()
    sinks: tuple[ExplainedSink, ...] = ()
    told: tuple[str, ...] = ()

    def telling(self, told: tuple[str, ...]) -> Report:
        """With the slices whose dependants were told."""
        return replace(self, told=told)


def format_report(report: Report) -> str:
    """As the catalog keeps it."""
    return json.dumps(asdict(report), separators=(",", ":"), ensure_ascii=False)


def parse_report(text: str) -> Report:
    """As it was kept."""
    told = json.loads(text)
    slices = tuple(ExplainedSlice(**{**each, "why": tuple(each["why"])}) for each in told["slices"])
    sinks = tuple(ExplainedSink(**{**each, "slices": tuple(each["slices"])}) for each in told["sinks"])
    return Report(**{**told, "slices": slices, "sinks": sinks, "told": tuple(told["told"])})


def format_error(error: DeployError) -> str:
    """As the catalog keeps it."""
    return json.dumps(asdict(error), separators=(",", ":"), ensure_ascii=False)


def explained_slices(
    written: Iterable[str], unchanged: Iterable[str], tombstones: Iterable[str], impacted: dict[str, tuple[str, ...]]
) -> tuple[ExplainedSlice, ...]:
    """What became of each slice, and why."""
    gone = set(tombstones)

    def explained(slice_type: str, outcome: Literal["written", "unchanged"]) -> ExplainedSlice:
        why = impacted.get(slice_type, ())
        kept = tuple(map(_storable, why[:TOLD_PATHS]))
        said: Literal["written", "unchanged", "tombstone"] = outcome
        if outcome == "written" and slice_type in gone:
            said = "tombstone"
        return ExplainedSlice(slice_type, said, kept, len(why) - len(kept))

    return (
        *(explained(each, "written") for each in written),
        *(explained(each, "unchanged") for each in unchanged),
    )


def deploy_of(row: DeployRow) -> Deploy:
    """A row as callers see it."""
    error = None
    if row.error is not None:
        told = json.loads(row.error)
        error = DeployError(**{**told, "slices": tuple(told["slices"])})
    return Deploy(
        id=row.id,
        state=row.state,
        version=format_version(Version(row.version)),
        tenant=row.tenant_name,
        entity_type=row.type,
        entity_id=row.key,
        created=row.created,
        compile="sync" if row.compiling == "sync" else "async",
        ship=None if row.ship is None else tuple(json.loads(row.ship)),
        cutover="done" if row.cutover == "done" else "ready",
        attempt=row.attempt,
        served=row.served,
        superseded_by=None if row.superseded_by is None else format_version(Version(row.superseded_by)),
        error=error,
        idempotency_key=row.idempotency_key,
        created_at_us=row.created_at_us,
        updated_at_us=row.updated_at_us,
        finished_at_us=row.finished_at_us,
    )


def explained_sinks(
    planned: Iterable[ExplainedSink], rows: Iterable[SinkRow], waits: Mapping[str, SinkWait]
) -> tuple[ExplainedSink, ...]:
    """What was decided about each sink, with what came of it, or why nothing did."""
    known = {row.rule: row for row in rows}
    found = []
    for each in planned:
        row = known.pop(each.rule, None)
        found.append(each if row is None else _with(each, row))
    found += [_with(ExplainedSink(row.rule, True, "asked by an earlier attempt"), row) for row in known.values()]
    return tuple(replace(each, waiting=waits.get(each.rule)) for each in found)


def step_of(before: str | None, state: str, attempt: int, reason: str | None, at_us: int) -> DeployStep:
    """A row of the history as callers see it."""
    return DeployStep(DeployState(state), None if before is None else DeployState(before), attempt, reason, at_us)


def _with(sink: ExplainedSink, row: SinkRow) -> ExplainedSink:
    told = row._asdict()
    del told["rule"]
    return replace(sink, **told)


def _seconds(span_us: int) -> str:
    return f"{max(0, span_us) / 1_000_000:.1f} s"


def _storable(text: str) -> str:
    """Text that every catalog can hold."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")[:LONGEST_REASON]


def _raise(deploy: Deploy) -> NoReturn:
    error = deploy.error or DeployError("internal", f"deploy {deploy.id} failed")
    found = [
        each
        for each in vars(analemma.errors).values()
        if isinstance(each, type) and issubclass(each, AnalemmaError) and each.kind == error.kind
    ]
    kind = found[0] if found else Internal
    raise kind(error.message, hint=error.hint, deploy=deploy.id, sink=error.sink, slices=error.slices)
