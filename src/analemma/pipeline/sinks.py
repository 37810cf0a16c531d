"""The sinks of a store as people see them: what each is to get, how far it is, and whether it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from analemma.catalog.engine.db import Transaction
from analemma.catalog.leases import database_clock
from analemma.catalog.outbox.admin import (
    ChannelCounts,
    ChannelFailure,
    ChannelState,
    channel_counts,
    channel_failures,
    channel_states,
)
from analemma.context import StoreContext
from analemma.contracts.contract_set import ContractSet
from analemma.contracts.models import SinkRule
from analemma.errors import NotFound
from analemma.pipeline.open_sinks import OpenSinks

SECOND_US = 1_000_000

SinkState = Literal["ok", "failing", "dead", "resting", "gone"]
WELL = ("ok", "gone")
"""States in which nobody has to look after a sink."""


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """A sink rule, and how far its sink is."""

    id: str
    version: str | None
    """None: there is no such rule any more, or it is not ACTIVE; what is queued for it is dropped by workers."""
    type: str | None
    entity_types: tuple[str, ...]
    slice_types: tuple[str, ...] | None
    batch_size: int | None
    per_second: float | None
    pending: int
    """Documents that wait for their turn, or are being shipped."""
    failed: int
    """Documents that wait for another try."""
    dead: int
    """Documents that the sink refused, or that failed too often."""
    oldest_s: float | None
    """For how long the first of them could have been shipped."""
    state: SinkState
    """`failing`: some documents failed and are tried again. `resting`: it did not answer, and is left alone for a
    while. `dead`: it did not take some documents, which wait for somebody to look."""
    resting_s: float | None
    """How long the sink is left alone, from now on."""
    failures: int
    """How often in a row it did not answer."""
    reason: str | None
    """What it said then, or of the document that is tried next; to one tenant, only what it said of that one's own."""
    next_attempt_s: float | None = None
    """In how many seconds the first of the documents is due that failed."""

    def as_dict(self) -> dict[str, Any]:
        """The same for programs."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SinkHealth:
    """What a sink said when it was asked."""

    id: str
    is_healthy: bool
    detail: str
    state: SinkState = "ok"
    """That of `list`: one that answers may still fail with documents."""
    reason: str | None = None
    """Why it is not ok."""

    def as_dict(self) -> dict[str, Any]:
        """The same for programs."""
        return asdict(self)


class Sinks:
    """The sinks of all tenants."""

    def __init__(self, context: StoreContext, sinks: OpenSinks, contracts: Callable[[], ContractSet]) -> None:
        self._context = context
        self._engine = context.engine
        self._sinks = sinks
        self._contracts = contracts

    def list(self, *, tenant: str | None = None) -> tuple[SinkStatus, ...]:
        """Every active rule in the order of ids, and whatever else something is queued for; counts are of all tenants,
        or of one, who is not told what sinks said: it may have been about a document of another's."""
        number = self._context.tenant_number(tenant)
        rules = self._contracts().active_sink_rules
        counts, states = channel_counts(self._engine, number), channel_states(self._engine)
        failures = channel_failures(self._engine, number)
        now = database_clock(self._engine)
        names = sorted(rules.keys() | counts.keys())
        if number is not None:
            states = {name: state._replace(reason=None) for name, state in states.items()}
        return tuple(
            _status(name, rules.get(name), counts.get(name), states.get(name), failures.get(name), now)
            for name in names
        )

    def health(self, sink: str | None = None) -> tuple[SinkHealth, ...]:
        """Ask the sinks of all active rules, or of one, whether they would take documents."""
        rules = self._contracts().active_sink_rules
        chosen = rules.values() if sink is None else [self._rule(rules, sink)]
        answers = [(rule.id, self._sinks.health(rule)) for rule in chosen]
        known = {each.id: each for each in self.list()}
        found = []
        for name, answer in answers:
            said = SinkHealth(name, answer.is_healthy, answer.detail)
            # A rule that another process took back a moment ago is in no list.
            found.append(replace(said, state=known[name].state, reason=known[name].reason) if name in known else said)
        return tuple(found)

    def wake(self, sink: str) -> bool:
        """Have a sink that rests be tried at once, with all that waits for another try; whether it rested, or anything
        waited."""
        self._rule(self._contracts().active_sink_rules, sink)

        def wake(tx: Transaction) -> bool:
            rested = tx.execute("wake_channel", name=sink) == 1
            hastened = tx.execute("hasten_channel", name=sink, now=database_clock(tx))
            return rested or hastened > 0

        changed = self._engine.write(wake)
        self._context.wake()
        return changed

    def _rule(self, rules: dict[str, SinkRule], sink: str) -> SinkRule:
        if sink not in rules:
            hint = f"there are {', '.join(rules)}" if rules else "load a SINKRULE that is ACTIVE"
            raise NotFound(f"there is no active sink rule {sink}", hint=hint, sink=sink)
        return rules[sink]


def _state(rule: SinkRule | None, counts: ChannelCounts | None, *, is_resting: bool) -> SinkState:
    if rule is None:
        return "gone"
    if is_resting:
        return "resting"
    if counts is None:
        return "ok"
    return "dead" if counts.parked else "failing" if counts.failed else "ok"


def _status(
    name: str,
    rule: SinkRule | None,
    counts: ChannelCounts | None,
    state: ChannelState | None,
    failure: ChannelFailure | None,
    now_us: int,
) -> SinkStatus:
    resting_us = 0 if state is None else max(0, state.rest_until_us - now_us)
    oldest_us = None if counts is None else counts.oldest_due_us
    waiting = 0 if counts is None else counts.lanes - counts.failed - counts.parked
    return SinkStatus(
        id=name,
        version=None if rule is None else str(rule.version),
        type=None if rule is None else rule.target_type,
        entity_types=() if rule is None else rule.entity_types,
        slice_types=None if rule is None else rule.slice_types,
        batch_size=None if rule is None else rule.batch_size,
        per_second=None if rule is None else rule.per_second,
        pending=waiting,
        failed=0 if counts is None else counts.failed,
        dead=0 if counts is None else counts.parked,
        oldest_s=None if oldest_us is None else max(0.0, (now_us - oldest_us) / SECOND_US),
        state=_state(rule, counts, is_resting=bool(resting_us or (state and state.failures))),
        resting_s=resting_us / SECOND_US if resting_us else None,
        failures=0 if state is None else state.failures,
        reason=(None if state is None else state.reason) or (None if failure is None else failure.reason),
        next_attempt_s=None if failure is None else max(0.0, (failure.due_us - now_us) / SECOND_US),
    )
