"""Delivers what was claimed of a channel: in which batches, and what becomes of each lane.

Lanes in which a worker died are tried apart from the others, in batches that become smaller until the one that kills
workers stands alone. Whatever happens, every lane that was claimed is given back, or at least no longer held."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from analemma.catalog.engine.db import Transaction
from analemma.catalog.leases import LeaseLost, database_clock
from analemma.catalog.outbox.claims import (
    WORKER_DIED,
    ClaimedLane,
    EventFailure,
    Finished,
    LaneOutcome,
    OutboxClaims,
)
from analemma.catalog.port import TenantId
from analemma.errors import Invalid
from analemma.outbox.batches import BatchAnswer, BatchHandler, Failed, Rest
from analemma.outbox.failures import RetryPolicy, clean, describe
from analemma.outbox.handlers import read_event
from analemma.outbox.holding import TenantNames
from analemma.outbox.outcomes import tell_dead
from analemma.outbox.upsets import Upsets
from analemma.settings import Settings

EVENTS_PER_LANE: Final = 8
"""About so many, so that an aggregate with many events is done at once."""
SUSPECTS: Final = (100, 10, 1)
"""Lanes in a batch in which a worker died once, twice and more often."""
IN_LINE_S: Final = 1.0

log = logging.getLogger("analemma.outbox")


@dataclass(frozen=True, slots=True)
class _Read:
    """What a lane's events ask for, up to one that cannot be read."""

    requests: list[Any]
    unreadable: Invalid | None = None


class Host(Protocol):
    """The worker whose threads these are: it renews the leases of what they hold, and counts."""

    def hold(self, lanes: Sequence[ClaimedLane]) -> None: ...

    def drop(self, lanes: Sequence[ClaimedLane], **counts: int) -> None: ...

    def is_stopping(self) -> bool: ...


