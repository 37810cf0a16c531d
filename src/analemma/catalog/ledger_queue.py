"""Deltas of many threads on their way into the ledger: whoever comes first enters those of all who came meanwhile.

What is durable costs a transaction, whatever it holds. So entries queue, and the first in the queue leads: it enters
every entry that waits in one transaction, and hands out their places. A lone caller leads itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from analemma.catalog.ledger_port import LedgerEntry
from analemma.catalog.sqlite_queue import Batch, Request, WriteQueue
from analemma.errors import AnalemmaError, Conflict, Invalid, Limit

MOST_ENTRIES = 128
"""Entries per transaction: more gain little and make the first ones wait."""
MOST_BYTES = 4 << 20
"""Stored bytes of entries per transaction, unless one alone is larger."""


class LedgerQueue:
    """Enters deltas of one tenant; any thread may."""

    def __init__(self, enter_all: Callable[[Sequence[LedgerEntry]], list[int]]) -> None:
        """`enter_all` gives the places of entries once all of them are durable, or raises and keeps none."""
        self._enter_all = enter_all
        self._queue = WriteQueue()
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
            self._queue.await_turn(own)
            if not own.done:
                self._lead(own)
        finally:
            # Twice, here and below: an interrupt may hit the first, and a turn that is not given up stops everyone.
            try:
                self._queue.leave(own)
            finally:
                self._queue.leave(own)
                self._inside.discard(thread)
        if own.error is not None:
            raise own.error
        place: int = own.result
        return place

    def _lead(self, own: _Entering) -> None:
        """Enter our own and those that wait behind it. If we are interrupted then, the others are told that nobody
        knows: what was sent cannot be called back."""
        batch = Batch(own)
        try:
            room = MOST_BYTES - len(own.entry.delta.body)
            while len(batch.requests) < MOST_ENTRIES and room > 0 and self._queue.join(batch):
                room -= len(_entry(batch.requests[-1]).delta.body)
            batch.phase = "committing"
            self._enter(batch.requests)
            batch.phase = "committed"
        except Exception as exc:
            batch.failure = exc
        finally:
            try:
                self._queue.answer(batch)
            finally:
                self._queue.answer(batch)

    def _enter(self, requests: Sequence[Request]) -> None:
        try:
            places = self._enter_all([_entry(request) for request in requests])
        except (Conflict, Invalid, Limit):
            if len(requests) == 1:
                raise
            # One of them is refused; by themselves the others are not. (What the database could not do for all of them
            # it will not do for each: that is told to all.)
            for request in requests:
                try:
                    (request.result,) = self._enter_all([_entry(request)])
                except AnalemmaError as refused:
                    request.error = refused
            return
        for request, place in zip(requests, places, strict=True):
            request.result = place


class _Entering(Request):
    """One thread's wish to enter a delta."""

    __slots__ = ("entry",)

    def __init__(self, entry: LedgerEntry) -> None:
        # No deadline of its own: whoever leads waits for the database no longer than the database allows.
        super().__init__(_runs_nothing, None)
        self.entry = entry


def _entry(request: Request) -> LedgerEntry:
    assert isinstance(request, _Entering)
    return request.entry


def _runs_nothing(_: object) -> None:
    """A request without a move would want its transaction to itself."""
