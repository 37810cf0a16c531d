"""The protocol by which workers take events and settle them.

A worker leases lanes, not rows: lanes that are due, under a fence that grows with every claim. Whoever writes about a
lane names the fence it was claimed under, so a worker that was taken for dead can neither settle nor fail anything. All
rows up to `done_seq` are settled; what remains to be done is known from the lane's row alone, which producers and
workers both lock: no wake-up is lost between them, and rows that were processed cost nothing. Leases go by the
database's clock.

On PostgreSQL, lanes that somebody is writing to are passed over at first: one producer that takes its time holds up no
other lane. Passed over for ever, a lane that is always being written to would never be delivered; so whatever was
passed over is done by somebody who can wait, in the same line as the producers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import add
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, TypeVar

from analemma.catalog.engine.db import Engine, Statements, Transaction
from analemma.catalog.leases import LeaseLost, database_clock
from analemma.catalog.outbox.lanes import EventStatus, LaneKey
from analemma.catalog.port import TenantId
from analemma.errors import Timeout
from analemma.failpoints import declare, hit

AFTER_CLAIM = declare("outbox.after_claim", "a worker has leased lanes, and handled nothing")
BEFORE_SETTLE = declare("outbox.before_settle", "an event's effect is written inside its transaction, not yet settled")
AFTER_SETTLE = declare("outbox.after_settle", "an event is settled inside the transaction that has its effect")
BEFORE_ACKNOWLEDGE = declare("outbox.before_acknowledge", "a batch of events is handled, and none of them settled")
AFTER_ACKNOWLEDGE = declare("outbox.after_acknowledge", "a batch of events is settled, but the worker does not know")

WORKER_DIED = "a worker died, or was not heard of for too long, before this event was settled"

CANDIDATES = 16
"""Lanes that were passed over are waited for in turn, so that a producer that stalls does not hold up all of them."""

Item = TypeVar("Item")
Result = TypeVar("Result")
_Said = tuple[Any, ...]
"""Of a lane that was given back and not lost: whether it is due again, how far it is settled, whether it is parked."""
_COLUMNS = ("tenants", "types", "ids", "fences", "done_seqs", "last_seqs", "statuses", "attempts", "delays", "reasons")


class EventRow(NamedTuple):
    """An event as its row has it."""

    id: str
    seq: int
    type: str
    payload: bytes
    idempotency_key: str | None
    priority: int
    status: EventStatus
    attempts: int
    created_at_us: int
    trace: str | None


@dataclass(slots=True)
class ClaimedLane:
    """A lane under lease, and the first of its rows."""

    key: LaneKey
    fence: int
    done_seq: int
    """Known to be settled; a row whose transaction may yet be undone is not."""
    last_seq: int
    """The newest row that it has."""
    suspect: bool
    """A worker died in it: its next row is to be tried alone, after saying so."""
    reclaimed: bool
    """Whoever had it before did not give it back."""
    events: list[EventRow] = field(default_factory=list)

    @property
    def attempts(self) -> int:
        """How often the first of them was tried."""
        return self.events[0].attempts


class EventFailure(NamedTuple):
    """What became of an event that could not be handled."""

    status: Literal["FAILED", "DEAD"]
    attempts: int
    delay_us: int | None
    """How long to wait for the next try; None if there is none."""
    reason: str


class LaneOutcome(NamedTuple):
    """What a worker has to say about a lane that it gives back."""

    lane: ClaimedLane
    done_seq: int
    """The last row that was handled; that of the claim, if none was."""
    failure: EventFailure | None = None
    """Of the row behind it. Not written if that is settled after all: so it can be said before that is known."""


class Finished(NamedTuple):
    """What became of what a worker said about lanes."""

    more: bool
    """Something that was given back is due again already."""
    delivered: int
    """Rows that are settled since the claims, whoever settled them."""
    failed: list[LaneOutcome]
    """Whose failures were written."""
    later: list[LaneOutcome]
    """To be said again, because somebody is writing to the lane."""
    lost: list[LaneOutcome]
    """Their leases are lost, and nothing was written of them."""


class OutboxClaims:
    """Claims, settles and gives back lanes."""

    def __init__(self, engine: Engine, *, lease_s: float) -> None:
        self.engine = engine
        self.lease_s = lease_s
        self._lease_us = int(lease_s * 1_000_000)
        self._turn = 0

    @property
    def passes_over(self) -> bool:
        """Whether a lane that somebody is writing to is passed over. On SQLite one writes at a time."""
        return not self.engine.has_one_writer

    def claim(
        self, *, lanes: int, rows: int, tenant: TenantId | None = None, calm: bool = False, channel: str = ""
    ) -> list[ClaimedLane]:
        """Lease up to so many lanes of a channel, with about so many rows in all; with `calm`, none that a dead worker
        left. A lane may come without rows: those that are there by now come with the next claim."""
        asked: dict[str, Any] = {"lanes": lanes, "rows": rows, "tenant": tenant, "calm": calm, "channel": channel}
        if self.passes_over:
            claimed = self._claim_at_once(self.engine, **asked)
        elif not self.anything_due(tenant, channel=channel):
            return []  # Reading is free; a write would wait for its turn.
        else:
            claimed = self.engine.write(lambda tx: self._claim_in_steps(tx, **asked))
        if claimed:
            hit(AFTER_CLAIM)
        return claimed

    def claim_in_line(
        self, *, lanes: int, rows: int, wait_s: float, tenant: TenantId | None = None, channel: str = ""
    ) -> list[ClaimedLane]:
        """Lease lanes, having waited for one that a claim would have to pass over."""
        asked: dict[str, Any] = {"tenant": tenant, "channel": channel}
        found = self.engine.all("passed_over_lanes", lease=self._lease_us, limit=CANDIDATES, **asked)
        if not found:
            return []
        self._turn += 1
        key = LaneKey(*found[self._turn % len(found)])
        asked |= {"lanes": lanes, "rows": rows, "calm": False}
        claimed = self._in_line(key, wait_s, lambda tx: self._claim_at_once(tx, **asked))
        if claimed:
            hit(AFTER_CLAIM)
        return claimed or []

    def anything_due(self, tenant: TenantId | None = None, *, channel: str = "") -> bool:
        """Whether a claim would find something, or would have to pass it over because it is being written to."""
        if tenant is None:
            return self.engine.one("any_lane_due", channel=channel) is not None
        return self.engine.one("any_lane_due_of", channel=channel, tenant=tenant) is not None

    def read(self, lane: ClaimedLane, limit: int) -> list[EventRow]:
        """The first rows of a lane that are not settled, as they are now."""
        return self.engine.rows(EventRow, "lane_events", **lane.key._asdict(), after=lane.done_seq, limit=limit)

    def position(self, lane: ClaimedLane, *, within: Statements | None = None) -> int | None:
        """How far a lane is settled, by all transactions that have committed, or as one sees it; None if it is
        another's."""
        row = (within or self.engine).one("lane_position", **lane.key._asdict())
        return int(row[1]) if row is not None and row[0] == lane.fence else None

    def finish(
        self,
        outcomes: Sequence[LaneOutcome],
        *,
        wait_s: float = 0.0,
        within: Callable[[Transaction], None] | None = None,
    ) -> Finished:
        """Settle, fail and give back, all at once, in the transaction of `within` if there is one. Lanes that somebody
        is writing to are waited for so long in all, one after the other, and those that were not waited for long enough
        come first among what is left for later."""

        def move(tx: Transaction) -> Finished:
            if within is not None:
                within(tx)
            return self._finish(tx, outcomes)

        hit(BEFORE_ACKNOWLEDGE)
        if self.passes_over and within is None:
            finished = self._finish(self.engine, outcomes)
        else:
            finished = self.engine.write(move)
        if finished.later and wait_s > 0:
            waiting = [(each.lane.key, each) for each in finished.later]
            done, left = self._in_turn(waiting, wait_s, lambda tx, each: self._finish(tx, [each]))
            finished = finished._replace(later=left)
            for each in done:
                finished = Finished(*map(add, finished, each._replace(later=[])))
        hit(AFTER_ACKNOWLEDGE)
        return finished

    def settle(self, tx: Transaction, lane: ClaimedLane, seq: int) -> None:
        """Settle a row, and those before it, in the transaction of its effect; LeaseLost if the lane is another's. The
        lane stays leased: whoever handles the row may not be done with it. Once more does nothing."""
        hit(BEFORE_SETTLE)
        given = {**lane.key._asdict(), "fence": lane.fence, "seq": seq}
        if self.passes_over:
            found = tx.one("settle_event", **given, after=lane.done_seq)
        else:
            found = tx.one("settle_lane", **given)
            if found is not None:
                tx.execute("process_events", lanes=[(*lane.key, lane.done_seq, seq)])
        if found is None:
            position = self.position(lane, within=tx)
            if position is None or position < seq:
                raise _lost(lane.key)
        hit(AFTER_SETTLE)

    def renew(self, lanes: Sequence[ClaimedLane], *, wait_s: float = 0.0) -> list[ClaimedLane]:
        """Longer leases for lanes that are still being worked on; those that are still to be renewed, because somebody
        is writing to them. They are waited for so long in all. One that was lost stays lost."""
        if not lanes:
            return []
        if not self.passes_over:
            self.engine.write(lambda tx: self._renew(tx, lanes))
            return []
        left = self._renew(self.engine, lanes)
        if left and wait_s > 0:
            _, left = self._in_turn(
                [(each.key, each) for each in left], wait_s, lambda tx, each: self._renew(tx, [each])
            )
        return left

    def begin(self, lane: ClaimedLane, seq: int) -> None:
        """Say that a row of a suspect lane is being tried now; LeaseLost if the lane is another's."""
        if self.engine.execute("begin_event", **lane.key._asdict(), seq=seq, fence=lane.fence) != 1:
            raise _lost(lane.key)

    def blame(self, lanes: Sequence[ClaimedLane]) -> None:
        """Write down how often the next row of each of these lanes, in which a worker died, was tried by that; from now
        on they are suspect. What is another's by now is left alone."""
        blamed = SimpleNamespace(lanes=sorted(lanes, key=lambda lane: lane.key), reason=WORKER_DIED)
        self.engine.write(lambda tx: tx.call("blame_lanes", blamed), alone=True)

    def _in_line(self, key: LaneKey, wait_s: float, act: Callable[[Transaction], Result]) -> Result | None:
        """Do something about a lane after those who write to it now; None if its turn did not come in time."""

        def move(tx: Transaction) -> Result:
            tx.all("limit_lock_waits", limit=f"{max(1, int(wait_s * 1000))}ms")
            tx.all("lock_lane", **key._asdict())
            return act(tx)

        try:
            return self.engine.write(move)
        except Timeout:
            return None

    def _in_turn(
        self, waiting: Sequence[tuple[LaneKey, Item]], wait_s: float, act: Callable[[Transaction, Item], Result]
    ) -> tuple[list[Result], list[Item]]:
        """Do something about each after those who write to its lane now, one after the other and for so long in all;
        what came of that, and what is left. What was not waited for long enough comes first in that."""
        end = time.monotonic() + wait_s
        done: list[Result] = []
        left: list[Item] = []
        for place, (key, each) in enumerate(waiting):
            wait_s = end - time.monotonic()
            if wait_s <= 0:
                return done, [item for _, item in waiting[place:]] + left
            found = self._in_line(key, wait_s, lambda tx, each=each: [act(tx, each)])  # type: ignore[misc]
            if found is None:
                left.append(each)
            else:
                done += found
        return done, left

    def _claim_at_once(self, source: Statements, **asked: Any) -> list[ClaimedLane]:
        claimed: list[ClaimedLane] = []
        # The rows of a lane are neighbours, in order.
        for row in source.all("claim_lanes", lease=self._lease_us, **asked):
            if not claimed or row[:3] != claimed[-1].key:
                claimed.append(ClaimedLane(LaneKey(*row[:3]), *row[3:8]))
            if row[8] is not None:
                claimed[-1].events.append(EventRow._make(row[8:]))
        return claimed

    def _claim_in_steps(
        self, tx: Transaction, *, rows: int, tenant: TenantId | None, **asked: Any
    ) -> list[ClaimedLane]:
        now = database_clock(tx)
        if tenant is None:
            found = tx.all("claimable_lanes", now=now, **asked)
        else:
            found = tx.all("claimable_lanes_of", now=now, tenant=tenant, **asked)
        tx.execute_many("claim_lane", [(now + self._lease_us, row[0]) for row in found])
        share = max(1, rows // max(1, len(found)))
        claimed = [ClaimedLane(LaneKey(*row[1:4]), row[4], row[5], row[6], bool(row[7]), bool(row[8])) for row in found]
        wanted = [[*lane.key, lane.done_seq, 1 if lane.suspect or lane.reclaimed else share] for lane in claimed]
        for place, *event in tx.all("events_of_lanes", lanes=wanted) if claimed else ():
            claimed[place].events.append(EventRow._make(event))
        return claimed

    def _renew(self, source: Statements, lanes: Sequence[ClaimedLane]) -> list[ClaimedLane]:
        """Those that were not renewed."""
        given = [(*lane.key, lane.fence) for lane in lanes]
        renewed = set(source.all("renew_lanes", lanes=given, lease=self._lease_us))
        return [lane for lane in lanes if lane.key not in renewed]

    def _finish(self, source: Statements, outcomes: Sequence[LaneOutcome]) -> Finished:
        now = None if self.passes_over else database_clock(source)
        said = self._said(source, outcomes, now)
        delivered = 0
        failed: list[LaneOutcome] = []
        later: list[LaneOutcome] = []
        lost: list[LaneOutcome] = []
        for place, outcome in enumerate(outcomes):
            if place in said:
                _, done_seq, is_parked = said[place]
                delivered += done_seq - outcome.lane.done_seq
                # Settled no further than where it happened.
                if outcome.failure is not None and done_seq == outcome.done_seq:
                    failed.append(_as_written(outcome, bool(is_parked)))
            elif self.passes_over and self.position(outcome.lane, within=source) is not None:
                later.append(outcome)
            else:
                lost.append(outcome)
        if now is not None:
            self._finish_events(source, [outcomes[place] for place in said], failed, now)
        return Finished(any(is_due for is_due, *_ in said.values()), delivered, failed, later, lost)

    def _said(self, source: Statements, outcomes: Sequence[LaneOutcome], now: int | None) -> dict[int, _Said]:
        nothing = None, None, None, None
        rows = [
            (*lane.key, lane.fence, done_seq, lane.last_seq, *(failure or nothing))
            for lane, done_seq, failure in outcomes
        ]
        if now is not None:
            moved = {row[:4]: row[4:] for row in source.all("finish_lanes", lanes=rows, now=now)}
            return {place: moved[row[:4]] for place, row in enumerate(rows) if row[:4] in moved}
        # A function of PostgreSQL, which takes a list for each column, and sees to the events, too.
        columns = dict(zip(_COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
        return {row[0] - 1: row[1:] for row in source.all("finish_lanes", **columns)}

    def _finish_events(
        self, source: Statements, held: Sequence[LaneOutcome], failed: Sequence[LaneOutcome], now: int
    ) -> None:
        settled = [(*lane.key, lane.done_seq, done_seq) for lane, done_seq, _ in held if done_seq > lane.done_seq]
        if settled:
            source.execute("process_events", lanes=settled)
        events = [(*lane.key, done_seq + 1, *failure) for lane, done_seq, failure in failed if failure is not None]
        if events:
            source.execute("fail_events", events=events, now=now)


def _as_written(outcome: LaneOutcome, is_parked: bool) -> LaneOutcome:
    """What was written of a failure: in a channel, one that is for good is only one more if something newer waits."""
    failure = outcome.failure
    if failure is None or failure.status != "DEAD" or is_parked:
        return outcome
    return outcome._replace(failure=failure._replace(status="FAILED"))


def _lost(key: LaneKey) -> LeaseLost:
    """What a worker hears that was taken for dead."""
    return LeaseLost(
        f"the lease on {key.aggregate_type} {key.aggregate_id} was lost to another worker",
        hint="nothing was changed; whoever has it now delivers the event",
        aggregate_type=key.aggregate_type,
        aggregate_id=key.aggregate_id,
    )
