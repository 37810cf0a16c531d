"""Delivers events: claims lanes, hands their events to handlers in order, and settles them in batches.

Threads share one queue of claimed lanes. A lane is with one thread at a time, so the events of an aggregate stay in
order, and those of different aggregates run side by side. Whatever happens to a worker, its leases run out and others
go on; what it says after that is refused."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from analemma.catalog.engine.db import Transaction
from analemma.catalog.leases import LeaseLost
from analemma.catalog.outbox.claims import (
    WORKER_DIED,
    ClaimedLane,
    EventFailure,
    EventRow,
    LaneOutcome,
    OutboxClaims,
)
from analemma.catalog.outbox.lanes import Acknowledgement
from analemma.catalog.port import TenantId
from analemma.context import StoreContext
from analemma.errors import AnalemmaError, Conflict, Invalid
from analemma.outbox.batches import BatchHandler
from analemma.outbox.channel_threads import ChannelThreads
from analemma.outbox.failures import RetryPolicy, settled_nothing
from analemma.outbox.handlers import Event, Handler, read_event
from analemma.outbox.holding import HeldLanes, TenantNames
from analemma.outbox.options import Delivered as Delivered
from analemma.outbox.options import Listener
from analemma.outbox.outcomes import Outcomes
from analemma.tracing import continued, span

TARGET_CLAIM_S = 0.25
"""A claim takes about as much as its threads handle in this time, so that no worker sits on what others could do."""
FLUSH_AFTER_S = 0.02
TICK_S = 0.05
IN_LINE_S = 1.0
"""How long the thread that tends waits at a time for lanes that are being written to."""
PATIENCE_S = 5.0
"""How long a worker that stops waits for them."""

log = logging.getLogger("analemma.outbox")


class OutboxPollingWorker:
    """One worker; any number may work on one outbox, in threads, processes and machines."""

    def __init__(
        self,
        context: StoreContext,
        handlers: Mapping[str, Handler],
        *,
        concurrency: int | None,
        tenant: TenantId | None,
        batches: BatchHandler[Any] | None,
    ) -> None:
        """`handlers` are by event type; `tenant` None is all of them. `batches` is who delivers channels; without it,
        they are left to other workers."""
        settings = self._settings = context.settings
        claims = self._claims = OutboxClaims(context.engine, lease_s=settings.outbox_lease_s)
        self._handlers = handlers
        self._listen = context.catalog.wakeups.listen
        self._tenant = tenant
        self._concurrency = settings.worker_concurrency if concurrency is None else concurrency
        if self._concurrency < 1:
            raise Invalid(f"a worker with {self._concurrency} threads", hint="give it one or more")
        self._retries = RetryPolicy(
            settings.outbox_max_attempts, settings.outbox_backoff_base_s, settings.outbox_backoff_max_s
        )
        self._chance = random.Random()
        self._stopping = False
        self._names = TenantNames(claims.engine)
        self._listener: Listener | None = None
        self._lock = threading.Lock()
        """Guards what follows."""
        self._ready: deque[ClaimedLane] = deque()
        self._suspects: deque[ClaimedLane] = deque()
        """Lanes in which a worker died; one of them is worked on at a time."""
        self._counts = Delivered()
        self._seconds_per_event = 0.01
        self._claimed_at = 0.0
        self._backlog = 1.0
        """How many rows the lanes of the last claim had, on average."""
        self._claiming = threading.Lock()
        """Held by the thread that looks for more, also while it waits: one asks for all."""
        self._alone = threading.Lock()
        """Held while an event is tried in whose lane a worker died, so that it alone is to blame if this one does."""
        self._working: object | None = None
        """Whose call is at work: known by its token, so that an interrupt cannot part the taking from the knowing."""
        self._in_line_s = min(IN_LINE_S, settings.outbox_lease_s / 10)
        self._held = HeldLanes(claims, lease_s=settings.outbox_lease_s, in_line_s=self._in_line_s)
        self._outcomes = Outcomes(
            claims, self._held, batch=self._settings.outbox_batch, wake=self._wake, count=self._count
        )
        self._passed_over: tuple[int, int] | None = None
        """How much to claim, where a claim found nothing but lanes that were being written to."""
        self._pause_s = self._settings.outbox_poll_busy_s
        self._fatal: BaseException | None = None
        self._channels: ChannelThreads | None = None
        if batches is not None:
            self._channels = ChannelThreads(
                claims, batches, self, self._names, tenant=tenant, settings=settings, chance=self._chance
            )

    @property
    def counts(self) -> Delivered:
        """What it did so far."""
        return self._counts

    def run(self) -> Delivered:
        """Deliver until `stop()`; what it did. A database that is away is waited for."""
        return self._work(drain=False)

    def drain(self) -> Delivered:
        """Deliver until nothing is due now, also of what handlers add meanwhile; what it did. Events that wait for
        their next try are not due, and those in another worker's hands are not waited for."""
        return self._work(drain=True)

    def stop(self) -> None:
        """End soon: events that are being handled are finished, and everything else is given back at once. May be
        called from a signal handler, and before `run()`."""
        # No more than this: it may have interrupted whoever holds any lock there is. Whoever tends wakes the others.
        self._stopping = True

    def _work(self, *, drain: bool) -> Delivered:
        token = object()
        try:
            with self._lock:
                if self._working is not None:
                    raise Conflict("this worker is running already", hint="make another one with app.worker()")
                self._working = token
            return self._work_alone(drain)
        finally:
            if self._working is token:
                self._working = None

    def _work_alone(self, drain: bool) -> Delivered:
        self._counts = Delivered()
        self._passed_over = None
        self._fatal = None
        listener = self._listener = self._listen()
        channel_listener = None if self._channels is None else self._listen()
        threads = [
            threading.Thread(target=self._thread, args=(drain, listener), name=f"analemma-outbox-{number}", daemon=True)
            for number in range(self._concurrency)
        ]
        try:
            for thread in threads:
                thread.start()
            if self._channels is not None and channel_listener is not None:
                self._channels.start(channel_listener, drain=drain)
            self._tend(threads)
        finally:
            self._stopping = True
            self._wake()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            if self._channels is not None and channel_listener is not None:
                self._stop_channels(self._channels, channel_listener)
            self._give_back()
            self._listener = None
            listener.close()
            self._stopping = False
        if self._fatal is not None:
            raise self._fatal
        return self._counts

    def hold(self, lanes: Sequence[ClaimedLane]) -> None:
        """Renew the leases of these lanes for as long as they are worked on."""
        self._held.add(lanes)

    def drop(self, lanes: Sequence[ClaimedLane], **counts: int) -> None:
        """These lanes are no longer worked on; and something is to be counted."""
        self._held.remove(lanes)
        self._count(**counts)

    def is_stopping(self) -> bool:
        """Whether it is about to end."""
        return self._stopping

    def _stop_channels(self, channels: ChannelThreads, listener: Listener) -> None:
        """Wait for batches that are under way, and keep their leases meanwhile."""
        ending = threading.Thread(target=channels.stop, args=(listener,), name="analemma-channels-end", daemon=True)
        ending.start()
        self._tend([ending])
        listener.close()

    def _tend(self, threads: list[threading.Thread]) -> None:
        """While threads work, renew leases, settle what its thread has no time to, and wait for lanes that are always
        being written to."""
        renewed = time.monotonic()
        while any(thread.is_alive() for thread in threads):
            # Not an event: a signal handler that set it could meet this thread holding its lock.
            next(thread for thread in threads if thread.is_alive() or thread is threads[-1]).join(TICK_S)
            if self._stopping:
                self._wake()
            try:
                renewed = self._held.renew(renewed)
            except AnalemmaError as exc:
                renewed = time.monotonic()
                log.warning("leases could not be renewed: %s", exc)
            try:
                self._outcomes.flush(only_older_s=FLUSH_AFTER_S)
                self._share_out()
                if not self._stopping:
                    self._wait_in_line()
            except AnalemmaError as exc:
                log.warning("the outbox is out of reach: %s", exc)

    def _wait_in_line(self) -> None:
        """Say, and claim, what threads could not because others are writing to it."""
        if self._outcomes.has_later:
            self._outcomes.flush(wait_s=self._in_line_s)
        if self._passed_over is not None and not self._ready:
            lanes, rows = self._passed_over
            self._passed_over = None
            claimed = self._claims.claim_in_line(lanes=lanes, rows=rows, tenant=self._tenant, wait_s=self._in_line_s)
            if claimed:
                self._take(claimed)
                self._wake()

    def _take(self, claimed: list[ClaimedLane]) -> None:
        self._held.add(claimed)
        self._claimed_at = time.monotonic()
        self._ready.extend(claimed)

    def _share_out(self) -> None:
        """Give back what was claimed long ago and is not begun: handlers have become slow, and others may have time."""
        if self._ready and time.monotonic() - self._claimed_at > self._settings.outbox_lease_s:
            while (lane := self._next_lane()) is not None:
                self._outcomes.add(LaneOutcome(lane, lane.done_seq))

    def _thread(self, drain: bool, listener: Listener) -> None:
        try:
            while not self._stopping:
                try:
                    if self._deliver_a_suspect() or self._deliver_a_lane():
                        self._outcomes.flush(only_older_s=FLUSH_AFTER_S)
                    elif not self._find_more(drain, listener):
                        return
                except AnalemmaError as exc:
                    # The database did not answer. What is handled stays in the list of what to say.
                    if drain:
                        raise
                    log.warning("the outbox is out of reach: %s", exc)
                    listener.wait(self._settings.outbox_poll_idle_s)
        except BaseException as exc:
            self._fatal = self._fatal or exc
            self.stop()

    def _deliver_a_lane(self) -> bool:
        lane = self._next_lane()
        if lane is not None:
            self._deliver(lane)
        return lane is not None

    def _deliver_a_suspect(self) -> bool:
        """Try the next event of a lane in which a worker died, unless another thread is at one: the others go on with
        other lanes."""
        if not self._suspects or not self._alone.acquire(blocking=False):
            return False
        try:
            lane = _first(self._suspects)
            if lane is not None:
                self._deliver_alone(lane)
            return lane is not None
        finally:
            self._alone.release()

    def _next_lane(self) -> ClaimedLane | None:
        return _first(self._ready)

    def _find_more(self, drain: bool, listener: Listener) -> bool:
        """Claim lanes, or wait until there may be some; False when a drain is over."""
        self._outcomes.flush()
        with self._claiming:
            if self._ready or self._stopping:
                return True
            settings = self._settings
            rows = int(self._concurrency * TARGET_CLAIM_S / max(self._seconds_per_event, 1e-6))
            rows = max(self._concurrency, min(rows, settings.outbox_batch))
            # Many rows of few lanes cost less than one row of each of many.
            lanes = max(self._concurrency, int(rows / self._backlog))
            # With suspects waiting here already, the others' are left to others.
            calm = bool(self._suspects)
            claimed = self._claims.claim(lanes=lanes, rows=rows, tenant=self._tenant, calm=calm)
            self._count(polls=1)
            self._take(claimed)
            if claimed:
                self._backlog = max(1.0, sum(lane.last_seq - lane.done_seq for lane in claimed) / len(claimed))
                self._pause_s = settings.outbox_poll_busy_s
                return True
            # Before anything is asked: what these add while they are worked on is found by the questions below.
            busy = bool(self._held) or (self._channels is not None and self._channels.is_active())
            due = not calm and (drain or self._claims.passes_over) and self._claims.anything_due(self._tenant)
            if due and self._claims.passes_over:
                self._passed_over = (lanes, rows)
            if drain:
                waiting = self._channels is not None and self._channels.anything_due()
                if not busy and not due and not calm and not waiting:
                    return False
                # Others are at it, and may add more; or a producer is just writing to what is due.
                listener.wait(0.005)
                return True
            if not listener.wait(self._pause_s):
                self._pause_s = min(self._pause_s * 2, settings.outbox_poll_idle_s)
            return True

    def _deliver(self, lane: ClaimedLane) -> None:
        """Handle the events of a lane, in order, until one fails."""
        with self._keeping(lane):
            if not lane.events:
                # Committed since the claim looked; everything up to the lane's last place is there by now.
                lane.events = self._claims.read(lane, 1)
            if not lane.events:
                log.warning("%s has lost the events %d to %d", lane.key, lane.done_seq + 1, lane.last_seq)
                self._outcomes.add(LaneOutcome(lane, lane.last_seq))
                return
            if lane.reclaimed:
                if not self._survives(lane):
                    return
                lane.reclaimed = False
            if lane.suspect:
                self._suspects.append(lane)
            else:
                self._deliver_events(lane)

    def _deliver_alone(self, lane: ClaimedLane) -> None:
        """Handle the next event of a lane in which a worker died, having said so."""
        with self._keeping(lane):
            if self._stopping:
                self._outcomes.add(LaneOutcome(lane, lane.done_seq))
                return
            self._claims.begin(lane, lane.events[0].seq)
            self._deliver_events(lane, begun=True)

    @contextmanager
    def _keeping(self, lane: ClaimedLane) -> Iterator[None]:
        """Whatever happens, somebody knows what is to become of the lane."""
        try:
            yield
        except LeaseLost as exc:
            log.warning("%s", exc.message)
            self.drop([lane], lost=1)
        except AnalemmaError:
            # The database did not answer. Left alone, the lane would wait for its lease to run out, and its next event
            # would be taken for one at which a worker died.
            self._outcomes.add(LaneOutcome(lane, lane.done_seq))
            raise
        except BaseException:
            # The program ends: the lease runs out, and somebody tries again.
            self.drop([lane])
            raise

    def _survives(self, lane: ClaimedLane) -> bool:
        """Count the attempt that ended with its worker; False if it was the last."""
        first = lane.events[0]
        if lane.suspect and first.status != "PROCESSING":
            return True  # It was not this row that was being tried.
        attempts = first.attempts + 1
        most = self._retries.max_attempts
        if first.status == "PROCESSING" and attempts >= most:
            self._outcomes.add(LaneOutcome(lane, lane.done_seq, EventFailure("DEAD", attempts, None, WORKER_DIED)))
            return False
        if first.status != "PROCESSING":
            # Perhaps it was not even begun: it is not given up before it was tried alone.
            attempts = min(attempts, max(first.attempts, most - 1))
        lane.events[0] = first._replace(attempts=attempts)
        self._claims.blame([lane])
        lane.suspect = True
        return True

    def _deliver_events(self, lane: ClaimedLane, *, begun: bool = False) -> None:
        done, failure = lane.done_seq, None
        tenant = self._names.of(lane.key.tenant)
        for row in lane.events:
            if self._stopping and not begun:
                break
            begun = False
            settled: list[bool] = []

            def settle(tx: Transaction, row: EventRow = row, settled: list[bool] = settled) -> None:
                self._claims.settle(tx, lane, row.seq)
                settled.append(True)

            started = time.perf_counter()
            try:
                self._handle(read_event(tenant, lane.key, row), Acknowledgement(lane.key, settle))
            except (LeaseLost, KeyboardInterrupt):
                raise
            except BaseException as exc:
                # Also what ends threads, tasks and programs elsewhere: a handler's libraries do not end a worker.
                failure = self._retries.judge(exc, row.attempts, self._chance)
                log.info("event %s (%s) failed: %s", row.id, row.type, failure.reason)
                break
            finally:
                self._seconds_per_event += (time.perf_counter() - started - self._seconds_per_event) * 0.05
            if settled and (row is lane.events[-1] or not self._is_settled(lane, row)):
                # Said of what is not settled only: if the transaction was committed, this is not written.
                failure = self._retries.judge(settled_nothing(row), row.attempts, self._chance)
                break
            done = row.seq
        self._outcomes.add(LaneOutcome(lane, done, failure))

    def _is_settled(self, lane: ClaimedLane, row: EventRow) -> bool:
        """Whether the transaction in which a handler settled its event is committed; if so, the lane is known to be
        settled up to there. The events behind it must not be handled before that."""
        try:
            position = self._claims.position(lane)
        except AnalemmaError as exc:
            log.warning("the outbox is out of reach: %s", exc)
            return False
        if position is None or position < row.seq:
            return False
        self._count(delivered=position - lane.done_seq)
        lane.done_seq = position
        return True

    def _handle(self, event: Event, settle: Callable[[Transaction], None]) -> None:
        handler = self._handlers.get(event.type)
        if handler is None:
            raise Invalid(f"nothing here handles events of type {event.type!r}", hint="start a worker that does")
        with continued(event.trace), span("analemma.outbox.deliver", type=event.type, event=event.id):
            handler(event, settle)

    def _wake(self) -> None:
        """Have the thread that waits for more look at once: the one that knows has its own work to do."""
        listener = self._listener
        if listener is not None:
            listener.wake()

    def _count(self, **counts: int) -> None:
        with self._lock:
            self._counts = self._counts.plus(**counts)

    def _give_back(self) -> None:
        """At the end: settle what was handled, release what was not begun."""
        while (lane := self._next_lane() or _first(self._suspects)) is not None:
            self._outcomes.add(LaneOutcome(lane, lane.done_seq))
        deadline = time.monotonic() + PATIENCE_S
        while self._outcomes and time.monotonic() < deadline:
            try:
                self._outcomes.flush(wait_s=self._in_line_s)
            except AnalemmaError as exc:
                log.warning("leases could not be given back, and will run out: %s", exc)
            if self._outcomes:
                time.sleep(0.05)
        self._outcomes.clear()
        self._held.clear()


def _first(lanes: deque[ClaimedLane]) -> ClaimedLane | None:
    try:
        return lanes.popleft()
    except IndexError:
        return None
