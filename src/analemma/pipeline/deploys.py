"""Deploys as people and programs see them: looked at, waited for, explained and retried, in one tenant or in all."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from analemma.catalog.engine.db import Statements, Transaction
from analemma.catalog.entities.deploys import (
    BEHIND_ALL,
    DeployRow,
    DeployState,
    SinkRow,
    advance,
    as_deploy,
    check_transition,
    drop_old_deploys,
    find_deploys,
    hold_entity,
    hold_waiting_deploys,
    lanes_left,
)
from analemma.catalog.entities.entities import EntityPlace, find_entity
from analemma.catalog.leases import database_clock
from analemma.catalog.outbox.admin import channel_states, find_event, revive_event
from analemma.catalog.outbox.lanes import enqueue
from analemma.catalog.port import TenantId
from analemma.context import StoreContext
from analemma.errors import Conflict, Invalid, NotFound, Timeout
from analemma.failpoints import declare, hit
from analemma.outbox.options import Listener
from analemma.pipeline.cursors import decode_cursor, encode_cursor, no_cursor
from analemma.pipeline.deploy_records import (
    Deploy,
    DeployError,
    DeployPage,
    Explanation,
    HeldBack,
    SinkWait,
    deploy_of,
    explained_sinks,
    parse_report,
    step_of,
)
from analemma.pipeline.deploy_serving import fail, sink_error
from analemma.pipeline.events import SLICE, Events, ship_lane
from analemma.slicing.entity_key import EntityKey

RETRIED = declare("deploy.retried", "a deploy is QUEUED again inside the transaction")

SECOND_US: Final = 1_000_000
LONGEST_PAGE: Final = 1000
SHORTEST_PAUSE_S: Final = 0.01
"""However often it is woken, somebody who waits does not look more often."""
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
CHECK_EVERY_S: Final = 1.0
"""How often somebody who waits also asks whether what the deploy waits for can still happen."""

_ID = re.compile("[0-9a-f]{32}")


class Deploys:
    """Deploys of one tenant, or (`tenant` None) of all."""

    def __init__(self, context: StoreContext, tenant: TenantId | None) -> None:
        self._context = context
        self._engine = context.engine
        self._events = Events(context.entropy)
        self._clock = context.clock
        self._tenant = tenant

    def get(self, id: str) -> Deploy:
        """A deploy as it is now; NotFound if there is none of this id, or none any more."""
        return deploy_of(self._checked(self._find(id)))

    def list(
        self,
        *,
        state: str | None = None,
        entity_type: str | None = None,
        entity_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> DeployPage:
        """Deploys that match, newest first, a page at a time."""
        if not 1 <= limit <= LONGEST_PAGE:
            raise Invalid(f"a page of {limit}", hint=f"ask for 1 to {LONGEST_PAGE} deploys")
        if entity_id is not None and (entity_type is None or self._tenant is None):
            raise Invalid("an id is of one type and one tenant", hint="name both, or leave out the id")
        chosen = None if state is None else _state(state)
        if entity_type is not None:
            EntityKey(entity_type, "any", "any" if entity_id is None else entity_id)
        question = ("deploys", self._tenant, state, entity_type, entity_id)
        number = None
        if entity_type is not None and entity_id is not None and self._tenant is not None:
            entity = find_entity(self._engine, self._tenant, EntityPlace(entity_type, entity_id))
            if entity is None:
                return DeployPage([], None)
            number = entity.number
        rows = self._engine.rows(
            as_deploy,
            "list_deploys",
            tenant=self._tenant,
            state=None if chosen is None else chosen.value,
            entity=number,
            type=entity_type,
            before=BEHIND_ALL if cursor is None else _place(question, cursor),
            limit=limit + 1,
        )
        shown = rows[:limit]
        after = encode_cursor(question, shown[-1].number) if len(rows) > limit else None
        return DeployPage([deploy_of(row) for row in shown], after)

    def await_(self, id: str, *, until: str = "done", timeout_s: float | None = 30.0) -> Deploy:
        """Wait until a deploy is compiled (`ready`) or over (`done`), whoever does the work; as it is then.

        One that fails is waited for no longer: its state says so, and `check()` raises its error. Timeout, which has
        the state that was reached, after `timeout_s`; None waits for ever."""
        check_waiting(until, timeout_s)
        row = self._checked(self._find(id))
        if is_reached(row.state, until):
            return deploy_of(row)
        if timeout_s == 0:
            raise late(deploy_of(row), until, timeout_s, self._waits_for(row))
        listener = self._context.catalog.wakeups.listen()
        try:
            return deploy_of(self._wait(row, until, timeout_s, listener))
        finally:
            listener.close()

    def explain(self, id: str) -> Explanation:
        """Which rules and slices a deploy is about, which sinks it asked and why, every transition, and what it waits
        for."""
        row = self._checked(self._find(id))
        event = find_event(self._engine, row.tenant, row.event)
        found = Explanation(
            deploy_of(row),
            steps=tuple(self._engine.rows(step_of, "deploy_steps", deploy=row.number)),
            attempts=0 if event is None else event.attempts,
            waits_for=self._waits_for(row),
        )
        sinks = self._sinks(row)
        waits = self._waits(row, sinks)
        if row.report is None:
            return replace(found, sinks=explained_sinks((), sinks, waits))
        report = parse_report(row.report)
        return replace(
            found,
            ruleset=report.ruleset,
            mode=report.mode,
            revision=report.revision,
            up_to_date=report.up_to_date,
            slices=report.slices,
            sinks=explained_sinks(report.sinks, sinks, waits),
            told=report.told,
        )

    def _held_back(self, entities: Collection[int]) -> dict[int, HeldBack]:
        """Deploys of these entities, by their numbers, that are not done, each with what it waits for."""
        if not entities:
            return {}
        found = self._engine.rows(as_deploy, "unfinished_deploys", entities=sorted(set(entities)))
        return {row.entity: HeldBack(deploy_of(row), self._waits_for(row)) for row in found}

    def retry(self, id: str) -> Deploy:
        """Have a deploy that failed go on from what failed: QUEUED, for a worker. What is compiled already is not
        compiled again, and sinks that have answered are not asked again. Conflict unless it is FAILED."""
        row = self._checked(self._find(id))

        def again(tx: Transaction) -> DeployRow:
            check_transition(row.state, DeployState.QUEUED)
            now_us = self._clock.now_us()
            event = find_event(tx, row.tenant, row.event)
            revived = event is not None and event.is_dead and revive_event(tx, event.lane, event.seq, now_us=now_us)
            name = row.event if revived else self._events.new_id()
            moved = advance(tx, row, DeployState.QUEUED, now_us=now_us, attempt=row.attempt + 1, event=name, error=None)
            if moved is None:
                raise Conflict(f"deploy {id} is being retried by somebody else", hint="see what becomes of it")
            if not revived:
                key = EntityKey(row.type, row.tenant_name, row.key)
                asked = self._events.deploy_requested(key, row.version, name, row.id)
                enqueue(tx, row.tenant, [asked], now_us=now_us)
            hit(RETRIED)
            return moved

        queued = self._engine.write(again)
        self._context.wake()
        return deploy_of(queued)

    def housekeep(self, *, older_than_s: float | None = None, stop: Callable[[], bool] = lambda: False) -> int:
        """Delete deploys of all tenants that have been over for longer than the settings say; how many. Those that
        failed stay until a newer version of their entity is compiled."""
        keep_s = self._context.settings.deploy_keep_s if older_than_s is None else older_than_s
        before_us = self._clock.now_us() - int(keep_s * SECOND_US)
        count = 0
        while not stop():
            dropped = drop_old_deploys(self._engine, before_us=before_us)
            count += dropped
            if not dropped:
                break
        return count

    def _wait(self, row: DeployRow, until: str, timeout_s: float | None, listener: Listener) -> DeployRow:
        begun = looked = self._clock.monotonic()
        pause_s = FIRST_PAUSE_S
        while True:
            row = self._find(row.id)
            now = self._clock.monotonic()
            if not is_reached(row.state, until) and now - looked >= CHECK_EVERY_S:
                row, looked = self._checked(row), now
            if is_reached(row.state, until):
                return row
            left_s = LONGEST_PAUSE_S if timeout_s is None else begun + timeout_s - now
            if left_s <= 0:
                # Before giving up, whether it is not simply stuck.
                row = self._checked(row)
                if is_reached(row.state, until):
                    return row
                raise late(deploy_of(row), until, timeout_s or 0.0, self._waits_for(row))
            self._clock.sleep(min(SHORTEST_PAUSE_S, left_s))
            if listener.wait(max(0.0, min(pause_s, left_s) - SHORTEST_PAUSE_S)):
                pause_s = FIRST_PAUSE_S
            else:
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _find(self, id: str) -> DeployRow:
        found = find_deploys(self._engine, self._tenant, id) if isinstance(id, str) and _ID.fullmatch(id) else []
        if not found:
            raise NotFound(
                f"there is no deploy {id!r}", hint="housekeeping deletes those that were over long ago", deploy=id
            )
        if len(found) > 1:
            raise Conflict(f"{len(found)} tenants have a deploy {id}", hint="ask one tenant's deploys", deploy=id)
        return found[0]

    def _checked(self, row: DeployRow) -> DeployRow:
        """The deploy; FAILED from now on, if what it waits for cannot happen any more: nobody else says so of an event
        that was given up on."""
        if row.state.is_over or self._stuck(row) is None:
            return row

        def settle(tx: Transaction) -> None:
            hold_entity(tx, row.entity)
            # Whoever records an answer holds the deploy until the request is settled, too.
            hold_waiting_deploys(tx, [row.entity])
            error = self._stuck(row, tx)
            if error is not None:
                fail(tx, row, error, now_us=self._clock.now_us())

        self._engine.write(settle)
        self._context.wake()
        return self._find(row.id)

    def _stuck(self, row: DeployRow, tx: Transaction | None = None) -> DeployError | None:
        source = tx or self._engine
        if row.state is not DeployState.SINKING:
            event = find_event(source, row.tenant, row.event)
            if event is None:
                return DeployError("unavailable", f"its event {row.event} is gone")
            if event.is_dead:
                return DeployError("unavailable", f"its event {row.event} was given up on: {event.failure_reason}")
            if event.processed_at_us is not None:
                # Whoever handles it moves the deploy in the same transaction: somebody discarded it.
                return DeployError("unavailable", f"its event {row.event} ended without it: {event.failure_reason}")
            return None
        key = _key(row)
        waiting = {ship_lane(key, each.rule): each for each in self._sinks(row, source) if each.state == "WAITING"}
        lanes = lanes_left(source, row.tenant, SLICE, waiting)
        for id, sink in waiting.items():
            lane = lanes[id]
            if lane.parked:
                return replace(
                    sink_error(row, sink._replace(reason=lane.reason or "its request was given up on")),
                    kind="unavailable",
                )
            if not lane.left:
                # Its rule is gone, or somebody discarded the request.
                return replace(
                    sink_error(row, sink._replace(reason="its request ended without an answer")), kind="unavailable"
                )
        return None

    def _sinks(self, row: DeployRow, source: Statements | None = None) -> Sequence[SinkRow]:
        return (source or self._engine).rows(SinkRow, "deploy_sinks", deploy=row.number)

    def _waits(self, row: DeployRow, sinks: Iterable[SinkRow]) -> dict[str, SinkWait]:
        """Why each of a deploy's sinks has not answered that has not."""
        key = _key(row)
        lanes = {each.rule: ship_lane(key, each.rule) for each in sinks if each.state == "WAITING"}
        if not lanes:
            return {}
        left = lanes_left(self._engine, row.tenant, SLICE, lanes.values())
        channels, now_us = channel_states(self._engine), database_clock(self._engine)
        found = {}
        for rule, lane in lanes.items():
            there, channel = left[lane], channels.get(rule)
            resting = channel is not None and channel.rest_until_us > now_us
            found[rule] = SinkWait(
                attempts=there.attempts,
                failure=there.reason,
                next_attempt_us=there.retry_us,
                resting_until_us=channel.rest_until_us if channel is not None and resting else None,
                resting_reason=channel.reason if channel is not None and resting and self._tenant is None else None,
                dead_letter=there.first if there.parked else None,
            )
        return found

    def _waits_for(self, row: DeployRow) -> str | None:
        if row.state.is_over:
            return None
        if row.state is DeployState.SINKING:
            waits, now_us = self._waits(row, self._sinks(row)), database_clock(self._engine)
            told = [f"{rule}{wait.describe(now_us)}" for rule, wait in waits.items()]
            return f"an answer of {', '.join(told)}" if told else "the answers of its sinks to be counted"
        event = find_event(self._engine, row.tenant, row.event)
        if event is None:
            return "a worker"
        lane = lanes_left(self._engine, row.tenant, event.aggregate_type, [event.aggregate_id])[event.aggregate_id]
        if lane.parked and lane.first != row.event:
            return f"the dead letter {lane.first} of the same entity to be replayed or discarded: {lane.reason}"
        if event.status == "FAILED":
            return f"another try, after {event.attempts}: {event.failure_reason}"
        return "a worker" if row.state is DeployState.QUEUED else "whoever compiles it, or a worker that goes on"


