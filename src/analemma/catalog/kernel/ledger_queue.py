"""Deltas of many threads on their way into the ledger: whoever comes first enters those of all who came meanwhile.

What is durable costs a transaction, whatever it holds. So entries queue, and the first in the queue leads: it enters
every entry that waits in one transaction, and hands out their places. A lone caller leads itself.

Any thread may be interrupted anywhere (Ctrl-C raises between two instructions). So an entry never changes places by
being taken out of one and put into another, but is put into the next before it leaves the last; and leaving and
answering may be repeated when an interrupt cut them short.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

from analemma.catalog.kernel.ledger_port import LedgerEntry
from analemma.errors import AnalemmaError, Conflict, Invalid, Limit, OutcomeUnknown, Unavailable

MOST_ENTRIES = 128
"""Entries per transaction: more gain little and make the first ones wait."""
MOST_BYTES = 4 << 20
"""Stored bytes of entries per transaction, unless one alone is larger."""


class _Entering:
    """One thread's wish to enter a delta, and the answer to it."""

    __slots__ = ("done", "entry", "error", "left", "place", "woken")

    def __init__(self, entry: LedgerEntry) -> None:
        self.entry = entry
        self.place = 0
        self.error: BaseException | None = None
        self.done = False
        """Another thread entered it, and the answer is here."""
        self.left = False
        self.woken = threading.Lock()
        self.woken.acquire()

    def wake(self) -> None:
        """Have it look again; only with the queue's gate held."""
        if self.woken.locked():
            self.woken.release()


class _Batch:
    """The requests of one transaction, the leader's first."""

    def __init__(self, own: _Entering) -> None:
        self.requests = [own]
        self.phase: Literal["gathering", "entering", "entered"] = "gathering"
        self.failure: Exception | None = None
        self.answered = False

    def outcome(self) -> Exception | None:
        """What became of all of them; None if they are stored."""
        if self.phase == "entered":
            return None
        if self.failure is not None:
            return self.failure
        if self.phase == "entering":
            return OutcomeUnknown("the commit was interrupted", hint="read back before trying again")
        return Unavailable("the transaction was interrupted", hint="nothing was changed; try again")


class LedgerQueue:
    """Enters deltas of one tenant; any thread may."""

    def __init__(self, enter_all: Callable[[Sequence[LedgerEntry]], list[int]]) -> None:
        """`enter_all` gives the places of entries once all of them are durable, or raises and keeps none."""
        self._enter_all = enter_all
        self._gate = threading.Lock()
        self._waiting: deque[_Entering] = deque()
        self._leading: _Entering | None = None
        self._inside: set[int] = set()
        """Threads that have an entry in the queue."""

    def enter(self, entry: LedgerEntry) -> int:
        """The entry's place, once it is durable."""
        thread = threading.get_ident()
        if thread in self._inside:
            # A signal's handler, on top of a call that waits: behind that it would wait for ever.
            (alone,) = self._enter_all([entry])
            return alone
        own = _Entering(entry)
        try:
            self._inside.add(thread)
            self._await_turn(own)
            if not own.done:
                self._lead(own)
        finally:
            # Twice, here and below: an interrupt may hit the first, and a turn that is not given up stops everyone.
            try:
                self._leave(own)
            finally:
                self._leave(own)
                self._inside.discard(thread)
        if own.error is not None:
            raise own.error
        return own.place

    def _await_turn(self, own: _Entering) -> None:
        """Return when it leads or, `done`, was answered by a leader. Whatever happens, `_leave` must follow."""
        with self._gate:
            if self._leading is None and not self._waiting:
                self._leading = own
                return
            self._waiting.append(own)
        while True:
            own.woken.acquire()
            with self._gate:
                if own.done:
                    return
                if self._leading is None and self._waiting and self._waiting[0] is own:
                    self._leading = own
                    self._waiting.popleft()
                    return

    def _leave(self, own: _Entering) -> None:
        """Give up the turn, or the place in the queue. May be repeated."""
        if own.left:
            return
        with self._gate:
            if self._leading is own:
                self._leading = None
            if own in self._waiting:
                self._waiting.remove(own)
            if self._leading is None and self._waiting:
                self._waiting[0].wake()
        own.left = True

    def _lead(self, own: _Entering) -> None:
        """Enter our own and those that wait behind it. If we are interrupted then, the others are told that nobody
        knows: what was sent cannot be called back."""
        batch = _Batch(own)
        try:
            room = MOST_BYTES - len(own.entry.delta.body)
            while len(batch.requests) < MOST_ENTRIES and room > 0 and self._join(batch):
                room -= len(batch.requests[-1].entry.delta.body)
            batch.phase = "entering"
            self._enter(batch.requests)
            batch.phase = "entered"
        except Exception as exc:
            batch.failure = exc
        finally:
            try:
                self._answer(batch)
            finally:
                self._answer(batch)

    def _join(self, batch: _Batch) -> bool:
        """Take the first in the queue into the batch."""
        with self._gate:
            if not self._waiting:
                return False
            batch.requests.append(self._waiting[0])
            self._waiting.popleft()
            return True

    def _answer(self, batch: _Batch) -> None:
        """Tell everyone in the batch what became of it. May be repeated."""
        if batch.answered:
            return
        outcome = batch.outcome()
        with self._gate:
            if self._waiting and self._waiting[0] is batch.requests[-1]:
                self._waiting.popleft()
            for request in batch.requests:
                if request.error is None:  # its own failure says more than the batch's
                    request.error = outcome
                request.done = True
                request.wake()
        batch.answered = True

    def _enter(self, requests: Sequence[_Entering]) -> None:
        try:
            places = self._enter_all([request.entry for request in requests])
        except (Conflict, Invalid, Limit):
            if len(requests) == 1:
                raise
            # One of them is refused; by themselves the others are not. (What the database could not do for all of them
            # it will not do for each: that is told to all.)
            for request in requests:
                try:
                    (request.place,) = self._enter_all([request.entry])
                except AnalemmaError as refused:
                    request.error = refused
            return
        for request, place in zip(requests, places, strict=True):
            request.place = place
