"""Schedules: runs that begin by themselves, one for each tick.

A tick's run and the schedule's step to the next tick are one commit, and the run's key is made of the tick: however
many workers look at once, and whenever one of them dies, a tick has one run."""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from analemma.catalog.leases import database_clock
from analemma.catalog.port import RowChange
from analemma.catalog.runs.queues import ScheduleRow, due_schedules
from analemma.catalog.runs.runs import RunRow
from analemma.clock import moment
from analemma.errors import Conflict, Invalid, NotFound, Unavailable
from analemma.failpoints import declare, hit
from analemma.flows.beginning import Asked, Beginning, RunsOn, workflow_of
from analemma.flows.building import Flow
from analemma.flows.document import Workflow
from analemma.flows.held_runs import RunnerParts
from analemma.flows.nodes import TriggerNode
from analemma.flows.queueing import check_label
from analemma.flows.reading import read_workflow
from analemma.flows.runs import Run, RunError, error_of, read_error, said
from analemma.flows.ticking import CATCH_UPS, SECOND_US, CatchUp, Policy, Ticks, check_ticks, due_ticks, iso
from analemma.state.arguments import MAIN, check_name

BEFORE_TICK = declare("schedule.before_tick", "a tick of a schedule is due, and nothing of it is written")
BEFORE_REPLACING = declare(
    "schedule.before_replacing", "it is decided how a schedule goes on as another, and nothing of it is written"
)
BEFORE_POSTPONING = declare("schedule.before_postponing", "a tick could not be begun, and nobody knows why")
AFTER_TICK = declare("schedule.after_tick", "a tick's run is begun and the schedule is at the next, but nobody knows")

log = logging.getLogger("analemma.flows")

