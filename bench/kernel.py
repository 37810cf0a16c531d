"""The state kernel beside bare SQL that writes the rows its own saves made; and the price of a change as states
grow."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import analemma
from analemma.catalog.engine.postgres.engine import PostgresEngine
from analemma.catalog.engine.sqlite.engine import SqliteEngine
from analemma.catalog.opening import open_catalog
from analemma.catalog.port import CommitRequest, Committed
from analemma.catalog.sql_catalog import SqlCatalog
from analemma.store.store import App
from bench.commits import Round, compare, postgres_floor, sqlite_floor
from bench.contenders.ours import OWNER, WORKFLOW
from bench.harness import Row, temporary_folder
from bench.workload import entries, prose
from tests.servers import PostgresServer, postgres_missing

FIELDS = 50
FIELD_BYTES = 400
NOTE_BYTES = 200
GOAL = 0.5
ENTRY_BYTES = 1000
PART_ENTRIES = 100_000
"""Entries that one save adds to a growing state: 100 MB."""
CHANGES = 25


def run(quick: bool) -> Iterator[Row]:
    """Small saves on both databases, then one change in ever larger states."""
    saves, rounds = (100, 7) if quick else (400, 15)
    yield from small_saves_on_sqlite(saves, rounds)
    yield from small_saves_on_postgres(saves, rounds)
    sizes = {"1 MB": 1_000, "100 MB": 100_000} | ({} if quick else {"1 GB": 1_000_000})
    yield from changes_in_growing_states(sizes)


class Recorder:
    """Saves small deltas, and keeps the requests that reached the catalog: the floor writes the same rows later."""

    def __init__(self, app: App) -> None:
        self._kernel = app.kernel
        self._commit = app.catalog.commit
        self._made: list[CommitRequest] = []
        self._free: list[CommitRequest] = []
        self._number = 0
        app.catalog.commit = self._record  # type: ignore[method-assign]
        fields = {f"field-{number:02}": prose(number, FIELD_BYTES) for number in range(FIELDS)}
        self._save(fields | {"count": 0, "note": ""})
        self.first = self._made.pop()

    def round(self, count: int) -> float:
        """That many saves."""
        deltas = [
            {"count": self._number + number, "note": prose(self._number + number, NOTE_BYTES)}
            for number in range(count)
        ]
        self._number += count
        started = time.perf_counter()
        for delta in deltas:
            self._save(delta)
        took = time.perf_counter() - started
        self._free, self._made = self._free + self._made, []
        return took

    def requests(self, count: int) -> list[CommitRequest]:
        """The oldest recorded requests that were not asked for yet."""
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def _save(self, delta: dict[str, Any]) -> None:
        self._kernel.save_state_delta(delta, workflow_id=WORKFLOW, owner_id=OWNER)

    def _record(self, request: CommitRequest) -> Committed:
        self._made.append(request)
        return self._commit(request)


def small_saves_on_sqlite(saves: int, rounds: int) -> Iterator[Row]:
    """Two small fields of a 20 KB state, durable."""
    with temporary_folder() as folder, analemma.open(folder / "ours") as app:
        bare = open_catalog(folder / "floor")
        try:
            assert isinstance(bare.engine, SqliteEngine)
            recorder = _warmed(app, bare, saves)
            floor = sqlite_floor(bare.engine._writer._tx.connection, recorder.requests)
            yield _small_saves("SQLite", "bare SQL", recorder.round, floor, saves, rounds)
        finally:
            bare.close()


def small_saves_on_postgres(saves: int, rounds: int) -> Iterator[Row]:
    """The same on a durable server."""
    reason = postgres_missing()
    if reason is not None:
        yield Row.skip("save a small delta, PostgreSQL", reason)
        return
    server = PostgresServer(durable=True)
    try:
        with analemma.open(server.create_database(), migrate=True) as app:
            bare = open_catalog(server.create_database())
            try:
                assert isinstance(bare.engine, PostgresEngine)
                recorder = _warmed(app, bare, saves)
                with bare.engine.pool.connect() as connection:
                    floor = postgres_floor(connection, recorder.requests)
                    yield _small_saves("PostgreSQL", "bare SQL, one statement", recorder.round, floor, saves, rounds)
            finally:
                bare.close()
    finally:
        server.stop()


def _warmed(app: App, bare: SqlCatalog, saves: int) -> Recorder:
    bare.tenant(app.settings.tenant)
    recorder = Recorder(app)
    bare.commit(recorder.first)
    # One round ahead, so that either side may begin.
    recorder.round(saves)
    return recorder


def _small_saves(database: str, against: str, ours: Round, floor: Round, saves: int, rounds: int) -> Row:
    name = f"save a small delta, {database}, durable"
    return compare(name, ours, floor, against=against, commits=saves, rounds=rounds, goal=GOAL)


def changes_in_growing_states(sizes: dict[str, int]) -> Iterator[Row]:
    """A change of 1 KB: what it writes, asks and takes must not depend on the size of the state."""
    smallest: list[float] | None = None
    for size, count in sizes.items():
        with temporary_folder() as folder, analemma.open(folder) as app:
            _grow(app, count)
            measured = _measure_changes(app, count)
        first, smallest = smallest is None, smallest or measured
        units = ("statements that commit", "KB written", "ms")
        yield Row(f"change 1 KB in {size}", measured.pop(), "statements that read")
        for unit, value, base, limit in zip(units, measured, smallest, (1.0, 3.0, 3.0), strict=True):
            name = f"change 1 KB in {size}"
            if first:
                yield Row(name, value, unit)
            else:
                yield Row.at_most(name, value, unit, ratio=value / base, against="the smallest state", limit=limit)


def _grow(app: App, count: int) -> None:
    for first in range(0, count, PART_ENTRIES):
        part = entries(min(PART_ENTRIES, count - first), ENTRY_BYTES, first=first)
        delta = {f"part-{first // PART_ENTRIES}": part}
        app.kernel.save_state_delta(delta, workflow_id=WORKFLOW, owner_id=OWNER)


def _measure_changes(app: App, count: int) -> list[float]:
    """Median statements, kilobytes and milliseconds of a save, and the statements that read blocks before it. Places
    are far apart, so that a state larger than the cache is read down to each of them."""
    statements = app.catalog.engine.statements
    rows: list[tuple[int, float, float, int]] = []
    for number in range(CHANGES):
        place = number * count // CHANGES
        delta = {f"/part-{place // PART_ENTRIES}/entry-{place:07}": prose(number, ENTRY_BYTES)}
        before, reads_before = sum(statements.values()), statements["read_blocks"]
        started = time.perf_counter()
        commit = app.kernel.save_state_delta(delta, workflow_id=WORKFLOW, owner_id=OWNER)
        took = time.perf_counter() - started
        reads = statements["read_blocks"] - reads_before
        commits = sum(statements.values()) - before - reads
        rows.append((commits, commit.bytes_written / 1000, took * 1000, reads))
    return [statistics.median(column) for column in zip(*rows, strict=True)]
