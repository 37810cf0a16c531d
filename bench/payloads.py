"""What payloads shrink to, and what making and reading them costs."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import analemma
from analemma.store.store import App
from bench.fat_payload import NAMES, SEGMENT_CONFIG, fat_event
from bench.harness import Row, temporary_folder
from bench.workload import prose

FILTER_GOAL = 0.67
POINTER_GOAL = 0.95


def run(quick: bool) -> Iterator[Row]:
    """The documents' fat payload, then states of many shapes."""
    rounds = 5 if quick else 25
    with temporary_folder() as folder, analemma.open(folder) as app:
        yield from fat_payload(app, rounds)
        yield from shapes(app, rounds)


def fat_payload(app: App, rounds: int) -> Iterator[Row]:
    """200 KB of configuration, 50 KB of partition map, 100 KB of state: how much of it is left."""
    event = fat_event()
    before = len(json.dumps(event))
    payload = app.payloads.dehydrate(event, return_delta=False, **NAMES)
    yield reduction(
        "fat payload, ring filter", before, app.payloads.filter_event_payload(event, SEGMENT_CONFIG), FILTER_GOAL
    )
    yield reduction("fat payload, pointers", before, payload, POINTER_GOAL)
    both = app.payloads.filter_event_payload(payload, SEGMENT_CONFIG)
    yield reduction("fat payload, pointers and ring filter", before, both, POINTER_GOAL)
    yield Row("dehydrate the fat payload", 1000 * median(lambda: app.payloads.dehydrate(event, **NAMES), rounds), "ms")
    yield Row("hydrate it, one field read", 1000 * median(lambda: app.payloads.hydrate(payload)["node"], rounds), "ms")
    yield Row("hydrate it, all fields read", 1000 * median(lambda: dict(app.payloads.hydrate(payload)), rounds), "ms")

    def pass_on() -> None:
        state = app.payloads.hydrate(payload)
        state["loop_counter"] += 1
        app.payloads.dehydrate(state, return_delta=False, **NAMES)

    yield Row("hydrate, count, dehydrate (nothing large touched)", 1000 * median(pass_on, rounds), "ms")


def shapes(app: App, rounds: int) -> Iterator[Row]:
    """States that are small, wide and large."""
    states: dict[str, dict[str, Any]] = {
        "5 KB in 20 fields": {f"field {number}": prose(number, 250) for number in range(20)},
        "10,000 tiny fields": {f"field {number}": number for number in range(10_000)},
        "10 MB in one field": {"text": prose(7, 10_000_000)},
    }
    for name, state in states.items():
        dehydrate = partial(app.payloads.dehydrate, state, **NAMES)
        yield Row(f"dehydrate {name}", 1000 * median(dehydrate, rounds), "ms")


def reduction(name: str, before: int, after: Any, goal: float) -> Row:
    """The part of the bytes that went."""
    gone = 1 - len(json.dumps(after)) / before
    return Row(f"{name}: bytes saved", 100 * gone, "%", None, None, f">= {goal:.0%}", gone >= goal)


def median(call: Callable[[], Any], rounds: int) -> float:
    """Seconds that it takes, in the middle of so many times."""
    took = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        took.append(time.perf_counter() - started)
    return statistics.median(took)
