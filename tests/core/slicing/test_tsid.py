"""Versions: strictly increasing whatever the clock and the threads do, and one text each."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from analemma.errors import Invalid, Limit, Unavailable
from tests.core.entry_points.slicing import VersionGenerator, format_version, parse_version

EPOCH_MS = 1_577_836_800_000


class SteppedClock:
    """A clock that says what it is told, in milliseconds since 2020."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def now_us(self) -> int:
        return (EPOCH_MS + self.now_ms) * 1000

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        pass


def decompose(version: int) -> tuple[int, int, int]:
    """Milliseconds since 2020, node, counter."""
    return version >> 22, (version >> 12) & 1023, version & 4095


def test_a_version_is_time_node_and_counter() -> None:
    clock = SteppedClock(5)
    generator = VersionGenerator(node=1023, clock=clock)
    first, second = generator.generate(), generator.generate()
    assert (decompose(first), decompose(second)) == ((5, 1023, 0), (5, 1023, 1))
    assert first == 5 << 22 | 1023 << 12
    clock.now_ms = 6
    assert decompose(generator.generate()) == (6, 1023, 0)


def test_a_clock_that_steps_back_does_not_take_versions_back() -> None:
    clock = SteppedClock(1000)
    generator = VersionGenerator(node=1, clock=clock)
    seeded = random.Random(1)
    made = []
    for _ in range(5000):
        clock.now_ms = max(0, clock.now_ms + seeded.choice([-500, -1, 0, 0, 0, 1, 2, 400]))
        made.append(generator.generate())
    assert made == sorted(set(made))


def test_a_full_counter_borrows_the_next_millisecond() -> None:
    generator = VersionGenerator(node=3, clock=SteppedClock(7))
    made = [generator.generate() for _ in range(4096 + 4096 + 1)]
    assert [decompose(made[number]) for number in (4095, 4096, 8192)] == [(7, 3, 4095), (8, 3, 0), (9, 3, 0)]
    assert made == sorted(set(made))


def test_threads_never_get_the_same_version() -> None:
    generator = VersionGenerator(node=0)
    found: list[list[int]] = [[] for _ in range(8)]

    def make(mine: list[int]) -> None:
        for _ in range(2000):
            mine.append(generator.generate())

    threads = [threading.Thread(target=make, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in found)
    assert len({version for mine in found for version in mine}) == 16_000


def test_a_generator_goes_on_after_what_it_has_seen() -> None:
    seen = VersionGenerator(node=1023, clock=SteppedClock(10_000)).generate()
    generator = VersionGenerator(node=0, clock=SteppedClock(5))
    generator.observe(seen)
    assert generator.generate() > seen
    early: Any = 1
    generator.observe(early)
    assert generator.generate() > seen


def test_clocks_and_nodes_out_of_range_are_refused() -> None:
    for node in (-1, 1024):
        with pytest.raises(Invalid):
            VersionGenerator(node=node)
    with pytest.raises(Unavailable, match="before 2020"):
        VersionGenerator(node=0, clock=SteppedClock(-1)).generate()
    with pytest.raises(Limit):
        VersionGenerator(node=0, clock=SteppedClock(1 << 42)).generate()
    last = VersionGenerator(node=1023, clock=SteppedClock((1 << 42) - 1)).generate()
    assert parse_version(format_version(last)) == last


def test_the_text_sorts_as_the_number_does_and_leads_back() -> None:
    seeded = random.Random(2)
    numbers: list[Any] = sorted({0, 1, 31, 32, 2**53, 2**63, 2**64 - 1, *(seeded.randrange(2**64) for _ in range(500))})
    texts = [format_version(number) for number in numbers]
    assert texts == sorted(texts) and all(len(text) == 13 for text in texts)
    assert [parse_version(text) for text in texts] == numbers
    assert format_version(numbers[-1]) == "FZZZZZZZZZZZZ"


def test_what_is_no_version_is_refused() -> None:
    zeros = "0" * 12
    letters = [zeros + letter for letter in "LOUa"]
    for text in ["", zeros, "0" * 14, "G" + zeros, "I" * 13, *letters, "0" * 13 + "\n"]:
        with pytest.raises(Invalid):
            pytest.fail(f"{text!r} is {parse_version(text)}")


def test_what_is_no_number_of_a_version_is_refused() -> None:
    wrong: list[Any] = [-1, 2**64, True, 1.0]
    for number in wrong:
        with pytest.raises(Invalid):
            pytest.fail(f"{number!r} is {format_version(number)}")
