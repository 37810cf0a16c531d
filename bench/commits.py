"""Commits per second of the catalog, beside bare SQL that writes the same rows on the same connection settings.

Floor and ours take turns in short rounds and each pair gives one ratio: a slow minute of the machine hits both.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from analemma.catalog.engine.db import ARRAYS
from analemma.catalog.engine.postgres.engine import PostgresEngine
from analemma.catalog.engine.sqlite.engine import SqliteEngine
from analemma.catalog.opening import open_catalog
from analemma.catalog.port import BranchKey, CommitRequest, Head, KernelCatalog, TenantId
from analemma.catalog.sql_catalog import SqlCatalog
from analemma.testing.commits import make_block, make_request
from bench.harness import Row, temporary_folder
from tests.servers import PostgresServer

BLOCKS = 4
BLOCK_BYTES = 2000
PRODUCERS = 32

Round = Callable[[int], float]
"""Makes that many commits; the seconds they took."""

Requests = Callable[[int], list[CommitRequest]]
"""Gives that many commits to make."""

FLOOR_BLOCK = "INSERT INTO block (tenant, id, size, codec, body) VALUES (?, ?, ?, ?, ?)"
FLOOR_MANIFEST = (
    "INSERT INTO manifest (tenant, id, owner, workflow, branch, version, parent, root, created_at, execution, segment)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
FLOOR_HEAD = (
    "UPDATE head SET manifest = ?, version = ?, journal_seq = ?, journal_tip = ?"
    " WHERE tenant = ? AND owner = ? AND workflow = ? AND branch = ?"
)
FLOOR_JOURNAL = (
    "INSERT INTO journal (tenant, owner, workflow, branch, seq, kind, manifest, body, hash, created_at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
FLOOR_POSTGRES = """
WITH moved AS (
    UPDATE head SET manifest = $1, version = $2, journal_seq = $3, journal_tip = $4
    WHERE tenant = $5 AND owner = $6 AND workflow = $7 AND branch = $8
), blocks AS (
    INSERT INTO block (tenant, id, size, codec, body)
    SELECT $9, * FROM unnest($10::bytea[], $11::bigint[], $12::bigint[], $13::bytea[])
), version AS (
    INSERT INTO manifest
        (tenant, id, owner, workflow, branch, version, parent, root, created_at, execution, segment)
    VALUES ($14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)
)
INSERT INTO journal (tenant, owner, workflow, branch, seq, kind, manifest, body, hash, created_at)
VALUES ($25, $26, $27, $28, $29, $30, $31, $32, $33, $34)
"""


@dataclass
class Line:
    """A branch that grows by one realistic commit at a time: four blocks of 2 KB, one base, manifest, journal."""

    tenant: TenantId
    key: BranchKey
    head: Head | None = None

    def requests(self, count: int) -> list[CommitRequest]:
        made = []
        for _ in range(count):
            blocks = [make_block(os.urandom(BLOCK_BYTES)) for _ in range(BLOCKS - 1)]
            made.append(make_request(self.tenant, self.head, blocks, key=self.key))
            self.head = made[-1].head
        return made


def catalog_round(catalog: KernelCatalog, line: Line) -> Round:
    """Ours, one writer."""

    def run(count: int) -> float:
        requests = line.requests(count)
        started = time.perf_counter()
        for request in requests:
            catalog.commit(request)
        return time.perf_counter() - started

    return run


def group_round(catalog: KernelCatalog, lines: list[Line]) -> Round:
    """Ours, one thread per line."""

    def run(count: int) -> float:
        work = [line.requests(count // len(lines)) for line in lines]
        start = threading.Barrier(len(lines) + 1)

        def produce(requests: list[CommitRequest]) -> None:
            start.wait()
            for request in requests:
                catalog.commit(request)

        threads = [threading.Thread(target=produce, args=(requests,)) for requests in work]
        for thread in threads:
            thread.start()
        start.wait()
        started = time.perf_counter()
        for thread in threads:
            thread.join()
        return time.perf_counter() - started

    return run


def sqlite_floor(connection: sqlite3.Connection, requests: Requests) -> Round:
    """The same rows by executemany between BEGIN IMMEDIATE and COMMIT."""

    def run(count: int) -> float:
        rows = [floor_rows(request) for request in requests(count)]
        started = time.perf_counter()
        for head, blocks, manifest, journal in rows:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(FLOOR_HEAD, head)
            connection.executemany(FLOOR_BLOCK, blocks)
            connection.executemany(FLOOR_MANIFEST, manifest)
            connection.executemany(FLOOR_JOURNAL, journal)
            connection.execute("COMMIT")
        return time.perf_counter() - started

    return run


def postgres_floor(connection: psycopg.Connection[Any], requests: Requests) -> Round:
    """The same rows in one statement, without comparing, locking or sparing anything."""

    def run(count: int) -> float:
        rows = []
        for request in requests(count):
            head, blocks, manifest, journal = floor_rows(request)
            _, ids, sizes, codecs, bodies = map(list, zip(*blocks, strict=True))
            kinds = ("bytea", "bigint", "bigint", "bytea")
            given = (ids, sizes, codecs, bodies)
            columns = [ARRAYS[kind](values) for kind, values in zip(kinds, given, strict=True)]
            rows.append([*head, request.tenant, *columns, *manifest[0], *journal[0]])
        started = time.perf_counter()
        for row in rows:
            connection.execute(FLOOR_POSTGRES, row)
        return time.perf_counter() - started

    return run


def floor_rows(request: CommitRequest) -> tuple[Any, Any, Any, Any]:
    """The bare tuples of a request."""
    tenant, head, manifest, row = request.tenant, request.head, request.manifest, request.record
    key = (head.key.owner, head.key.workflow, head.key.branch)
    return (
        (head.manifest, head.version, head.journal_seq, head.journal_tip, tenant, *key),
        [(tenant, block.id, block.size, block.codec, block.body) for block in request.blocks],
        [
            (
                tenant,
                manifest.id,
                *key,
                manifest.version,
                manifest.parent,
                manifest.root,
                manifest.created_at_us,
                manifest.execution,
                manifest.segment,
            )
        ],
        [(tenant, *key, row.seq, row.kind, row.manifest, row.body, row.hash, row.created_at_us)],
    )


def compare(name: str, ours: Round, floor: Round, *, against: str, commits: int, rounds: int, goal: float) -> Row:
    """Alternate the two and report the median ratio of neighbouring rounds."""
    ratios, rates = [], []
    for number in range(rounds):
        first, second = (ours, floor) if number % 2 else (floor, ours)
        took = {first: first(commits), second: second(commits)}
        ratios.append(took[floor] / took[ours])
        rates.append(commits / took[ours])
    rate, ratio = statistics.median(rates), statistics.median(ratios)
    return Row.at_least(name, rate, "commits/s", ratio=ratio, against=against, limit=goal)


def _first(catalog: SqlCatalog, line: Line) -> Line:
    # Branches exist before the clock starts: a benchmark of commits, not of creation.
    for request in line.requests(1):
        catalog.commit(request)
    return line


def run_sqlite(*, commits: int, rounds: int) -> list[Row]:
    """Durable commits on SQLite: one writer against the floor, then 32 producers against one writer."""
    with temporary_folder() as folder:
        mine, bare = open_catalog(folder / "ours"), open_catalog(folder / "floor")
        assert isinstance(bare.engine, SqliteEngine)
        try:
            tenant = mine.tenant("bench")
            bare.tenant("bench")
            single = catalog_round(mine, _first(mine, Line(tenant, BranchKey("ann", "single"))))
            line = _first(bare, Line(tenant, BranchKey("ann", "single")))
            floor = sqlite_floor(bare.engine._writer._tx.connection, line.requests)
            lines = [_first(mine, Line(tenant, BranchKey("ann", f"group-{n}"))) for n in range(PRODUCERS)]
            return [
                compare(
                    "SQLite, durable, one writer",
                    single,
                    floor,
                    against="bare SQL",
                    commits=commits,
                    rounds=rounds,
                    goal=0.6,
                ),
                compare(
                    f"SQLite, durable, {PRODUCERS} producers",
                    group_round(mine, lines),
                    single,
                    against="one writer",
                    commits=commits,
                    rounds=rounds,
                    goal=1.6,
                ),
            ]
        finally:
            mine.close()
            bare.close()


def run_postgres(*, commits: int, rounds: int) -> list[Row]:
    """Commits on PostgreSQL, one writer against the floor."""
    server = PostgresServer(durable=True)
    try:
        mine, bare = open_catalog(server.create_database()), open_catalog(server.create_database())
        assert isinstance(bare.engine, PostgresEngine)
        try:
            tenant = mine.tenant("bench")
            bare.tenant("bench")
            single = catalog_round(mine, _first(mine, Line(tenant, BranchKey("ann", "single"))))
            line = _first(bare, Line(tenant, BranchKey("ann", "single")))
            with bare.engine.pool.connect() as connection:
                connection.execute("SET search_path TO analemma")
                floor = postgres_floor(connection, line.requests)
                return [
                    compare(
                        "PostgreSQL, durable, one writer",
                        single,
                        floor,
                        against="bare SQL, one statement",
                        commits=commits,
                        rounds=rounds,
                        goal=0.65,
                    )
                ]
        finally:
            mine.close()
            bare.close()
    finally:
        server.stop()


def run(quick: bool) -> list[Row]:
    """Every benchmark of this module."""
    commits, rounds = (160, 21) if quick else (1600, 15)
    return [*run_sqlite(commits=commits, rounds=rounds), *run_postgres(commits=commits, rounds=rounds)]