def check_waiting(until: str, timeout_s: float | None) -> None:
    """Raise Invalid for what cannot be waited for."""
    if until not in ("ready", "done"):
        raise Invalid(f"until={until!r}", hint="ready: its slices are there; done: its sinks have answered")
    if timeout_s is not None and not timeout_s >= 0:
        raise Invalid(f"cannot wait {timeout_s} s", hint="times are not negative")


def is_reached(state: DeployState, until: str) -> bool:
    """Whether a deploy in this state need not be waited for any more."""
    return state.is_over or (until == "ready" and state.is_compiled)


def late(deploy: Deploy, until: str, timeout_s: float, waits_for: str | None) -> Timeout:
    """What somebody hears who waited in vain."""
    return Timeout(
        f"deploy {deploy.id} is {deploy.state} after {timeout_s:g} s, and not {until}",
        hint=f"it waits for {waits_for}" if waits_for else "see `analemma deploys explain`",
        deploy=deploy.id,
        state=deploy.state.value,
        until=until,
    )


def _key(row: DeployRow) -> EntityKey:
    return EntityKey(row.type, row.tenant_name, row.key)


def _state(text: str) -> DeployState:
    try:
        return DeployState(text.upper())
    except (ValueError, AttributeError):
        raise Invalid(f"there is no state {text!r}", hint=f"there are {', '.join(DeployState)}") from None


def _place(question: tuple[object, ...], cursor: str) -> int:
    place = decode_cursor(question, cursor)
    if type(place) is not int or not 0 <= place < 1 << 63:
        raise no_cursor()
    return place