class ChannelDelivery:
    """Claims lanes of channels and delivers them. Many threads use it, one per channel at a time."""

    def __init__(
        self,
        claims: OutboxClaims,
        handler: BatchHandler[Any],
        host: Host,
        names: TenantNames,
        *,
        tenant: TenantId | None,
        settings: Settings,
        chance: random.Random,
    ) -> None:
        self._claims = claims
        self._handler = handler
        self._host = host
        self._names = names
        self._tenant = tenant
        self._settings = settings
        self._retries = RetryPolicy(
            settings.ship_max_attempts, settings.outbox_backoff_base_s, settings.outbox_backoff_max_s
        )
        """For single aggregates, if the receiver answers others."""
        self._chance = chance
        self._unsaid: set[int] = set()
        """Lanes, by identity, of which nothing was said since they were claimed."""
        self._upsets: dict[str, Upsets] = {}

    @contextmanager
    def claim(self, name: str, most: int) -> Iterator[list[ClaimedLane]]:
        """Lanes of a channel. Those of which nothing was said in the end are given back."""
        claimed = self._claim(name, most)
        self._unsaid.update(map(id, claimed))
        self._host.hold(claimed)
        try:
            yield claimed
        finally:
            try:
                self.give_back([lane for lane in claimed if id(lane) in self._unsaid])
            except BaseException as exc:
                # What brought us here matters more, if anything did; and leases run out.
                log.warning("lanes of the channel %s could not be given back: %s", name, describe(exc))
            finally:
                self._unsaid.difference_update(map(id, claimed))
                self._host.drop(claimed)

    def give_back(self, lanes: Sequence[ClaimedLane]) -> None:
        """These were not delivered, and are due as before."""
        if lanes:
            self._finish([LaneOutcome(lane, lane.done_seq) for lane in lanes])

    def deliver(self, name: str, claimed: Sequence[ClaimedLane], *, is_ending: Callable[[], bool]) -> list[BatchAnswer]:
        """Deliver lanes, until the channel has to rest, or all is about to end. What is left is not begun, and is for
        whoever claimed it to give back."""
        upsets = self._upsets.setdefault(name, Upsets())
        answers: list[BatchAnswer] = []
        for batch in self._in_batches(claimed, upsets):
            if is_ending() or (answers and answers[-1].rest is not None):
                break
            answers.append(self._deliver(name, self._begin(batch), upsets))
        return answers

    def _claim(self, name: str, most: int) -> list[ClaimedLane]:
        rows = most * EVENTS_PER_LANE
        claimed = self._claims.claim(lanes=most, rows=rows, tenant=self._tenant, channel=name)
        if not claimed and self._claims.passes_over and self._claims.anything_due(self._tenant, channel=name):
            # Producers are writing to all that is due: wait in their line.
            claimed = self._claims.claim_in_line(
                lanes=most, rows=rows, wait_s=IN_LINE_S, tenant=self._tenant, channel=name
            )
        return claimed

    def _in_batches(self, claimed: Sequence[ClaimedLane], upsets: Upsets) -> list[list[ClaimedLane]]:
        """First all those about which nothing is known, then the others, in smaller batches the more is known."""
        for lane in claimed:
            if not lane.events:
                # Committed since the claim looked.
                lane.events = self._claims.read(lane, EVENTS_PER_LANE)
        alive = self._survivors(claimed)
        calm: list[ClaimedLane] = []
        sized: dict[int, list[ClaimedLane]] = {}
        # What killed most workers comes last: the others are not to wait until it is given up.
        for lane in sorted(alive, key=lambda lane: _attempts(lane) if lane.suspect else 0):
            known = [upsets.size(lane.key), self._suspects_size(_attempts(lane)) if lane.suspect else None]
            size = min((each for each in known if each is not None), default=None)
            (calm if size is None else sized.setdefault(size, [])).append(lane)
        batches = [calm] if calm else []
        for size, lanes in sorted(sized.items(), reverse=True):
            batches += [lanes[start : start + size] for start in range(0, len(lanes), size)]
        return batches

    def _suspects_size(self, attempts: int) -> int:
        """How many are tried together with one in which workers died so often. The last attempt is made alone."""
        if attempts >= self._retries.max_attempts - 1:
            return 1
        return SUSPECTS[min(max(attempts, 1), len(SUSPECTS)) - 1]

    def _survivors(self, claimed: Sequence[ClaimedLane]) -> list[ClaimedLane]:
        """Count the attempts that ended with their workers; all lanes but those for which it was the last."""
        most = self._retries.max_attempts
        blamed: list[ClaimedLane] = []
        spent: list[LaneOutcome] = []
        alive: list[ClaimedLane] = []
        for lane in claimed:
            if not lane.reclaimed or (lane.suspect and lane.events and lane.events[0].status != "PROCESSING"):
                alive.append(lane)  # Nobody died, or not in this one: it was not begun.
                continue
            if lane.events:
                first = lane.events[0]
                attempts = _attempts(lane) + 1
                is_alone = first.status == "PROCESSING" and self._suspects_size(_attempts(lane)) == 1
                if is_alone and attempts >= most:
                    spent.append(LaneOutcome(lane, lane.done_seq, EventFailure("DEAD", attempts, None, WORKER_DIED)))
                    continue
                if not is_alone:
                    # Perhaps it was another's fault: it is not given up before it was tried alone.
                    attempts = min(attempts, max(_attempts(lane), most - 1))
                lane.events[0] = first._replace(attempts=attempts, status="PENDING")
                blamed.append(lane)
            lane.suspect = True
            alive.append(lane)
        if blamed:
            self._claims.blame(blamed)
        if spent:
            self._finish(spent)
        return alive

    def _begin(self, lanes: list[ClaimedLane]) -> list[ClaimedLane]:
        """Say of lanes in which a worker died that they are being tried, so that only these are to blame if this one
        does; those that are still ours."""
        ours = []
        for lane in lanes:
            try:
                if lane.suspect and lane.events:
                    self._claims.begin(lane, lane.events[0].seq)
                ours.append(lane)
            except LeaseLost as exc:
                log.warning("%s", exc.message)
                self._unsaid.discard(id(lane))
                self._host.drop([lane], lost=1)
        return ours

    def _deliver(self, name: str, lanes: list[ClaimedLane], upsets: Upsets) -> BatchAnswer:
        deliveries = [self._read(name, lane) for lane in lanes]
        asked = [at for at, each in enumerate(deliveries) if each.requests]
        answer = self._ask(name, [lanes[at] for at in asked], [deliveries[at].requests for at in asked])
        answer = _learn(answer, [lanes[at] for at in asked], upsets)
        failed = {asked[at]: why for at, why in answer.failed.items()}
        rest_s = None if answer.rest is None else self._rest(name, answer.rest)
        outcomes = [
            self._outcome(lane, each, failed.get(at), rest_s)
            for at, (lane, each) in enumerate(zip(lanes, deliveries, strict=True))
        ]
        try:
            self._finish(outcomes, within=answer.within)
        except BaseException as exc:
            # What was delivered is not settled, and comes again; so the receiver is left alone until that works.
            self._rest(name, Rest(describe(exc)))
            self.give_back([lane for lane in lanes if id(lane) in self._unsaid])
            return BatchAnswer(rest=Rest(describe(exc)))
        return answer

    def _ask(self, name: str, lanes: list[ClaimedLane], deliveries: list[list[Any]]) -> BatchAnswer:
        def still_ours(*, least_s: float) -> Sequence[bool]:
            least = int(min(least_s, self._claims.lease_s / 2) * 1e6)
            given = [(*lane.key, lane.fence) for lane in lanes]
            found = {row[0] for row in self._claims.engine.all("held_lanes", lanes=given, least=least)}
            return [place in found for place in range(len(lanes))]

        if not deliveries:
            return BatchAnswer(is_proof=False)
        try:
            return self._handler.deliver(name, deliveries, still_ours)
        except BaseException as exc:
            # Also what ends threads and programs elsewhere: a receiver's library does not end a worker.
            reason = describe(exc)
            return BatchAnswer(dict.fromkeys(range(len(deliveries)), Failed(reason)), Rest(reason), is_proof=False)

    def _rest(self, name: str, rest: Rest) -> float:
        """Have all workers leave a channel alone; for how long. Whoever finds the same failure while it rests already
        does not make it longer."""
        asked = {
            "base": int(self._settings.ship_rest_s * 1e6),
            "longest": int(self._settings.ship_rest_max_s * 1e6),
            "asked": int((rest.after_s or 0.0) * 1e6),
            "reason": rest.reason,
        }

        def rest_channel(tx: Transaction) -> int:
            rest_us: int = tx.value("rest_channel", name=name, now=database_clock(tx), **asked)
            return rest_us

        rest_s = self._claims.engine.write(rest_channel) / 1e6
        log.warning("the channel %s rests for %.1f s: %s", name, rest_s, rest.reason)
        return rest_s

    def _read(self, name: str, lane: ClaimedLane) -> _Read:
        tenant = self._names.of(lane.key.tenant)
        requests: list[Any] = []
        for row in lane.events:
            try:
                requests.append(self._handler.read(name, read_event(tenant, lane.key, row)))
            except Invalid as exc:
                return _Read(requests, exc)
        return _Read(requests)

    def _outcome(self, lane: ClaimedLane, read: _Read, failed: Failed | None, rest_s: float | None) -> LaneOutcome:
        if not lane.events:
            log.warning("%s has lost the events %d to %d", lane.key, lane.done_seq + 1, lane.last_seq)
            return LaneOutcome(lane, lane.last_seq)
        if failed is not None:
            return LaneOutcome(lane, lane.done_seq, self._failure(_attempts(lane), failed, rest_s))
        count = len(read.requests)
        done = lane.events[count - 1].seq if count else lane.done_seq
        if read.unreadable is None:
            return LaneOutcome(lane, done)
        attempts = lane.events[count].attempts
        return LaneOutcome(lane, done, self._retries.judge(read.unreadable, attempts, self._chance))

    def _failure(self, attempts: int, failed: Failed, rest_s: float | None) -> EventFailure:
        if rest_s is not None and not failed.is_permanent:
            # Behind the others, so that after the rest somebody else is tried.
            delay_s = rest_s * self._chance.uniform(1, 2)
            return EventFailure("FAILED", attempts, int(delay_s * 1_000_000), clean(failed.reason))
        if not failed.is_counted:
            delay_us = int((failed.after_s or self._settings.outbox_poll_busy_s) * 1_000_000)
            return EventFailure("FAILED", attempts, delay_us, clean(failed.reason))
        return self._retries.judge_reason(
            failed.reason, attempts, self._chance, is_permanent=failed.is_permanent, after_s=failed.after_s
        )

    def _finish(self, outcomes: list[LaneOutcome], within: Callable[[Transaction], None] | None = None) -> None:
        """Say what became of lanes. What cannot be said because somebody is writing to them is said later, in line."""
        done = self._claims.finish(outcomes, within=within)
        self._said(outcomes, done)
        deadline = time.monotonic() + 30 * IN_LINE_S
        while done.later and time.monotonic() < deadline:
            waiting = done.later
            done = self._claims.finish(waiting, wait_s=IN_LINE_S)
            self._said(waiting, done)

    def _said(self, outcomes: Sequence[LaneOutcome], done: Finished) -> None:
        later = {id(outcome.lane) for outcome in done.later}
        said = [outcome.lane for outcome in outcomes if id(outcome.lane) not in later]
        self._unsaid.difference_update(map(id, said))
        dead = tell_dead(done)
        self._host.drop(said, delivered=done.delivered, failed=len(done.failed) - dead, dead=dead, lost=len(done.lost))


def _attempts(lane: ClaimedLane) -> int:
    """How often what the lane asks for now was tried. A dead letter was revived by a newer event, which has all its
    attempts before it."""
    if not lane.events or lane.events[0].status == "DEAD":
        return 0
    return lane.events[0].attempts


def _learn(answer: BatchAnswer, lanes: Sequence[ClaimedLane], upsets: Upsets) -> BatchAnswer:
    """The answer, without a rest if it was not the receiver that failed but the one thing that it was sent."""
    if answer.is_proof:
        upsets.take([lane.key for at, lane in enumerate(lanes) if at not in answer.failed])
    if answer.rest is None or answer.rest.after_s is not None:
        return answer  # A receiver that asks for time is overloaded, whatever it was sent.
    down = [at for at, why in answer.failed.items() if why.is_counted and not why.is_permanent]
    if down and upsets.fail([lanes[at].key for at in down]):
        return replace(answer, rest=None, is_proof=False)
    return answer
