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
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

from analemma.catalog.engine.db import Engine, Transaction
from analemma.catalog.leases import database_clock
from analemma.catalog.outbox.lanes import (
    BlamedLane,
    ClaimedLane,
    EventRow,
    Finished,
    LaneKey,
    LaneOutcome,
    grouped,
    lease_lost,
)
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


class OutboxClaims:
    """Claims, settles and gives back lanes."""

    def __init__(self, engine: Engine, *, lease_s: float) -> None:
        self._engine = engine
        self.lease_s = lease_s
        self._lease_us = int(lease_s * 1_000_000)
        self._turn = 0

    @property
    def passes_over(self) -> bool:
        """Whether a lane that somebody is writing to is passed over. On SQLite one writes at a time."""
        return not self._engine.has_one_writer

    def claim(
        self, *, lanes: int, rows: int, tenant: TenantId | None = None, calm: bool = False, channel: str = ""
    ) -> list[ClaimedLane]:
        """Lease up to so many lanes of a channel, with about so many rows in all; with `calm`, none that a dead worker
        left. A lane may come without rows: those that are there by now come with the next claim."""
        if self.passes_over:
            claimed = self._claim_at_once(self._engine, lanes, rows, tenant, calm, channel)
        elif not self.anything_due(tenant, channel=channel):
            return []  # Reading is free; a write would wait for its turn.
        else:
            claimed = self._engine.write(lambda tx: self._claim_in_steps(tx, lanes, rows, tenant, calm, channel))
        if claimed:
            hit(AFTER_CLAIM)
        return claimed

    def claim_in_line(
        self, *, lanes: int, rows: int, wait_s: float, tenant: TenantId | None = None, channel: str = ""
    ) -> list[ClaimedLane]:
        """Lease lanes, having waited for one that a claim would have to pass over."""
        found = self._engine.all(
            "passed_over_lanes",
            tenant=tenant,
            lease=self._lease_us,
            limit=CANDIDATES,
            channel=channel,
        )
        if not found:
            return []
        self._turn += 1
        key = LaneKey(*found[self._turn % len(found)])
        claimed = self._in_line(key, wait_s, lambda tx: self._claim_at_once(tx, lanes, rows, tenant, False, channel))
        if claimed:
            hit(AFTER_CLAIM)
        return claimed or []

    def anything_due(self, tenant: TenantId | None = None, *, channel: str = "") -> bool:
        """Whether a claim would find something, or would have to pass it over because it is being written to."""
        if tenant is None:
            return self._engine.one("any_lane_due", channel=channel) is not None
        return self._engine.one("any_lane_due_of", channel=channel, tenant=tenant) is not None

    def read(self, lane: ClaimedLane, limit: int) -> list[EventRow]:
        """The first rows of a lane that are not settled, as they are now."""
        return self._engine.rows(EventRow, "lane_events", **lane.key._asdict(), after=lane.done_seq, limit=limit)

    def position(self, lane: ClaimedLane) -> int | None:
        """How far a lane is settled, by all transactions that have committed; None if it is another's."""
        return self._position(self._engine, lane)

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
        hit(BEFORE_ACKNOWLEDGE)
        if self.passes_over and within is None:
            finished = self._finish_at_once(self._engine, outcomes)
        else:
            finished = self._engine.write(lambda tx: self._finish_within(tx, outcomes, within))
        if finished.later and wait_s > 0:
            done, later = self._in_turn({each.lane.key: each for each in finished.later}, wait_s, self._finish_one)
            for each in done:
                finished = finished.plus(each)
            finished = finished._replace(later=later)
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
            position = self._position(tx, lane)
            if position is None or position < seq:
                raise lease_lost(lane.key)
        hit(AFTER_SETTLE)

    def renew(self, lanes: Sequence[ClaimedLane], *, wait_s: float = 0.0) -> list[ClaimedLane]:
        """Longer leases for lanes that are still being worked on; those that are still to be renewed, because somebody
        is writing to them. They are waited for so long in all. One that was lost stays lost."""
        if not lanes:
            return []
        if not self.passes_over:
            self._engine.write(lambda tx: self._renew(tx, lanes))
            return []
        left = self._renew(self._engine, lanes)
        if left and wait_s > 0:
            _, left = self._in_turn({lane.key: lane for lane in left}, wait_s, self._renew_one)
        return left

    def begin(self, lane: ClaimedLane, seq: int) -> None:
        """Say that a row of a suspect lane is being tried now; LeaseLost if the lane is another's."""
        if self._engine.execute("begin_event", **lane.key._asdict(), seq=seq, fence=lane.fence) != 1:
            raise lease_lost(lane.key)

    def blame(self, lanes: Sequence[BlamedLane]) -> None:
        """Count an attempt against the next row of each of these lanes, in which a worker died; from now on they are
        suspect. What is another's by now is left alone."""
        blamed = SimpleNamespace(lanes=sorted(lanes, key=lambda each: each.lane.key), reason=WORKER_DIED)
        self._engine.write(lambda tx: tx.call("blame_lanes", blamed), alone=True)

    def tenant_names(self) -> dict[int, str]:
        """What tenants are called."""
        return {int(row[0]): str(row[1]) for row in self._engine.all("tenant_names")}

    def _position(self, source: Engine | Transaction, lane: ClaimedLane) -> int | None:
        row = source.one("lane_position", **lane.key._asdict())
        return int(row[1]) if row is not None and row[0] == lane.fence else None

    def _in_line(self, key: LaneKey, wait_s: float, act: Callable[[Transaction], Result]) -> Result | None:
        """Do something about a lane after those who write to it now; None if its turn did not come in time."""

        def move(tx: Transaction) -> Result:
            tx.all("limit_lock_waits", limit=f"{max(1, int(wait_s * 1000))}ms")
            tx.all("lock_lane", **key._asdict())
            return act(tx)

        try:
            return self._engine.write(move)
        except Timeout:
            return None

    def _in_turn(
        self, waiting: Mapping[LaneKey, Item], wait_s: float, act: Callable[[Transaction, Item], Result]
    ) -> tuple[list[Result], list[Item]]:
        """Do something about each after those who write to its lane now, one after the other and for so long in all;
        what came of that, and what is left. What was not waited for long enough comes first in that."""
        end = time.monotonic() + wait_s
        done: list[Result] = []
        skipped: list[Item] = []
        left: list[Item] = []
        for key, each in waiting.items():
            wait_s = end - time.monotonic()
            if wait_s <= 0:
                skipped.append(each)
                continue
            found = self._in_line(key, wait_s, lambda tx, each=each: [act(tx, each)])  # type: ignore[misc]
            if found is None:
                left.append(each)
            else:
                done += found
        return done, skipped + left

    def _claim_at_once(
        self, source: Engine | Transaction, lanes: int, rows: int, tenant: TenantId | None, calm: bool, channel: str
    ) -> list[ClaimedLane]:
        given = {"tenant": tenant, "lanes": lanes, "rows": rows, "lease": self._lease_us, "calm": calm}
        return grouped(source.all("claim_lanes", channel=channel, **given))

    def _claim_in_steps(
        self, tx: Transaction, lanes: int, rows: int, tenant: TenantId | None, calm: bool, channel: str
    ) -> list[ClaimedLane]:
        now = database_clock(tx)
        asked = {"now": now, "lanes": lanes, "calm": calm, "channel": channel}
        if tenant is None:
            found = tx.all("claimable_lanes", **asked)
        else:
            found = tx.all("claimable_lanes_of", tenant=tenant, **asked)
        tx.execute_many("claim_lane", [(now + self._lease_us, row[0]) for row in found])
        share = max(1, rows // max(1, len(found)))
        claimed = [ClaimedLane(LaneKey(*row[1:4]), row[4], row[5], row[6], bool(row[7]), bool(row[8])) for row in found]
        wanted = [[*lane.key, lane.done_seq, 1 if lane.suspect or lane.reclaimed else share] for lane in claimed]
        for place, *event in tx.all("events_of_lanes", lanes=wanted) if claimed else ():
            claimed[place].events.append(EventRow._make(event))
        return claimed

    def _renew(self, source: Engine | Transaction, lanes: Sequence[ClaimedLane]) -> list[ClaimedLane]:
        """Those that were not renewed."""
        given = [(*lane.key, lane.fence) for lane in lanes]
        renewed = set(source.all("renew_lanes", lanes=given, lease=self._lease_us))
        return [lane for lane in lanes if lane.key not in renewed]

    def _renew_one(self, tx: Transaction, lane: ClaimedLane) -> None:
        self._renew(tx, [lane])

    def _finish_one(self, tx: Transaction, outcome: LaneOutcome) -> Finished:
        return self._finish_at_once(tx, [outcome])

    def _finish_within(
        self, tx: Transaction, outcomes: Sequence[LaneOutcome], within: Callable[[Transaction], None] | None
    ) -> Finished:
        if within is not None:
            within(tx)
        return self._finish_at_once(tx, outcomes)

    def _finish_at_once(self, source: Engine | Transaction, outcomes: Sequence[LaneOutcome]) -> Finished:
        if self.passes_over:
            found = source.all("finish_lanes", **_columns(outcomes))
            said = {row[0] - 1: row[1:] for row in found}
        else:
            said = self._finish_in_steps(source, outcomes)
        delivered, failed, later, lost = 0, [], [], []
        for place, outcome in enumerate(outcomes):
            if place in said:
                _, done_seq, is_parked = said[place]
                delivered += done_seq - outcome.lane.done_seq
                if _is_written(outcome, done_seq):
                    failed.append(_as_written(outcome, bool(is_parked)))
            elif self.passes_over and self._position(source, outcome.lane) is not None:
                later.append(outcome)
            else:
                lost.append(outcome)
        return Finished(any(is_due for is_due, *_ in said.values()), delivered, failed, later, lost)

    def _finish_in_steps(
        self, tx: Engine | Transaction, outcomes: Sequence[LaneOutcome]
    ) -> dict[int, tuple[Any, Any, Any]]:
        """Of each that was not lost whether it is due again, how far it is settled, and whether it is parked."""
        now = database_clock(tx)
        lanes = [
            (*lane.key, lane.fence, done_seq, lane.last_seq, failure and failure.status, failure and failure.delay_us)
            for lane, done_seq, failure in outcomes
        ]
        moved = {row[:3]: row[3:] for row in tx.all("finish_lanes", lanes=lanes, now=now)}
        said = {at: moved[each.lane.key] for at, each in enumerate(outcomes) if each.lane.key in moved}
        held = [outcomes[at] for at in said]
        settled = [(*lane.key, lane.done_seq, done_seq) for lane, done_seq, _ in held if done_seq > lane.done_seq]
        if settled:
            tx.execute("process_events", lanes=settled)
        written = [
            _as_written(outcomes[at], bool(is_parked))
            for at, (_, done_seq, is_parked) in said.items()
            if _is_written(outcomes[at], done_seq)
        ]
        if written:
            events = [(*lane.key, done_seq + 1, *failure) for lane, done_seq, failure in written if failure is not None]
            tx.execute("fail_events", events=events, now=now)
        return said


def _columns(outcomes: Sequence[LaneOutcome]) -> dict[str, list[Any]]:
    """What `finish_lanes` takes on PostgreSQL: a function with a list for each column."""
    names = ("tenants", "types", "ids", "fences", "done_seqs", "last_seqs", "statuses", "attempts", "delays", "reasons")
    nothing = None, None, None, None
    rows = [
        (*lane.key, lane.fence, done_seq, lane.last_seq, *(failure or nothing)) for lane, done_seq, failure in outcomes
    ]
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def _is_written(outcome: LaneOutcome, done_seq: int) -> bool:
    """Whether there was a failure, and the lane is settled no further than where it happened."""
    return outcome.failure is not None and done_seq == outcome.done_seq


def _as_written(outcome: LaneOutcome, is_parked: bool) -> LaneOutcome:
    """What was written of a failure: in a channel, one that is for good is only one more if something newer waits."""
    failure = outcome.failure
    if failure is None or failure.status != "DEAD" or is_parked:
        return outcome
    return outcome._replace(failure=failure._replace(status="FAILED"))
