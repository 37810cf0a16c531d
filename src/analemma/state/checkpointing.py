"""Who applies pending deltas and when: a thread in the background, whoever waits for one, and whoever saves.

Nothing depends on the thread. Every entry is in the ledger before anyone is told of it, and any process that comes by
can apply it; the thread only spares others the work.
"""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from analemma.catalog.kernel.ledger_port import Delta, LedgerCatalog, LedgerEntry
from analemma.catalog.kernel.ledger_queue import LedgerQueue
from analemma.catalog.port import BranchKey
from analemma.clock import attempts
from analemma.context import Context
from analemma.errors import AnalemmaError, Invalid
from analemma.state.applying import Applier, Pass
from analemma.state.tickets import Ticket

SECRET_BYTES = 16
MOST_BRANCHES = 64
"""Branches that one transaction of the thread takes up."""
GATHER_S = 0.002
"""The thread waits so long after it was woken: what others enter meanwhile shares the transaction."""
IDLE_S = 2.0
"""A thread with nothing to do ends after this; the next checkpoint starts another."""
LEFT_BEHIND_S = 5.0
"""Entries this old were left by a process that died, or is slow: the thread applies those of any branch."""
PAUSE_S = 0.5
"""Before the thread tries again what something was in the way of."""
LONGEST_AGE_S = 1e10
"""Some 300 years, of which the database can still be told the beginning."""


