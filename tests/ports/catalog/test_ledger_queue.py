"""Entries of many threads in one transaction: who is told what when it succeeds, fails, or is interrupted."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from analemma.catalog import ledger_queue
from analemma.catalog.ledger_port import LedgerEntry
from analemma.catalog.ledger_queue import LedgerQueue
from analemma.errors import OutcomeUnknown, Unavailable
from analemma.testing.catalog_ledger import make_entry


class Ledger:
    """Enters what it is given, after it was told to go on."""

    def __init__(self, then: Callable[[int], None] = lambda number: None) -> None:
        self.groups: list[list[LedgerEntry]] = []
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self._then = then

    def enter_all(self, entries: Sequence[LedgerEntry]) -> list[int]:
        self.groups.append(list(entries))
        self.begun.set()
        assert self.go_on.wait(60)
        self._then(len(self.groups))
        return [entry.created_at_us for entry in entries]


def enter_together(
    ledger: Ledger, queue: LedgerQueue, entries: Sequence[LedgerEntry], threads: ThreadPoolExecutor
) -> list[Future[int]]:
    """The first alone, and all others while that is under way."""
    first = threads.submit(queue.enter, entries[0])
    assert ledger.begun.wait(20)
    others = []
    for number, entry in enumerate(entries[1:], 1):
        others.append(threads.submit(queue.enter, entry))
        deadline = time.monotonic() + 20
        while len(queue._queue) < number and time.monotonic() < deadline:
            time.sleep(0.001)
    ledger.go_on.set()
    return [first, *others]


def test_those_who_come_meanwhile_are_entered_together_and_each_gets_its_own_place() -> None:
    ledger = Ledger()
    queue = LedgerQueue(ledger.enter_all)
    entries = [make_entry(created_at_us=place) for place in range(20)]
    with ThreadPoolExecutor(20) as threads:
        asked = enter_together(ledger, queue, entries, threads)
        assert [each.result(20) for each in asked] == list(range(20))
    assert ledger.groups == [entries[:1], entries[1:]]


@pytest.mark.parametrize(("name", "most"), [("MOST_ENTRIES", 3), ("MOST_BYTES", 250)])
def test_a_transaction_does_not_grow_without_end(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_queue, name, most)
    ledger = Ledger()
    queue = LedgerQueue(ledger.enter_all)
    entries = [make_entry(created_at_us=place, body=bytes(100)) for place in range(8)]
    with ThreadPoolExecutor(8) as threads:
        asked = enter_together(ledger, queue, entries, threads)
        assert [each.result(20) for each in asked] == list(range(8))
    assert [len(group) for group in ledger.groups] == [1, 3, 3, 1]


def test_what_the_database_could_not_do_is_told_to_all_and_not_tried_again() -> None:
    away = Unavailable("the database is away")

    def fail(number: int) -> None:
        if number == 2:
            raise away

    ledger = Ledger(fail)
    queue = LedgerQueue(ledger.enter_all)
    entries = [make_entry(created_at_us=place) for place in range(4)]
    with ThreadPoolExecutor(4) as threads:
        first, *others = enter_together(ledger, queue, entries, threads)
        assert first.result(20) == 0 and [each.exception(20) for each in others] == [away] * 3
    assert [len(group) for group in ledger.groups] == [1, 3]
    assert queue.enter(entries[3]) == 3


def test_an_interrupt_of_who_leads_leaves_the_others_in_doubt_and_nobody_stuck() -> None:
    def interrupt(number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt

    ledger = Ledger(interrupt)
    queue = LedgerQueue(ledger.enter_all)
    entries = [make_entry(created_at_us=place) for place in range(4)]
    with ThreadPoolExecutor(4) as threads:
        first, second, *others = enter_together(ledger, queue, entries, threads)
        assert first.result(20) == 0
        assert isinstance(second.exception(20), KeyboardInterrupt)
        assert all(isinstance(each.exception(20), OutcomeUnknown) for each in others)
    assert queue.enter(entries[3]) == 3


def test_the_handler_of_a_signal_enters_past_the_call_that_it_interrupted() -> None:
    ledger = Ledger()
    queue = LedgerQueue(ledger.enter_all)
    first, second, third = [make_entry(created_at_us=place) for place in range(3)]
    handled: list[int] = []

    def handle(*_: object) -> None:
        ledger.go_on.set()
        handled.append(queue.enter(third))

    def interrupt() -> None:
        deadline = time.monotonic() + 20
        while not len(queue._queue) and time.monotonic() < deadline:
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with ThreadPoolExecutor(2) as threads:
            leader = threads.submit(queue.enter, first)
            assert ledger.begun.wait(20)
            interrupting = threads.submit(interrupt)
            assert queue.enter(second) == 1
            assert leader.result(20) == 0
            interrupting.result(20)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled == [2]
