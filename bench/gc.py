"""Collecting garbage: how plan and run grow with the number of blocks, in time and memory, and how long peers take to
drop the same versions."""

from __future__ import annotations

import datetime as dt
import json
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import analemma
import analemma.gc.collector  # Before anything is timed, as the peers' libraries are.
from analemma.settings import Settings
from bench.contenders import doltlite_process, git_repository, icechunk_store
from bench.contenders.base import Contender, missing
from bench.contenders.ours import OWNER, WORKFLOW, Ours
from bench.harness import Row, less, temporary_folder
from bench.workload import entries

PLACE: dict[str, Any] = {"workflow_id": WORKFLOW, "owner_id": OWNER}
BLOCKS_PER_VERSION = 100
TEXT_BYTES = 2100
"""Just large enough to be a block of its own."""
PLAN_LIMIT_MB = 200
ROUNDS = 3
"""So often everybody collects, in turn; the median counts."""


def run(quick: bool) -> Iterator[Row]:
    """Every row."""
    yield from growth((10_000, 100_000) if quick else (10_000, 100_000, 1_000_000))
    yield from peers(versions=200 if quick else 1000)


def growth(sizes: tuple[int, ...]) -> Iterator[Row]:
    """Stores of which half is garbage: the time of a plan and of the two runs, per block, and the memory of a plan."""
    before: tuple[int, dict[str, float]] | None = None
    for size in sizes:
        with temporary_folder() as folder:
            build(folder, size)
            measured = json.loads(
                subprocess.run(
                    [sys.executable, "-m", "bench.gc", str(folder)], check=True, capture_output=True, text=True
                ).stdout
            )
        name = f"{measured['blocks']:,} blocks, half of them garbage"
        per_block = {verb: measured[verb] / measured["blocks"] for verb in ("plan_s", "doom_s", "delete_s")}
        for verb, title in (("plan_s", "plan"), ("doom_s", "run that marks"), ("delete_s", "run that deletes")):
            row = Row(f"{title}, {name}", measured[verb], "s")
            if before is not None:
                ratio = per_block[verb] / before[1][verb]
                against = f"the same per block at {before[0]:,}"
                row = Row.at_most(row.name, measured[verb], "s", ratio=ratio, against=against, limit=2)
            yield row
        peak = measured["plan_peak_mb"]
        yield Row(
            f"memory of the process that plans, {name}",
            peak,
            "MB",
            goal=f"<= {PLAN_LIMIT_MB}",
            met=peak <= PLAN_LIMIT_MB,
        )
        before = (measured["blocks"], per_block)


def build(folder: Path, blocks: int) -> None:
    """Versions that each replace a hundred texts; all but the newer half have expired."""
    versions = max(2, blocks // (BLOCKS_PER_VERSION + 3))
    with analemma.open(folder, settings=Settings(sqlite_synchronous="NORMAL", pack_threshold_bytes=1 << 30)) as app:
        texts = entries(BLOCKS_PER_VERSION, TEXT_BYTES)
        for version in range(versions):
            state = {key: f"{version:08}{text}" for key, text in texts.items()}
            app.kernel.save_state_delta({"entries": state}, **PLACE)
        app.kernel.set_retention(**PLACE, keep_last=versions // 2)
        app.kernel.expire(**PLACE)


def measure(folder: str) -> dict[str, float]:
    """In a process of its own, because of the memory."""
    with analemma.open(folder) as app:
        started = time.perf_counter()
        plan = app.gc.plan(grace_s=0)
        planned = time.perf_counter()
        peak = peak_mb()
        app.gc.run(grace_s=0, force=True)
        doomed = time.perf_counter()
        app.gc.run(grace_s=0, force=True)
        deleted = time.perf_counter()
    return {
        "blocks": plan.total,
        "plan_s": planned - started,
        "doom_s": doomed - planned,
        "delete_s": deleted - doomed,
        "plan_peak_mb": peak,
    }


def peak_mb() -> float:
    """The most memory that this process has had. (What the system tells otherwise includes the process that started
    it.)"""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def peers(versions: int) -> Iterator[Row]:
    """The same table and changes in each; then everything but the newest version is let go, and collected."""
    table = entries(2000, 200)
    contenders: list[tuple[str, tuple[str, ...], Callable[[Path], Contender], Callable[[Any, Path], None]]] = [
        ("icechunk expire + gc", icechunk_store.PACKAGES, icechunk_store.IcechunkStore, collect_icechunk),
        ("doltlite dolt_gc", doltlite_process.PACKAGES, doltlite_process.Doltlite, collect_doltlite),
        ("git gc", git_repository.PACKAGES, git_repository.GitRepository, collect_git),
    ]
    ours: list[float] = []
    theirs: dict[str, list[float]] = {}
    skipped: dict[str, str] = {}
    for _ in range(ROUNDS):
        with temporary_folder() as folder:
            ours.append(timed_collection(Ours(folder / "ours"), table, versions, collect_ours, folder / "ours"))
            for title, packages, make, collect in contenders:
                reason = missing(packages)
                if title == "git gc" and shutil.which("git") is None:
                    reason = "git is not installed"
                if reason is not None:
                    skipped[title] = reason
                    continue
                place = folder / title.split()[0]
                took = timed_collection(make(place), table, versions, collect, place)
                theirs.setdefault(title, []).append(took)
    name = f"collect {versions} versions of 2,000 entries"
    for title, *_ in contenders:
        if title in skipped:
            yield Row.skip(f"{name}, beside {title}", skipped[title])
            continue
        mine, others = (statistics.median(each) * 1000 for each in (ours, theirs[title]))
        yield less(f"{name}, beside {title}", "ms", mine, others, title, limit=1)


def timed_collection(
    contender: Any, table: dict[str, str], versions: int, collect: Callable[[Any, Path], None], place: Path
) -> float:
    """Seconds that it takes to collect."""
    with closing(contender):
        contender.timed("fill", table)
        keys = list(table)
        for version in range(versions):
            contender.timed("change", keys[version * 7 % len(keys)], f"{version} " + table[keys[0]][:190])
        started = time.perf_counter()
        collect(contender, place)
        return time.perf_counter() - started


def collect_ours(ours: Ours, place: Path) -> None:
    """Expiry and both passes."""
    ours.kernel.set_retention(**PLACE, keep_last=1)
    for _ in range(2):
        ours.app.gc.run(grace_s=0, force=True)


def collect_icechunk(peer: Any, place: Path) -> None:
    now = dt.datetime.now(dt.UTC)
    peer._repository.expire_snapshots(older_than=now)
    peer._repository.garbage_collect(now)


def collect_doltlite(peer: Any, place: Path) -> None:
    """Its collection keeps all of history, and wants the file to itself."""
    peer.reopen()
    peer.compact()


def collect_git(peer: Any, place: Path) -> None:
    """History is cut off below the newest commit, as expiry would; then what nothing leads to is pruned."""
    (place / "shallow").write_text(f"{peer._versions[-1]}\n", encoding="utf-8")
    subprocess.run(["git", "-C", str(place), "gc", "--quiet", "--prune=now"], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