TICK: Final = "{tick}"
_PLACEHOLDER: Final = re.compile(r"\{[^{}]*\}")
"""Stands in a workflow's id for the tick."""
AGAIN_S: Final = 60.0
"""A tick that could not be begun is tried again after so long."""
MOST_AT_ONCE: Final = 1000
MOST_TRIES: Final = 20
LONGEST_GRACE_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Definition:
    """What a schedule does, as it is kept."""

    owner_id: str
    workflow_id: str
    branch: str
    input: Mapping[str, Any]
    ticks: Ticks
    policy: Policy
    queue: str = ""
    priority: int = 0
    executor: str | None = None
    tick_into: str | None = None
    """The field of the input that gets the tick."""
    trigger: str | None = None
    """The trigger of the document that a run begins with."""

    def to_text(self) -> str:
        """As JSON."""
        kept = {name: getattr(self, name) for name in self.__slots__ if name not in ("ticks", "policy")}
        kept["ticks"] = {name: getattr(self.ticks, name) for name in self.ticks.__slots__}
        kept["policy"] = {name: getattr(self.policy, name) for name in self.policy.__slots__}
        try:
            return json.dumps(kept, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as exc:
            raise Invalid(f"the input is no JSON: {exc}", hint="a schedule's input is plain data") from exc


def read_definition(text: str, *, roughly: bool = False) -> Definition:
    """The other way round; `roughly`: without what another release added, for whoever only looks."""
    kept = json.loads(text)
    ticks, policy = kept.pop("ticks"), kept.pop("policy")
    strange = [*(kept.keys() - _names(Definition)), *(ticks.keys() - _names(Ticks)), *(policy.keys() - _names(Policy))]
    if strange and not roughly:
        raise Invalid(
            f"the schedule says {min(strange)}, which this release does not know",
            hint="run a newer one",
            field=min(strange),
        )
    return Definition(
        **_of(Definition, kept),
        ticks=Ticks(**_of(Ticks, ticks)),
        policy=Policy(**_of(Policy, policy)),
    )


def _names(of: Any) -> set[str]:
    return {each.name for each in fields(of)}


def _of(known: Any, kept: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kept.items() if name in _names(known)}


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule, as it was when it was looked at."""

    name: str
    flow: str
    """What its document calls itself."""
    document: str
    """The hash of that."""
    owner_id: str
    workflow_id: str
    branch: str
    input: Mapping[str, Any]
    cron: str | None
    zone: str
    every_s: float | None
    catch_up: CatchUp
    limit: int
    grace_s: float
    queue: str
    priority: int
    executor: str | None
    tick_into: str | None
    paused: bool
    next_at: dt.datetime | None
    """The next tick; None while it is paused, or if there is none any more."""
    last_at: dt.datetime | None
    """The last tick that began a run."""
    error: RunError | None
    """Why its tick could not be begun, when it was last tried."""
    created_at: dt.datetime
    updated_at: dt.datetime

    def to_value(self) -> dict[str, Any]:
        """As JSON."""
        kept = {name: getattr(self, name) for name in self.__slots__}
        kept["error"] = None if self.error is None else self.error.message
        return {name: each.isoformat() if isinstance(each, dt.datetime) else each for name, each in kept.items()}


class Schedules:
    """One tenant's schedules."""

    def __init__(
        self, parts: RunnerParts, *, view: Callable[[RunRow], Run], now: Callable[[], int] | None = None
    ) -> None:
        """`now` is the database's time, if nobody says otherwise: the same for all workers, however wrong their
        machines' clocks are."""
        self._parts = parts
        self._view = view
        self._now = now or (lambda: database_clock(parts.engine))
        self._engine = parts.engine
        self._beginning = Beginning(parts)

    def add(
        self,
        name: str,
        flow: RunsOn,
        input: Mapping[str, Any] | None = None,
        *,
        owner_id: str,
        workflow_id: str | None = None,
        branch: str = MAIN,
        cron: str | None = None,
        every_s: float | None = None,
        zone: str | None = None,
        catch_up: CatchUp = "one",
        limit: int = 10,
        grace_s: float = 60.0,
        queue: str = "",
        priority: int = 0,
        executor: str | None = None,
        tick_into: str | None = None,
        replace: bool = False,
    ) -> Schedule:
        """Begin a run at every tick of `cron` (minute hour day month weekday, in a time `zone`), or every so many
        seconds; without either, as the document's own trigger says. A worker sees to it.

        The runs are of one workflow, by default named like the schedule; `{tick}` in `workflow_id` gives each its own.
        `tick_into` names a field of the input that gets the tick. Ticks at which no worker was there, for longer than
        `grace_s`, are left out (`skip`), run once for all (`one`), or each, the newest `limit` of them (`all`).
        Conflict if there is a schedule of this name, unless told to `replace` it. One that ticks as the one before goes
        on with its ticks; a tick that is due already is run as it says."""
        check_label(name, "schedule")
        workflow = workflow_of(flow)
        if isinstance(flow, Flow):
            self._parts.handlers.add_all(flow)
        own = next((node for node in workflow.nodes if isinstance(node, TriggerNode) and node.on == "schedule"), None)
        named = zone
        if cron is None and every_s is None and own is not None:
            cron, every_s, zone = own.cron, own.every_s, zone or own.zone
        if named is not None and every_s is not None:
            raise Invalid("a zone is of cron, and an interval has none", hint="leave out the zone")
        now = self._now()
        definition = Definition(
            owner_id,
            name if workflow_id is None else workflow_id,
            branch,
            {} if input is None else input,
            Ticks(cron, zone or "UTC", every_s, now),
            Policy(catch_up, limit, grace_s),
            queue,
            priority,
            executor,
            tick_into,
            None if own is None else own.id,
        )
        self._check(name, definition, workflow, now)
        document = json.dumps(workflow.to_document(), separators=(",", ":"), ensure_ascii=False)
        for _ in range(MOST_TRIES):
            old = self._find(name)
            if old is not None and not replace:
                raise Conflict(f"there is a schedule {name} already", hint="remove it, or replace it")
            kept, next_us = _following(old, definition, now)
            if old is not None:
                hit(BEFORE_REPLACING)
            asked = {"document": document, "definition": kept.to_text(), "next": next_us}
            statement, place = (
                ("add_schedule", self._named(name)) if old is None else ("replace_schedule", self._seen(old))
            )
            if self._engine.execute(statement, **asked, **place) == 1:
                return self.get(name)
        raise Conflict(f"the schedule {name} changes too fast", hint="try again")

    def get(self, name: str) -> Schedule:
        """One schedule."""
        return _schedule(self._row(name))

    def list(self) -> list[Schedule]:
        """All schedules, by name."""
        rows = self._engine.rows(ScheduleRow, "schedules", tenant=self._parts.tenant)
        return [_schedule(row) for row in rows]

    def pause(self, name: str) -> Schedule:
        """No ticks until it is resumed; runs that were begun go on."""
        if self._engine.execute("pause_schedule", **self._named(check_name(name, "schedule"))) != 1:
            raise _missing(name)
        return self.get(name)

    def resume(self, name: str) -> Schedule:
        """Ticks again, from now on: those meanwhile were not missed. One that is not paused stays as it is."""
        row = self._row(name)
        next_us = read_definition(row.definition).ticks.next(self._now())
        self._engine.execute("resume_schedule", next=next_us, **self._named(name))
        return self.get(name)

    def remove(self, name: str) -> None:
        """No ticks any more; runs that were begun go on."""
        if self._engine.execute("drop_schedule", **self._named(check_name(name, "schedule"))) != 1:
            raise _missing(name)

    def run_now(self, name: str) -> Run:
        """Begin a run besides, as if there were a tick now, and leave it to a worker; also of one that is paused."""
        row = self._row(name)
        own = self._parts.entropy.random_bytes(8).hex()
        asked = self._asked(row, read_definition(row.definition), self._now(), f"schedule/{name}/now/{own}", now=True)
        return self._view(self._beginning.begin(asked, here=False)[0])

    def tend(self) -> int:
        """For workers: begin what is due; how many runs."""
        now = self._now()
        due = due_schedules(self._parts.engine, now_us=now, tenant=self._parts.tenant)
        return sum(self.tend_one(row, now) for row in due)

    def tend_one(self, row: ScheduleRow, now_us: int) -> int:
        """Begin the runs of one schedule that are due; how many. One that cannot be begun is tried again later."""
        try:
            return self._tend(row, now_us)
        except Unavailable:
            raise
        except Exception as exc:
            # Also a defect, and whatever a zone or a definition raises that this machine does not know: one schedule
            # must not keep the others from their ticks.
            log.warning("the schedule %s cannot begin its run: %s", row.name, said(exc))
            newest = self._find(row.name)
            if newest is not None:
                look_us = now_us + round(AGAIN_S * SECOND_US)
                hit(BEFORE_POSTPONING)
                told = {"look": look_us, "error": error_of(exc).to_text()}
                self._engine.execute("postpone_schedule", **self._seen(newest), **told)
            return 0

    def _tend(self, row: ScheduleRow, now_us: int) -> int:
        definition = read_definition(row.definition)
        if row.next_at_us is None or row.next_at_us > now_us:
            return 0
        chosen = due_ticks(
            definition.ticks, definition.policy, row.next_at_us, now_us, MOST_AT_ONCE, look_us=row.look_at_us
        )
        following = [*chosen[1:], definition.ticks.next(now_us)]
        if not chosen:
            self._advance(row, None, following[0])
            return 0
        begun = 0
        for tick, after in zip(chosen, following, strict=True):
            hit(BEFORE_TICK)
            is_new = self._begin(row, definition, tick, after)
            if is_new is None:
                # Somebody else is at it, or it is another schedule by now.
                return begun
            hit(AFTER_TICK)
            begun += int(is_new)
            row = row._replace(next_at_us=after)
        return begun

    def _begin(self, row: ScheduleRow, definition: Definition, tick: int, after: int | None) -> bool | None:
        """The run of a tick, and the schedule at the next: whether the run is a new one; None if somebody else was
        first."""
        key = f"schedule/{row.name}/{iso(tick)}"
        standing = None
        if self._parts.rows.of_key(key) is None:
            change = RowChange("advance_schedule", {**self._seen(row), "tick": tick, "next": after})
            asked = replace(self._asked(row, definition, tick, key), beside=(change,))
            try:
                _, standing = self._beginning.begin(asked, here=False)
            except Conflict as exc:
                if exc.facts.get("statement") == change.statement or self._parts.rows.of_key(key) is not None:
                    return None
                raise
        if standing is not None:
            return True
        # It was begun before, and of a schedule that had the name then: it is passed all the same.
        return False if self._advance(row, tick, after) else None

    def _advance(self, row: ScheduleRow, tick: int | None, following: int | None) -> bool:
        """The schedule goes on to the next tick; False: somebody else was first."""
        return self._engine.execute("advance_schedule", **self._seen(row), tick=tick, next=following) == 1

    def _named(self, name: str) -> dict[str, Any]:
        return {"tenant": self._parts.tenant, "name": name}

    def _seen(self, row: ScheduleRow) -> dict[str, Any]:
        return {**self._named(row.name), "revision": row.revision, "seen": row.next_at_us}

    def _find(self, name: str) -> ScheduleRow | None:
        return self._engine.row(ScheduleRow, "schedule", **self._named(name))

    def _asked(self, row: ScheduleRow, definition: Definition, tick: int, key: str, *, now: bool = False) -> Asked:
        workflow = read_workflow(json.loads(row.document))
        return self._request(row.name, definition, workflow, tick, key, now=now)

    def _request(
        self, name: str, definition: Definition, workflow: Workflow, tick: int, key: str, *, now: bool = False
    ) -> Asked:
        given = dict(definition.input)
        if definition.tick_into is not None:
            given[definition.tick_into] = iso(tick)
        trigger: dict[str, Any] = {"schedule": name, "tick": iso(tick)} | ({"now": True} if now else {})
        if definition.trigger is not None:
            trigger["node"] = definition.trigger
        return self._beginning.asked(
            workflow,
            given,
            workflow_id=definition.workflow_id.replace(TICK, iso(tick)),
            owner_id=definition.owner_id,
            branch=definition.branch,
            idempotency_key=key,
            executor=definition.executor,
            mock=False,
            trigger=trigger,
            queue=definition.queue,
            priority=definition.priority,
        )

    def _check(self, name: str, definition: Definition, workflow: Workflow, now_us: int) -> None:
        """Invalid, or Denied, unless its runs can begin."""
        check_ticks(definition.ticks)
        policy = definition.policy
        if policy.catch_up not in CATCH_UPS:
            raise Invalid(f"no schedule catches up by {policy.catch_up!r}", hint=", ".join(CATCH_UPS))
        if type(policy.limit) is not int or not 1 <= policy.limit <= MOST_AT_ONCE:
            raise Invalid(f"a limit of {policy.limit!r}", hint=f"from 1 to {MOST_AT_ONCE}")
        if not isinstance(policy.grace_s, int | float) or not 0 <= policy.grace_s <= LONGEST_GRACE_S:
            raise Invalid(f"a grace of {policy.grace_s!r} s", hint=f"from 0 to {LONGEST_GRACE_S:g}")
        if definition.executor is not None and not isinstance(definition.executor, str):
            raise Invalid("the executor of a schedule is a name", hint="as processes:4")
        if not isinstance(definition.input, Mapping):
            raise Invalid(f"the input is of type {type(definition.input).__name__}", hint="pass a dict of fields")
        if definition.tick_into is not None:
            check_name(definition.tick_into, "field")
        check_name(definition.workflow_id, "workflow")
        strange = [each for each in _PLACEHOLDER.findall(definition.workflow_id) if each != TICK]
        if strange:
            raise Invalid(f"nothing is put in the place of {strange[0]}", hint=f"there is {TICK}, and nothing else")
        self._request(name, definition, workflow, now_us, f"schedule/{name}/{iso(now_us)}")

    def _row(self, name: str) -> ScheduleRow:
        row = self._find(check_name(name, "schedule"))
        if row is None:
            raise _missing(name)
        return row


def _schedule(row: ScheduleRow) -> Schedule:
    definition, document = read_definition(row.definition, roughly=True), read_workflow(json.loads(row.document))
    ticks, policy = definition.ticks, definition.policy
    return Schedule(
        name=row.name,
        flow=document.workflow,
        document=document.hash,
        owner_id=definition.owner_id,
        workflow_id=definition.workflow_id,
        branch=definition.branch,
        input=definition.input,
        cron=ticks.cron,
        zone=ticks.zone,
        every_s=ticks.every_s,
        catch_up=policy.catch_up,
        limit=policy.limit,
        grace_s=policy.grace_s,
        queue=definition.queue,
        priority=definition.priority,
        executor=definition.executor,
        tick_into=definition.tick_into,
        paused=bool(row.paused),
        next_at=None if row.next_at_us is None or row.paused else moment(row.next_at_us),
        last_at=None if row.last_at_us is None else moment(row.last_at_us),
        error=read_error(row.error),
        created_at=moment(row.created_at_us),
        updated_at=moment(row.updated_at_us),
    )


def _following(old: ScheduleRow | None, definition: Definition, now_us: int) -> tuple[Definition, int | None]:
    """A definition in the place of another, and its next tick: no tick that is due is lost with the one before."""
    if old is not None and old.next_at_us is not None:
        before, ticks = read_definition(old.definition, roughly=True).ticks, definition.ticks
        if (before.cron, before.zone, before.every_s) == (ticks.cron, ticks.zone, ticks.every_s):
            return replace(definition, ticks=before), old.next_at_us
        if old.next_at_us <= now_us and not old.paused:
            return definition, old.next_at_us
    return definition, definition.ticks.next(now_us)


def _missing(name: str) -> NotFound:
    return NotFound(f"there is no schedule {name}", hint="schedules.list() has those that there are", schedule=name)