class Checkpoints:
    """What is pending in one tenant, and the thread that applies it."""

    def __init__(self, context: Context, applier: Applier) -> None:
        self.ledger: LedgerCatalog = context.catalog
        self._tenant = context.tenant
        self._applier = applier
        self._clock = context.clock
        self._entropy = context.entropy
        self._closed = False
        self._reset()
        _ALL.add(self)

    def _reset(self) -> None:
        self._entering = LedgerQueue(lambda entries: self.ledger.enter_all(self._tenant, entries))
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        """Only to wait and to notify. To hold the lock, `with self._lock`: entering a Condition takes several steps,
        and an interrupt between two of them would leave it locked for good."""
        self._thread: threading.Thread | None = None
        self._waiting: dict[BranchKey, float] = {}
        """Branches for the thread, in the order in which they came, and from when on it may try each (again)."""
        self._busy: set[BranchKey] = set()
        """Branches that a thread of this process is at: two of them would only be in each other's way."""
        self.problem: Exception | None = None
        """What kept the thread from applying something, the last time it tried."""

    @property
    def pending(self) -> int:
        """How many checkpoints wait to be applied, whoever made them."""
        return self.ledger.pending_count(self._tenant)

    def drain(self, timeout_s: float | None = None) -> int:
        """Apply everything that is pending now, of this process or any other; how many were applied. What is left
        after `timeout_s` stays pending. Raises what is in the way of a branch, once all others are done."""
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        settled = 0
        in_the_way: dict[BranchKey, AnalemmaError] = {}
        through = self.ledger.newest_pending(self._tenant)
        while through is not None and not self._is_late(deadline):
            # Those in the way are found again, hence beyond the limit.
            keys = self.ledger.pending_branches(self._tenant, through=through, limit=MOST_BRANCHES + len(in_the_way))
            keys = [key for key in keys if key not in in_the_way][:MOST_BRANCHES]
            if not keys:
                break
            with self._claimed(keys, deadline) as claimed:
                done = self._applier.apply(claimed, through=through) if claimed else Pass()
            settled += done.settled
            in_the_way.update({key: exc for key, exc in done.unsettled.items() if exc is not None})
            if done.settled == 0:
                self._clock.sleep(random.uniform(0, 0.005))
        for exc in in_the_way.values():
            raise exc
        return settled

    def forget(self, older_than_s: float) -> int:
        """Remove what is known of checkpoints that were committed or failed so long ago, with the deltas of those that
        failed; how many. Their tickets are NotFound from then on; their versions stay."""
        if not 0 <= older_than_s <= LONGEST_AGE_S:
            raise Invalid(
                f"cannot forget what is older than {older_than_s} s", hint=f"an age is from 0 to {LONGEST_AGE_S:.0f} s"
            )
        return self.ledger.forget_tickets(
            self._tenant, before_us=self._clock.now_us() - round(older_than_s * 1_000_000)
        )

    def enter(
        self, key: BranchKey, delta: Delta, *, idempotency_key: str | None = None, fingerprint: bytes | None = None
    ) -> Ticket:
        """Keep a delta, durably; who applies it is not decided yet."""
        secret = self._entropy.random_bytes(SECRET_BYTES)
        entry = LedgerEntry(key, secret, delta, self._clock.now_us(), idempotency_key, fingerprint)
        return Ticket(self._entering.enter(entry), secret)

    def hand_over(self, key: BranchKey) -> None:
        """Have the thread apply what is pending on a branch; start it if there is none."""
        with self._lock:
            known = key in self._waiting
            self._waiting.setdefault(key, 0.0)
            if self._closed or (known and self._thread is not None):
                # The thread takes a branch off this list before it reads its entries, so it will find this one too.
                return
            if self._thread is None:
                # A daemon: a program that ends must not wait for what the next process can do.
                thread = threading.Thread(target=self._run, name="analemma-checkpoints", daemon=True)
                try:
                    thread.start()
                except RuntimeError as exc:
                    # No thread can be had now. The delta is in the ledger all the same, and the next one tries again.
                    self.problem = exc
                    return
                self._thread = thread
            self._changed.notify_all()

    def finish(self, key: BranchKey, through: int | None = None, deadline: float | None = None) -> bool:
        """Apply what is pending on a branch now, or up to a place; False if that was not done by `deadline` on the
        monotonic clock. Raises what is in the way."""
        if through is None:
            through = self.ledger.newest_pending(self._tenant, key)
            if through is None:
                return True
        for _ in attempts(
            self._clock, "a branch changes too fast to apply what is pending", hint="save from fewer places"
        ):
            if self._is_late(deadline):
                return False
            with self._claimed([key], deadline) as claimed:
                if not claimed:
                    return False
                done = self._applier.apply(claimed, through=through)
            exc = done.unsettled.get(key)
            if exc is not None:
                raise exc
            if done.settled == done.seen and not done.more:
                return True
        raise AssertionError("unreachable")

    def close(self, timeout_s: float) -> None:
        """Stop the thread, and apply what it was asked for and had not done, as far as that is possible in time. What
        is left stays in the ledger."""
        deadline = self._clock.monotonic() + timeout_s
        with self._lock:
            self._closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            # It ends by itself once what it is at returns; a database that does not answer must not keep us here.
            thread.join(max(0.0, min(timeout_s, threading.TIMEOUT_MAX)))
        while self._waiting and not self._is_late(deadline):
            keys = list(self._waiting)[:MOST_BRANCHES]
            with self._claimed(keys, deadline) as claimed:
                if not claimed:
                    return
                try:
                    done = self._applier.apply(claimed)
                except AnalemmaError:
                    return  # whoever opens the store next meets it again
            for key in claimed:
                # One that lost a race is tried again; what is in the way of one is met by whoever comes next.
                if done.unsettled.get(key) is not None or not (done.more or key in done.unsettled):
                    self._waiting.pop(key, None)

    @contextmanager
    def _claimed(self, keys: Sequence[BranchKey], deadline: float | None) -> Iterator[list[BranchKey]]:
        """Those of the branches that no other thread of this process is at, once there is one; none if it is late."""
        free: list[BranchKey] = []
        # From here on: an interrupt may come at any moment, and a branch that is not given up stops everyone.
        try:
            with self._lock:
                while not (free := [key for key in keys if key not in self._busy]):
                    left = None if deadline is None else deadline - self._clock.monotonic()
                    if left is not None and left <= 0:
                        break
                    self._changed.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
                self._busy.update(free)
            yield free
        finally:
            with self._lock:
                self._busy.difference_update(free)
                self._changed.notify_all()

    def _run(self) -> None:
        looked_around = -LEFT_BEHIND_S
        while self._wait_for_work():
            # Others enter theirs meanwhile, and share the transaction.
            self._clock.sleep(GATHER_S)
            if self._closed:
                continue  # what is left is done by who closes, or by the next process
            try:
                if self._clock.monotonic() - looked_around >= LEFT_BEHIND_S:
                    self._look_around()
                    looked_around = self._clock.monotonic()
                self._work()
            except Exception as exc:
                # Whatever it is, it must not end the thread: the database may be back in a moment.
                self.problem = exc
                with self._lock:
                    if not self._closed:
                        self._changed.wait(PAUSE_S)

    def _wait_for_work(self) -> bool:
        """Wait until a branch is due; False, and the thread must end, if none comes for a while."""
        with self._lock:
            idle_until = self._clock.monotonic() + IDLE_S
            while not self._closed:
                now = self._clock.monotonic()
                due = [at for key, at in self._waiting.items() if key not in self._busy]
                if due and min(due) <= now:
                    return True
                if not self._waiting and now >= idle_until:
                    break
                # Branches that another thread is at: it will say when it is done with them.
                until = min(due, default=None if self._waiting else idle_until)
                self._changed.wait(None if until is None else max(0.001, until - now))
            self._thread = None
            return False

    def _look_around(self) -> None:
        """Take up what other processes left behind."""
        before_us = self._clock.now_us() - round(LEFT_BEHIND_S * 1_000_000)
        left = self.ledger.pending_branches(self._tenant, before_us=before_us, limit=MOST_BRANCHES)
        with self._lock:
            for key in left:
                self._waiting.setdefault(key, 0.0)

    def _work(self) -> None:
        with self._lock:
            now = self._clock.monotonic()
            keys = [key for key, at in self._waiting.items() if at <= now and key not in self._busy][:MOST_BRANCHES]
            # Before the ledger is read: what is entered from now on comes back.
            for key in keys:
                del self._waiting[key]
            self._busy.update(keys)
        done = Pass(more=True)
        try:
            done = self._applier.apply(keys) if keys else Pass()
        finally:
            later = self._clock.monotonic() + PAUSE_S
            with self._lock:
                for key in keys:
                    exc = done.unsettled.get(key)
                    if exc is not None:
                        self.problem = exc
                        self._waiting[key] = later
                    elif done.more or key in done.unsettled:
                        self._waiting.setdefault(key, 0.0)
                self._busy.difference_update(keys)
                self._changed.notify_all()

    def _is_late(self, deadline: float | None) -> bool:
        return deadline is not None and self._clock.monotonic() >= deadline


_ALL: weakref.WeakSet[Checkpoints] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # The thread did not come along, and what it had to do is the parent's; locks may have been held by it.
    for checkpoints in list(_ALL):
        checkpoints._reset()


os.register_at_fork(after_in_child=_after_fork_in_child)
