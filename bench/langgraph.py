"""LangGraph's savers beside ours, called as LangGraph calls them: an agent that adds two messages of 1.4 KB at each
step and replaces 4.7 KB, beside 48 KB that never change. Every put is durable, and everybody takes turns.

Once with dicts in the channels and once with strings, which PostgresSaver stores in another way."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

from bench.contenders import langgraph_savers as savers
from bench.contenders import langgraph_threads as threads
from bench.contenders.base import missing
from bench.harness import Row, temporary_folder
from bench.workload import agent_start, agent_step
from tests.servers import postgres_missing

STEPS = 1000
"""What the goals are about: how much a saver that stores whole states writes grows with the square of this."""
QUICK_STEPS = 200
LOADS = 7
TURN = 10
"""Steps that one contender makes before the next one's turn."""
SECTION = 1000

SHAPES = ("dicts", "strings")
OURS = threads.OurThread.name
PACKAGES = ("langgraph.checkpoint.base",)

Times = dict[str, list[float]]


@dataclass(frozen=True)
class Goals:
    """How many times less we want to take than one peer; None: only told."""

    disk: float | None = None
    put: float | None = None
    warm: float = 1 / 1.2
    # A saver takes what it reads on trust; here every byte is verified.
    cold: float = 1 / 2.5


@dataclass(frozen=True)
class Measured:
    """What one run of the workload took, by contender."""

    puts: Times
    cold: Times
    warm: Times
    disk: dict[str, float]
    copied_bytes: int
    copy_s: float
    history_s: float


SQLITE_GOALS = {savers.SqliteThread.name: Goals(disk=80, put=4), savers.DeltaThread.name: Goals()}
POSTGRES_GOALS = {
    "PostgresSaver, pglz": Goals(disk=40),
    "PostgresSaver, lz4": Goals(put=2),
    threads.DeltaPostgresThread.name: Goals(),
}


def run(quick: bool) -> Iterator[Row]:
    """Both shapes, on both databases."""
    yield from compare(QUICK_STEPS if quick else STEPS)


def compare(steps: int) -> Iterator[Row]:
    """Agents of that many steps."""
    reason = missing(PACKAGES)
    if reason is not None:
        yield Row.skip("LangGraph savers", reason)
        return
    for shape in SHAPES:
        yield from on_sqlite(shape, steps)
    yield from on_postgres(steps)


def on_sqlite(shape: str, steps: int) -> Iterator[Row]:
    """Ours in a directory, theirs in a file."""
    title = f"{shape}, {steps:,} steps, SQLite"
    with temporary_folder() as folder, ExitStack() as opened:
        contenders: dict[str, Any] = {OURS: opened.enter_context(closing(threads.OurThread(folder / "ours")))}
        reason = missing(savers.DELTA_PACKAGES)
        if reason is None:
            for peer in (savers.SqliteThread, savers.DeltaThread):
                contenders[peer.name] = opened.enter_context(closing(peer(folder / peer.name.replace(", ", "-"))))
        else:
            yield Row.skip(f"{title}: SqliteSaver", reason)
        measured = measure(contenders, shape, steps)
    yield from rows(title, measured, SQLITE_GOALS, steps)


def on_postgres(steps: int) -> Iterator[Row]:
    """Each in a database of its own, on one durable server."""
    reason = None if threads.SERVER_VARIABLE in os.environ else postgres_missing()
    if reason is not None:
        yield Row.skip(f"{steps:,} steps, PostgreSQL", reason)
        return
    server = threads.open_server()
    try:
        if not threads.offers_lz4(server.url):
            reason = f"this server was built without it; name another one in {threads.SERVER_VARIABLE}"
            yield Row.skip(f"{steps:,} steps, PostgresSaver, lz4", reason)
        for shape in SHAPES:
            title = f"{shape}, {steps:,} steps, PostgreSQL"
            with ExitStack() as opened:
                urls: list[str] = []
                contenders = {}
                for name, open_thread in _postgres_peers(server.url):
                    urls.append(server.create_database())
                    contenders[name] = opened.enter_context(closing(open_thread(urls[-1])))
                if len(contenders) == 1:
                    yield Row.skip(f"{title}: PostgresSaver", missing(savers.POSTGRES_PACKAGES) or "")
                measured = measure(contenders, shape, steps)
            for url in urls:
                server.drop_database(url)
            yield from rows(title, measured, POSTGRES_GOALS, steps)
    finally:
        server.stop()


def _postgres_peers(url: str) -> list[tuple[str, Callable[[str], Any]]]:
    peers: list[tuple[str, Callable[[str], Any]]] = [(OURS, threads.OurPostgresThread)]
    if missing(savers.POSTGRES_PACKAGES) is not None:
        return peers
    peers.append(("PostgresSaver, pglz", lambda url: threads.PlainPostgresThread(url, "pglz")))
    best = "lz4" if threads.offers_lz4(url) else "pglz"
    if best == "lz4":
        peers.append(("PostgresSaver, lz4", lambda url: threads.PlainPostgresThread(url, "lz4")))
    peers.append((threads.DeltaPostgresThread.name, lambda url: threads.DeltaPostgresThread(url, best)))
    return peers


