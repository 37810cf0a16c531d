"""A thread that takes turns: what is asked of it is done, however its turns end."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.core.entry_points.clock import Ticker


def test_whoever_wakes_it_during_a_turn_gets_another() -> None:
    begun, go_on, turns = threading.Event(), threading.Event(), list[int]()

    def turn() -> None:
        turns.append(len(turns))
        begun.set()
        go_on.wait(60)

    ticker = Ticker("turns", turn)
    ticker.wake()
    assert begun.wait(60)
    ticker.wake()
    ticker.wake()
    go_on.set()
    assert ticker.stop(60) and turns == [0, 1]
    ticker.wake()
    assert turns == [0, 1]


def test_it_takes_its_turn_when_the_time_is_up() -> None:
    third = threading.Event()
    turns = iter((third.is_set, third.is_set, third.set))

    def turn() -> float | None:
        next(turns)()
        return None if third.is_set() else 0.001

    ticker = Ticker("turns", turn)
    ticker.wake()
    assert third.wait(60) and ticker.stop(60)


def test_a_turn_that_raised_is_taken_again() -> None:
    second, ended, failures = threading.Event(), threading.Event(), [ValueError("not yet")]

    def turn() -> None:
        if failures:
            raise failures.pop()
        second.set()

    ticker = Ticker("turns", turn, end=ended.set)
    ticker.wake()
    assert second.wait(60) and not ended.is_set()
    assert ticker.stop(60) and ended.is_set()


def test_one_that_was_never_woken_has_nothing_to_end() -> None:
    assert Ticker("turns", lambda: None).stop(60)


def test_one_with_nothing_to_do_ends_and_the_next_wake_up_starts_another() -> None:
    turns, ends = list[int](), threading.Event()

    def turn() -> None:
        turns.append(len(turns))

    ticker = Ticker("turns", turn, end=ends.set, idle_s=0.01)
    for number in range(1, 4):
        ends.clear()
        ticker.wake()
        assert ends.wait(60) and len(turns) == number
    assert ticker.stop(60)


def test_a_signals_handler_that_wakes_it_while_its_thread_is_made_starts_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken, made = threading.Event(), list[threading.Thread]()
    ticker = Ticker("turns", taken.set)

    class Interrupted(threading.Thread):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            made.append(self)
            if len(made) == 1:
                ticker.wake()

    with monkeypatch.context() as signalled:
        signalled.setattr(threading, "Thread", Interrupted)
        ticker.wake()
    assert taken.wait(60) and ticker.stop(60)
    assert len(made) == 1 and not made[0].is_alive()
