"""An agent at work beside the stores that agents use today: two messages of 1.4 KB more and 4.7 KB replaced at each
step, beside 48 KB that never change. Everything is durable, and everybody takes turns."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

from bench.contenders import doltlite_process, langgraph_savers
from bench.contenders.base import Opened, missing
from bench.contenders.ours import Ours, OursInABag
from bench.harness import Row, less, temporary_folder, time_row
from bench.workload import agent_start, agent_step

LOADS = 7
TURN = 10
"""Steps that one contender makes before the next one's turn."""
DOLTLITE = doltlite_process.Doltlite.name
SQLITE_SAVER = langgraph_savers.SqliteThread.name

PEERS: tuple[Opened, ...] = (
    (SQLITE_SAVER, langgraph_savers.SQLITE_PACKAGES, langgraph_savers.SqliteThread),
    (langgraph_savers.DeltaThread.name, langgraph_savers.DELTA_PACKAGES, langgraph_savers.DeltaThread),
    (DOLTLITE, doltlite_process.PACKAGES, doltlite_process.Doltlite),
)

Times = dict[str, list[float]]


def run(quick: bool) -> Iterator[Row]:
    """One agent, every store."""
    steps = 200 if quick else 1000
    title = f"agent, {steps:,} steps"
    with temporary_folder() as folder, ExitStack() as opened:
        contenders: dict[str, Any] = {}
        for cls in (Ours, OursInABag):
            contenders[cls.name] = opened.enter_context(closing(cls(folder / cls.name.replace(" ", "-"))))
        for name, packages, open_peer in PEERS:
            reason = missing(packages)
            if reason is None:
                contenders[name] = opened.enter_context(closing(open_peer(folder / name.replace(", ", "-"))))
            else:
                yield Row.skip(f"{title}: {name}", reason)
        puts = _work(contenders, steps)
        cold = _load(contenders, steps, reopening=True)
        warm = _load(contenders, steps, reopening=False)
        early = _load_early(contenders, steps)
        for contender in contenders.values():
            contender.compact()
        opened.close()
        disk = {name: contender.disk_bytes() / 1e6 for name, contender in contenders.items()}
        yield from _rows(title, puts, cold, warm, early, disk)


def _work(contenders: dict[str, Any], steps: int) -> Times:
    took: Times = {name: [] for name in contenders}
    for contender in contenders.values():
        contender.timed("begin", agent_start())
    for first in range(0, steps, TURN):
        turn = [agent_step(number) for number in range(first, first + TURN)]
        for name, contender in _rotated(contenders, first // TURN):
            took[name] += [contender.timed("step", step.messages, step.scratch)[0] for step in turn]
    return took


def _load(contenders: dict[str, Any], steps: int, *, reopening: bool) -> Times:
    took: Times = {name: [] for name in contenders}
    for number in range(LOADS):
        for name, contender in _rotated(contenders, number):
            if reopening:
                contender.reopen()
            seconds, count = contender.timed("load")
            assert count == 2 * steps, f"{name} lost messages: {count}"
            took[name].append(seconds)
    return took


def _load_early(contenders: dict[str, Any], steps: int) -> Times:
    """All of the state as it was after a tenth of the steps."""
    took: Times = {name: [] for name in contenders}
    version = steps // 10
    for number in range(LOADS):
        for name, contender in _rotated(contenders, number):
            contender.reopen()
            seconds, count = contender.timed("load_version", version)
            assert count == 2 * version, f"{name} has {count} messages at version {version}"
            took[name].append(seconds)
    return took


def _rows(title: str, puts: Times, cold: Times, warm: Times, early: Times, disk: dict[str, float]) -> Iterator[Row]:
    ours = Ours.name
    for mine in (Ours.name, OursInABag.name):
        tenth = max(TURN, len(puts[mine]) // 10)
        yield Row(f"{title}: put, 99th percentile, {mine}", statistics.quantiles(puts[mine], n=100)[98] * 1000, "ms")
        middle = [statistics.median(part) * 1000 for part in (puts[mine][:tenth], puts[mine][-tenth:])]
        yield Row.at_most(
            f"{title}: put, last tenth, {mine}",
            middle[1],
            "ms",
            ratio=middle[1] / middle[0],
            against=f"the first tenth ({middle[0]:.3g} ms)",
            limit=1.3,
        )
    for name in puts:
        if name in (Ours.name, OursInABag.name):
            continue
        for mine in (Ours.name, OursInABag.name):
            yield time_row(f"{title}: put, {mine}", list(zip(puts[mine], puts[name], strict=True)), name)
        yield less(f"{title}: disk", "MB", disk[ours], disk[name], name, limit=1 / 1.1 if name == DOLTLITE else 1)
        # A saver takes what it reads on trust; here every byte is verified.
        at_least = 0.5 if name == SQLITE_SAVER else 1
        pairs = list(zip(cold[ours], cold[name], strict=True))
        yield time_row(f"{title}: load the newest, just opened", pairs, name, limit=at_least)
        yield time_row(f"{title}: load the newest again", list(zip(warm[ours], warm[name], strict=True)), name)
        yield time_row(f"{title}: load an early version", list(zip(early[ours], early[name], strict=True)), name)


def _rotated(contenders: dict[str, Any], turn: int) -> list[tuple[str, Any]]:
    pairs = list(contenders.items())
    shift = turn % len(pairs)
    return pairs[shift:] + pairs[:shift]
