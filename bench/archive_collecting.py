"""Collecting archives: how a plan, a run that marks and a run that deletes grow with the number of keys, in time and
memory. The object store is made up while it is listed, so that what is measured is the collector and its catalog."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import analemma
from analemma.archives.archives import Archives
from analemma.archives.names import META, archives_prefix, unit_prefix
from analemma.blocks.port import ObjectInfo
from analemma.catalog.engine.db import Transaction
from bench.harness import Row, temporary_folder
from tests.servers import PostgresServer, postgres_missing

KEYS_PER_WORKSPACE = 10
"""Five archives of two objects each. One is needed, and in every third workspace another is on its way."""
DATA = "home-0123456789abcdef.tar.zst"
LIMIT_MB = 100
BATCH = 5000


def growth(sizes: tuple[int, ...]) -> Iterator[Row]:
    """The same on both databases."""
    yield from _growth(sizes, "SQLite", None)
    reason = postgres_missing()
    if reason is not None:
        yield Row.skip("collecting archives on PostgreSQL", reason)
        return
    server = PostgresServer(durable=True)
    try:
        yield from _growth(sizes, "PostgreSQL", server)
    finally:
        server.stop()


def _growth(sizes: tuple[int, ...], database: str, server: PostgresServer | None) -> Iterator[Row]:
    """A plan and two runs at each size, beside the same per key at the size before."""
    before: dict[str, float] | None = None
    for size in sizes:
        with temporary_folder() as folder:
            url = str(folder / "store") if server is None else server.create_database()
            build(url, size // KEYS_PER_WORKSPACE)
            done = subprocess.run(
                [sys.executable, "-m", "bench.archive_collecting", url, str(size // KEYS_PER_WORKSPACE)],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
        measured = json.loads(done.stdout)
        name = f"{measured['keys']:,} archive keys, {size // KEYS_PER_WORKSPACE:,} workspaces, {database}"
        per_key = {verb: measured[verb] / measured["keys"] for verb in ("plan_s", "bloom_s", "mark_s", "delete_s")}
        titles = {"plan_s": "plan", "bloom_s": "plan by Bloom filter", "mark_s": "marking", "delete_s": "deleting"}
        for verb, title in titles.items():
            row = Row(f"{title}, {name}", measured[verb], "s")
            if before is not None:
                row = replace(row, ratio=per_key[verb] / before[verb], against="the same per key at a tenth")
            yield row
        peak = f"peak memory of all that, {name}"
        yield Row.at_most(
            peak, measured["peak_mb"], "MB", ratio=measured["peak_mb"] / LIMIT_MB, against=f"{LIMIT_MB} MB", limit=1.0
        )
        before = per_key


def build(url: str, workspaces: int) -> None:
    """The rows of so many workspaces, and of their archives."""
    with closing(analemma.open(url, migrate=True)) as app:
        tenant = app.default.id
        for start in range(0, workspaces, BATCH):
            numbers = range(start, min(start + BATCH, workspaces))

            def write(tx: Transaction, numbers: range = numbers) -> None:
                rows = [_workspace(tenant, number) for number in numbers]
                tx.execute_many("add_workspace", rows)
                units = [(tenant, _id(number), _op(number, unit), 1) for number in numbers for unit in range(5)]
                tx.execute_many("add_unit", units)

            app.catalog.engine.write(write)


def _id(number: int) -> str:
    return f"workspace-{number:08}"


def _op(number: int, unit: int) -> str:
    return f"{unit:02}{number:030x}"


def _workspace(tenant: int, number: int) -> tuple[Any, ...]:
    busy = number % 3 == 0
    op_id, archive_op = _op(number, 4 if busy else 3), _op(number, 3)
    key = f"{unit_prefix('default', _id(number), archive_op)}/{META}"
    return (
        *(tenant, _id(number), "ann", f"/volumes/{number}", "WARM" if busy else "COLD"),
        *("ARCHIVING" if busy else "NONE", None, op_id, archive_op, key),
        *(1, None, 1 << 60 if busy else 0, None, 1, 1, None),
    )


class MadeUpObjects:
    """Lists what `build` knows of, and forgets what is deleted."""

    supports_tags = False

    def __init__(self, workspaces: int) -> None:
        self._workspaces = workspaces
        self.deleted = 0

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        if prefix != archives_prefix("default"):
            for name in (DATA, META):
                yield ObjectInfo(f"{prefix}/{name}", 1000, 0)
            return
        for number in range(self._workspaces):
            for unit in range(5):
                folder = unit_prefix("default", _id(number), _op(number, unit))
                for name in (DATA, META):
                    yield ObjectInfo(f"{folder}/{name}", 1000, 0)

    def delete_many(self, keys: Iterable[str]) -> None:
        self.deleted += len([*keys])


def measure(url: str, workspaces: int) -> dict[str, float]:
    """A plan either way, a run that marks, and one that deletes."""
    took: dict[str, float] = {}
    with closing(analemma.open(url, migrate=True)) as app:
        objects = MadeUpObjects(workspaces)
        parts = replace(app.archives._parts, objects=objects)  # type: ignore[arg-type]
        archives = Archives(parts)
        settings = analemma.Settings(**{**vars(parts.settings), "archive_gc_filter": "bloom"})
        filtered = Archives(replace(parts, settings=settings))

        def timed(name: str, work: Any) -> Any:
            started = time.perf_counter()
            done = work()
            took[name] = time.perf_counter() - started
            return done

        plan = timed("plan_s", archives.gc_plan)
        timed("bloom_s", filtered.gc_plan)
        marked = timed("mark_s", lambda: archives.gc_run(0)).marked
        report = timed("delete_s", lambda: archives.gc_run(0))
        assert marked == report.deleted == plan.to_mark == plan.counts.orphans > 0
        assert objects.deleted == 2 * report.deleted
        took["keys"] = plan.counts.keys
    took["peak_mb"] = _peak_mb()
    return took


def _peak_mb() -> float:
    """The most memory that this process has had, without that of the process that started it where the system says."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