def measure(contenders: dict[str, Any], shape: str, steps: int) -> Measured:
    """Let everybody work, read, and be weighed."""
    puts = work(contenders, shape, steps)
    cold = load(contenders, steps, reopening=True)
    warm = load(contenders, steps, reopening=False)
    disk = {}
    for name, contender in contenders.items():
        # What a log still holds is not yet where it will stay.
        contender.reopen()
        disk[name] = contender.disk_bytes() / 1e6
    ours: threads.OurThread = contenders[OURS]
    listed = [ours.timed("history") for _ in range(LOADS)]
    assert {count for _, count in listed} == {steps + 1}, "a checkpoint is missing from the history"
    copied = [ours.timed("copy", f"copy-{number}") for number in range(3)]
    return Measured(
        puts,
        cold,
        warm,
        disk,
        copied_bytes=sum([written for _, written in copied]),
        copy_s=statistics.median([seconds for seconds, _ in copied]),
        history_s=statistics.median([seconds for seconds, _ in listed]),
    )


def work(contenders: dict[str, Any], shape: str, steps: int) -> Times:
    """The seconds of every put."""
    took: Times = {name: [] for name in contenders}
    for contender in contenders.values():
        contender.timed("begin", {**shaped(agent_start(), shape), "messages": []})
    for first in range(0, steps, TURN):
        turn = [agent_step(number) for number in range(first, min(first + TURN, steps))]
        for name, contender in _rotated(contenders, first // TURN):
            for step in turn:
                scratch = shaped({"scratch": step.scratch}, shape)["scratch"]
                took[name].append(contender.timed("step", step.messages, scratch)[0])
    return took


def load(contenders: dict[str, Any], steps: int, *, reopening: bool) -> Times:
    """The seconds of reading the newest checkpoint, with caches or without."""
    took: Times = {name: [] for name in contenders}
    for number in range(LOADS):
        for name, contender in _rotated(contenders, number):
            if reopening:
                contender.reopen()
            seconds, count = contender.timed("load")
            assert count == 2 * steps, f"{name} lost messages: {count}"
            took[name].append(seconds)
    return took


def shaped(state: dict[str, Any], shape: str) -> dict[str, Any]:
    """The state's texts as they are, or in sections."""
    if shape == "strings":
        return state
    return {name: _sections(value) if isinstance(value, str) else value for name, value in state.items()}


def rows(title: str, measured: Measured, goals: dict[str, Goals], steps: int) -> Iterator[Row]:
    """What was measured, with the goals beside it."""
    puts = measured.puts
    first, last = _tenths(puts[OURS])
    yield Row(f"{title}: put, 99th percentile", _p99(puts[OURS]), "ms")
    yield Row(f"{title}: put, last tenth", last, "ms", last / first, f"the first tenth ({first:.3g} ms)")
    for peer, goal in goals.items():
        if peer not in puts:
            continue
        # How much more others write depends on the number of steps, and the goals are about one number.
        judged = steps == STEPS
        yield _beside(f"{title}: disk", measured.disk[OURS], measured.disk[peer], "MB", peer, goal.disk, judged=judged)
        yield _timed(f"{title}: put", puts[OURS], puts[peer], peer, goal.put, judged=judged)
        yield _beside(f"{title}: put, 99th percentile", _p99(puts[OURS]), _p99(puts[peer]), "ms", peer)
        yield _beside(f"{title}: put, first tenth", first, _tenths(puts[peer])[0], "ms", peer)
        yield _beside(f"{title}: put, last tenth", last, _tenths(puts[peer])[1], "ms", peer)
        yield _timed(f"{title}: get latest, again", measured.warm[OURS], measured.warm[peer], peer, goal.warm)
        yield _timed(f"{title}: get latest, just opened", measured.cold[OURS], measured.cold[peer], peer, goal.cold)
    copied = measured.copied_bytes
    yield Row(f"{title}: copy_thread, bytes of state written", copied, "B", goal="0", met=copied == 0)
    yield Row(f"{title}: copy_thread", measured.copy_s * 1000, "ms")
    listed = measured.history_s * 1000
    yield Row(f"{title}: history without states", listed, "ms", goal="< 10 ms", met=listed < 10)


def _timed(
    name: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    peer: str,
    limit: float | None = None,
    *,
    judged: bool = True,
) -> Row:
    """Median milliseconds; the ratio is the median over neighbours in time."""
    ratio = statistics.median([other / mine for mine, other in zip(ours, theirs, strict=True)])
    middle = [statistics.median(took) * 1000 for took in (ours, theirs)]
    return _row(name, middle[0], "ms", ratio, f"{peer} ({middle[1]:.3g} ms)", limit, judged)


def _beside(
    name: str, ours: float, theirs: float, unit: str, peer: str, limit: float | None = None, *, judged: bool = True
) -> Row:
    return _row(name, ours, unit, theirs / ours, f"{peer} ({theirs:,.3g} {unit})", limit, judged)


def _row(name: str, value: float, unit: str, ratio: float, against: str, limit: float | None, judged: bool) -> Row:
    if limit is None:
        return Row(name, value, unit, ratio, against)
    if not judged:
        return Row(name, value, unit, ratio, against, goal=f">= {limit:g}x at {STEPS:,} steps")
    return Row(name, value, unit, ratio, against, f">= {limit:.3g}x", ratio >= limit)


def _p99(took: Sequence[float]) -> float:
    return statistics.quantiles(took, n=100)[98] * 1000


def _tenths(took: Sequence[float]) -> tuple[float, float]:
    """Median milliseconds at the beginning and at the end."""
    count = max(1, len(took) // 10)
    return statistics.median(took[:count]) * 1000, statistics.median(took[-count:]) * 1000


def _sections(text: str) -> dict[str, str]:
    return {f"section-{start // SECTION:02}": text[start : start + SECTION] for start in range(0, len(text), SECTION)}


def _rotated(contenders: dict[str, Any], turn: int) -> list[tuple[str, Any]]:
    pairs = list(contenders.items())
    shift = turn % len(pairs)
    return pairs[shift:] + pairs[:shift]
