"""Delivers channels, each in a thread of its own: however slow or dead a receiver is, nobody else waits for it.

A channel whose receiver fails as a whole rests, for all workers, longer each time; then a few of its lanes are tried,
and all when that went well. Where more channels have something to deliver than there are threads, they take turns."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Any, Final, NamedTuple

from analemma.catalog.engine.db import Transaction
from analemma.catalog.leases import database_clock
from analemma.catalog.outbox.claims import OutboxClaims
from analemma.catalog.port import TenantId
from analemma.errors import AnalemmaError
from analemma.failpoints import declare, hit
from analemma.outbox.batches import BatchHandler
from analemma.outbox.channel_delivery import ChannelDelivery, Host
from analemma.outbox.holding import TenantNames
from analemma.outbox.options import Listener
from analemma.settings import Settings

PROBE: Final = 10
"""Lanes that are tried when a channel has rested."""
DRAIN_POLL_S: Final = 0.005
SHORT_WAIT_S: Final = 0.1
"""For so long, a thread waits for a channel's turn; for longer, it is given to others."""

AFTER_DUE = declare("outbox.after_due", "it is known which channels have something to deliver, and no thread has begun")

log = logging.getLogger("analemma.outbox")


class DueChannel(NamedTuple):
    """A channel that has something to deliver, and does not rest."""

    name: str
    failures: int
    """How often in a row nothing could be delivered; 0: it is well."""


class _Turn(NamedTuple):
    """A time that is reserved for a channel that has a rate, by this process' monotonic clock."""

    begins: float
    ends: float
    lanes: int


