"""What became of lanes, until it is said: many at once, by whichever thread of a worker comes first."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from analemma.catalog.outbox.claims import Finished, LaneOutcome, OutboxClaims
from analemma.outbox.failures import clean
from analemma.outbox.holding import HeldLanes

log = logging.getLogger("analemma.outbox")


class Outcomes:
    """What a worker has to say about lanes that it gives back. Threads may share it."""

    def __init__(
        self, claims: OutboxClaims, held: HeldLanes, *, batch: int, wake: Callable[[], None], count: Callable[..., None]
    ) -> None:
        """`batch` of them do not wait for more; `wake` has somebody look for what is due again already. `count` is told
        how many were delivered, failed, are dead or lost."""
        self._claims = claims
        self._held = held
        self._batch = batch
        self._wake = wake
        self._count = count
        self._lock = threading.Lock()
        """Guards what follows."""
        self._unsaid: list[LaneOutcome] = []
        self._later: list[LaneOutcome] = []
        """What could not be said because somebody was writing to the lane."""
        self._oldest = 0.0

    def __bool__(self) -> bool:
        return bool(self._unsaid or self._later)

    @property
    def has_later(self) -> bool:
        """Whether something has to be waited for to be said."""
        return bool(self._later)

    def add(self, outcome: LaneOutcome) -> None:
        """To be said with the others."""
        with self._lock:
            if not self._unsaid:
                self._oldest = time.monotonic()
            self._unsaid.append(outcome)

    def flush(self, *, only_older_s: float | None = None, wait_s: float = 0.0) -> None:
        """Say what became of lanes; whoever comes first says it for all. What cannot be said because somebody is
        writing to the lane is left to those who wait for that."""
        if not self._unsaid and not (wait_s and self._later):
            return
        with self._lock:
            if (
                only_older_s is not None
                and len(self._unsaid) < self._batch
                and time.monotonic() - self._oldest < only_older_s
            ):
                return
            outcomes, self._unsaid = self._unsaid, []
            if wait_s:
                outcomes, self._later = self._later + outcomes, []
        if not outcomes:
            return
        try:
            finished = self._claims.finish(outcomes, wait_s=wait_s)
        except BaseException:
            with self._lock:
                self._unsaid = outcomes + self._unsaid
            raise
        if finished.more:
            self._wake()
        dead = tell_dead(finished)
        unsaid = {id(outcome.lane) for outcome in finished.later}
        with self._lock:
            self._later += finished.later
        self._count(
            delivered=finished.delivered, failed=len(finished.failed) - dead, dead=dead, lost=len(finished.lost)
        )
        self._held.remove(outcome.lane for outcome in outcomes if id(outcome.lane) not in unsaid)

    def clear(self) -> None:
        """Nothing is said any more: leases run out."""
        with self._lock:
            self._unsaid, self._later = [], []


def tell_dead(finished: Finished) -> int:
    """Log each event that is dead from now on, which parks its lane until somebody looks; how many."""
    count = 0
    for outcome in finished.failed:
        lane, failure = outcome.lane, outcome.failure
        if failure is None or failure.status != "DEAD":
            continue
        count += 1
        row = next((each for each in lane.events if each.seq == outcome.done_seq + 1), None)
        event = "an event" if row is None else f"event {row.id} ({row.type})"
        whose = f"{lane.key.aggregate_type} {lane.key.aggregate_id}"
        log.error("%s", clean(f"{event} of {whose} is dead, and parks what is behind it: {failure.reason}"))
    return count
