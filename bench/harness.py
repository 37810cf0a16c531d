"""What benchmarks share: the row they report, timing that cancels noise, and the facts about the machine."""

from __future__ import annotations

import gc
import os
import platform
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. A ratio says how it compares to something measured in the same run."""

    name: str
    value: float | None
    unit: str
    ratio: float | None = None
    against: str | None = None
    """What the ratio is to."""
    goal: str | None = None
    met: bool | None = None
    skipped: str | None = None
    """Why nothing was measured."""

    @classmethod
    def skip(cls, name: str, reason: str) -> Row:
        """A row for something that cannot be measured here."""
        return cls(name, None, "", skipped=reason)

    @classmethod
    def at_most(cls, name: str, value: float, unit: str, *, ratio: float, against: str, limit: float) -> Row:
        """A row whose goal is a ratio no larger than the limit."""
        return cls(name, value, unit, ratio, against, f"<= {limit:g}x", ratio <= limit)

    @classmethod
    def at_least(cls, name: str, value: float, unit: str, *, ratio: float, against: str, limit: float) -> Row:
        """A row whose goal is a ratio no smaller than the limit."""
        return cls(name, value, unit, ratio, against, f">= {limit:g}x", ratio >= limit)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds that one call took, over all rounds."""

    best_s: float
    median_s: float


@dataclass(frozen=True, slots=True)
class Duel:
    """Two things timed in turns."""

    a: Timing
    b: Timing
    ratio: float
    """How many times longer `a` takes: the median over neighbouring rounds, which the machine treats alike."""


def alternate(a: Callable[[], Any], b: Callable[[], Any], rounds: int, *, round_s: float = 0.01) -> Duel:
    """Time two functions in turns, so that a slow minute of the machine hits both.

    Each round calls a function as often as fits into `round_s`; who goes first changes from round to round.
    """
    calls_a, calls_b = _calls_in(a, round_s), _calls_in(b, round_s)
    took_a: list[float] = []
    took_b: list[float] = []
    for number in range(rounds):
        if number % 2:
            took_a.append(_seconds_per_call(a, calls_a))
            took_b.append(_seconds_per_call(b, calls_b))
        else:
            took_b.append(_seconds_per_call(b, calls_b))
            took_a.append(_seconds_per_call(a, calls_a))
    ratio = statistics.median(x / y for x, y in zip(took_a, took_b, strict=True))
    return Duel(_timing(took_a), _timing(took_b), ratio)


def time_row(name: str, took: Sequence[tuple[float, float]], peer: str, limit: float = 1) -> Row:
    """Median milliseconds of ours; the ratio is the median over neighbours in time."""
    ours = statistics.median([mine for mine, _ in took]) * 1000
    theirs = statistics.median([other for _, other in took]) * 1000
    ratio = statistics.median([other / mine for mine, other in took])
    return Row.at_least(name, ours, "ms", ratio=ratio, against=f"{peer} ({theirs:.3g} ms)", limit=limit)


def less(name: str, unit: str, ours: float, theirs: float, peer: str, *, limit: float) -> Row:
    against = f"{peer} ({theirs:,.3g} {unit})"
    return Row.at_least(name, ours, unit, ratio=theirs / ours, against=against, limit=limit)


@contextmanager
def temporary_folder(place: Path | None = None) -> Iterator[Path]:
    """A directory that is gone afterwards; below `place`, or where temporary files are."""
    path = Path(tempfile.mkdtemp(prefix="analemma-bench-", dir=place))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def machine_facts() -> dict[str, str | int | float]:
    """What the numbers depend on besides the code."""
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "fsync_ms": round(fsync_latency_s() * 1000, 3),
        "load": round(os.getloadavg()[0], 1),
    }


def fsync_latency_s(tries: int = 50) -> float:
    """Median time to append 4 KB to a file and force it to the disk that temporary files are on."""
    took: list[float] = []
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(tries):
            started = time.perf_counter()
            file.write(b"\0" * 4096)
            os.fsync(file.fileno())
            took.append(time.perf_counter() - started)
    return statistics.median(took)


def print_rows(rows: Iterable[Row], facts: dict[str, str | int | float], console: Console) -> None:
    """An aligned table, with the machine below it."""
    table = Table(box=box.SIMPLE)
    for heading in ("benchmark", "value", "unit", "ratio", "to", "goal", "met"):
        table.add_column(heading, justify="right" if heading in ("value", "ratio") else "left", no_wrap=True)
    for row in rows:
        table.add_row(
            row.name,
            "" if row.value is None else _significant(row.value),
            row.unit,
            "" if row.ratio is None else f"{row.ratio:.2f}x",
            row.against or (f"skipped: {row.skipped}" if row.skipped else ""),
            row.goal or "",
            {None: "", True: "yes", False: "no"}[row.met],
        )
    console.print(table)
    console.print("  ".join(f"{name} {fact}" for name, fact in facts.items()), highlight=False)


def as_json(rows: Iterable[Row], facts: dict[str, str | int | float]) -> dict[str, Any]:
    """The same for programs."""
    return {"machine": facts, "rows": [asdict(row) for row in rows]}


def _calls_in(function: Callable[[], Any], seconds: float) -> int:
    function()
    return max(1, int(seconds / max(_seconds_per_call(function, 3), 1e-9)))


def _seconds_per_call(function: Callable[[], Any], calls: int) -> float:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        started = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - started) / calls
    finally:
        if was_enabled:
            gc.enable()


def _timing(took: list[float]) -> Timing:
    return Timing(min(took), statistics.median(took))


def _significant(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