class ChannelThreads:
    """The channels of one worker, while it works."""

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
        self._engine = claims.engine
        self._handler = handler
        self._host = host
        self._tenant = tenant
        self._settings = settings
        self._delivery = ChannelDelivery(claims, handler, host, names, tenant=tenant, settings=settings, chance=chance)
        self._lock = threading.Lock()
        self._running: dict[str, threading.Thread] = {}
        self._listener: Listener | None = None
        self._dispatcher: threading.Thread | None = None
        self._over = threading.Event()
        self._served: dict[str, int] = {}
        """When each channel had a thread for the last time, by the number of threads that had ended."""
        self._ended = 0
        self._not_before: dict[str, float] = {}
        """When channels that failed, or whose rate is used up, may have a thread again."""
        self._turns: dict[str, _Turn] = {}
        self._is_crowded = False
        """Whether a channel is due for which there is no thread."""

    def start(self, listener: Listener, *, drain: bool) -> None:
        """Begin to look for channels with something to deliver."""
        self._over.clear()
        self._not_before, self._turns = {}, {}
        self._listener = listener
        self._dispatcher = threading.Thread(
            target=self._dispatch, args=(listener, drain), name="analemma-channels", daemon=True
        )
        self._dispatcher.start()

    def stop(self, listener: Listener) -> None:
        """Wait for the batches that are under way."""
        self._over.set()
        listener.wake()
        # Interrupted in between, there is one that was never started.
        if self._dispatcher is not None and self._dispatcher.ident is not None:
            self._dispatcher.join()
        with self._lock:
            running = list(self._running.values())
        for thread in running:
            thread.join()

    def is_active(self) -> bool:
        """Whether any channel is being delivered."""
        return bool(self._running)

    def anything_due(self) -> bool:
        """Whether there is a channel to deliver that does not rest, or was while this was asked."""
        ended = self._ended
        # What a thread holds is not due. One that ends meanwhile may have given it back.
        return bool(self._engine.all("due_channels", tenant=self._tenant)) or self.is_active() or ended != self._ended

    def _ending(self) -> bool:
        return self._over.is_set() or self._host.is_stopping()

    def _dispatch(self, listener: Listener, drain: bool) -> None:
        busy_s, idle_s = self._settings.outbox_poll_busy_s, self._settings.outbox_poll_idle_s
        pause_s = busy_s
        while not self._ending():
            try:
                has_begun, next_s = self._begin_due()
                is_woken = listener.wait(DRAIN_POLL_S if drain else min(pause_s, next_s))
            except AnalemmaError as exc:
                log.warning("the outbox is out of reach: %s", exc)
                self._over.wait(idle_s)
                continue
            except BaseException:
                # Also where no thread can be started: some of those that run will end. A worker that lives delivers.
                log.exception("channels cannot be delivered for now")
                self._over.wait(idle_s)
                continue
            pause_s = busy_s if is_woken or has_begun else min(pause_s * 2, idle_s)

    def _begin_due(self) -> tuple[bool, float]:
        """Start threads for channels that are due, the least recently served first; whether there was any, and in how
        many seconds at the latest to look again."""
        ended = self._ended
        due = self._engine.rows(DueChannel, "due_channels", tenant=self._tenant)
        hit(AFTER_DUE)
        now = time.monotonic()
        has_begun = False
        with self._lock:
            idle = [each for each in due if each.name not in self._running]
            # What was read of a channel whose thread has ended since may not be so any more: it may rest.
            known = [each for each in idle if self._served.get(each.name, 0) <= ended]  # guard: channel.due
            ready = [each for each in known if self._not_before.get(each.name, now) <= now]
            free = self._settings.ship_threads - len(self._running)
            self._is_crowded = len(ready) > free
            for each in sorted(ready, key=lambda each: self._served.get(each.name, 0))[: max(0, free)]:
                self._begin(each)
                has_begun = True
            later = [self._not_before[each.name] - now for each in idle if self._not_before.get(each.name, now) > now]
        return has_begun, min(later, default=self._settings.outbox_poll_idle_s) if len(known) == len(idle) else 0.0

    def _begin(self, due: DueChannel) -> None:
        name = f"analemma-channel-{due.name}"
        thread = threading.Thread(target=self._thread, args=(due,), name=name, daemon=True)
        self._running[due.name] = thread
        try:
            thread.start()
        except BaseException:
            del self._running[due.name]
            raise

    def _thread(self, due: DueChannel) -> None:
        pause_s = 0.0
        try:
            pause_s = self._deliver_channel(due.name, is_probing=due.failures > 0)
        except AnalemmaError as exc:
            log.warning("the outbox is out of reach: %s", exc)
            pause_s = self._settings.outbox_poll_busy_s
        except BaseException:
            # A bug, here or in a handler's plan: the channel is tried again, and nobody else suffers.
            log.exception("the channel %s cannot be delivered", due.name)
            pause_s = self._settings.outbox_poll_idle_s
        finally:
            with self._lock:
                # In this order, for those who ask without the lock whether anything is under way.
                self._ended += 1
                del self._running[due.name]
                self._served[due.name] = self._ended
                self._not_before[due.name] = time.monotonic() + pause_s
            if (self._is_crowded or pause_s) and self._listener is not None:
                # Whoever gives threads to channels does not know yet that one is free, or when this one wants it.
                self._listener.wake()

    def _deliver_channel(self, name: str, *, is_probing: bool) -> float:
        """Deliver batches until nothing is due, the channel has to rest or to wait for its turn, or others want the
        thread; for how long to leave it alone."""
        while not self._ending():
            plan = self._handler.plan(name)
            most = min(PROBE, plan.most) if is_probing else plan.most
            turn = self._reserved(name)
            if plan.per_second is not None:
                # About a second's worth, so that no turn is long.
                most = max(1, min(most, int(plan.per_second), most if turn is None else turn.lanes))
            with self._delivery.claim(name, most) as claimed:
                if not claimed:
                    return 0.0
                if plan.per_second is not None:
                    turn = turn or self._reserve(name, len(claimed), plan.per_second)
                    wait_s = turn.begins - time.monotonic()
                    if wait_s > SHORT_WAIT_S:
                        # Meanwhile, others may have both the thread and the lanes.
                        self._turns[name] = turn
                        return wait_s
                    if wait_s > 0 and self._over.wait(wait_s):
                        return 0.0
                answers = self._delivery.deliver(name, claimed, is_ending=self._ending)
            if any(answer.rest is not None for answer in answers):
                return 0.0
            if is_probing:
                if not any(answer.is_proof for answer in answers):
                    return 0.0
                self._engine.execute("wake_channel", name=name)
                is_probing = False
            if plan.per_second is not None and turn is not None:
                wait_s = turn.ends - time.monotonic()
                if wait_s > SHORT_WAIT_S:
                    # A little early: the exact time is known when it is reserved.
                    return wait_s - SHORT_WAIT_S / 2
            if self._is_crowded:
                return 0.0
        return 0.0

    def _reserved(self, name: str) -> _Turn | None:
        """A turn that was waited for, unless that is too long ago."""
        turn = self._turns.pop(name, None)
        return None if turn is None or turn.ends + 1 < time.monotonic() else turn

    def _reserve(self, name: str, lanes: int, per_second: float) -> _Turn:
        """Take the time that a delivery needs by the channel's rate, behind all that was taken by any worker."""
        duration_s = lanes / per_second

        def take(tx: Transaction) -> int:
            wait_us: int = tx.value("take_turn", name=name, now=database_clock(tx), duration=int(duration_s * 1e6))
            return wait_us

        begins = time.monotonic() + max(0, self._engine.write(take)) / 1e6
        return _Turn(begins, begins + duration_s, lanes)
