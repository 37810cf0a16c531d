"""The view pipeline: ingest and compile beside bare SQL that writes the same rows, incremental beside full compiles,
and how long after its ingest an entity is seen in its view."""

from __future__ import annotations

import sqlite3
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

import analemma
from analemma.catalog.engine.sqlite.engine import SqliteEngine
from analemma.store.store import App
from bench.commits import Round, compare
from bench.harness import Row, alternate, temporary_folder
from bench.workload import prose
from tests.raw_rows import connect
from tests.servers import PostgresServer, postgres_missing

BOOKSHOP = Path(__file__).parent.parent / "examples" / "bookshop" / "contracts.yaml"
TENANT = "shop"
VIEW = "view.book.detail.v1"
FLOOR_GOAL = 0.4
INCREMENTAL_GOAL = 5.0
SLICES = 20
LONGEST_WAIT_S = 10.0

Insert = tuple[str, list[Any]]
Query = Callable[[str, Sequence[Any]], tuple[list[str], list[tuple[Any, ...]]]]
"""Runs a statement with `?` for parameters: the names of the columns, and the rows."""


def run(quick: bool) -> Iterator[Row]:
    """Everything, on both databases."""
    entities, rounds, arrivals = (40, 5, 60) if quick else (150, 11, 400)
    with temporary_folder() as folder:
        yield from _on_sqlite(folder, entities, rounds, arrivals)
    reason = postgres_missing()
    if reason is not None:
        yield Row.skip("pipeline, PostgreSQL", reason)
        return
    server = PostgresServer(durable=True)
    try:
        with temporary_folder() as folder:
            yield from _on_postgres(server, folder, entities, rounds, arrivals)
    finally:
        server.stop()


def _on_sqlite(folder: Path, entities: int, rounds: int, arrivals: int) -> Iterator[Row]:
    with analemma.open(folder / "ours") as app, analemma.open(folder / "floor") as bare:
        assert isinstance(app.catalog.engine, SqliteEngine) and isinstance(bare.catalog.engine, SqliteEngine)
        reading = sqlite3.connect(app.catalog.engine.path)
        bare.tenant(TENANT)

        def query(sql: str, parameters: Sequence[Any]) -> tuple[list[str], list[tuple[Any, ...]]]:
            cursor = reading.execute(sql, parameters)
            return [column[0] for column in cursor.description], cursor.fetchall()

        shop = Bookshop(app, query)
        floor = sqlite_floor(bare.catalog.engine._writer._tx.connection, shop)
        yield _floor_row("SQLite", shop, floor, entities, rounds)
        reading.close()
    yield _incremental("SQLite", str(folder / "slices"), None, rounds)
    yield from _latency("SQLite", str(folder / "latency"), None, arrivals)


def _on_postgres(server: PostgresServer, folder: Path, entities: int, rounds: int, arrivals: int) -> Iterator[Row]:
    objects = folder.as_uri()
    ours, floor = server.create_database(), server.create_database()
    with (
        analemma.open(ours, objects=objects, migrate=True) as app,
        analemma.open(floor, objects=objects, migrate=True) as bare,
        connect(ours, autocommit=True) as reading,
        connect(floor, autocommit=True) as writing,
    ):
        bare.tenant(TENANT)

        def query(sql: str, parameters: Sequence[Any]) -> tuple[list[str], list[tuple[Any, ...]]]:
            cursor = reading.execute(sql.replace("?", "%s"), parameters, binary=True)
            assert cursor.description is not None
            return [column.name for column in cursor.description], cursor.fetchall()

        shop = Bookshop(app, query)
        yield _floor_row("PostgreSQL", shop, postgres_floor(writing, shop), entities, rounds)
    yield _incremental("PostgreSQL", server.create_database(), objects, rounds)
    yield from _latency("PostgreSQL", server.create_database(), objects, arrivals)


class Bookshop:
    """Ingests and compiles books, and hands out the rows that this made, for the floor to write."""

    def __init__(self, app: App, query: Query) -> None:
        app.contracts.load(BOOKSHOP)
        self._shop = app.tenant(TENANT)
        self._query = query
        self._number = 0
        self._free: list[str] = []
        self._shop.ingest("AUTHOR", "a1", {"name": "Ursula K. Le Guin", "country": "US"})
        self._shop.compile("AUTHOR", "a1")

    def round(self, count: int) -> float:
        """That many books, each ingested and compiled: two transactions."""
        books = [book(self._number + number) for number in range(count)]
        self._number += count
        started = time.perf_counter()
        for each in books:
            self._shop.ingest("BOOK", each["isbn"], each)
            self._shop.compile("BOOK", each["isbn"])
        took = time.perf_counter() - started
        self._free += [each["isbn"] for each in books]
        return took

    def author_rows(self) -> list[list[Insert]]:
        """What the floor needs before its first book."""
        return self._rows_of("AUTHOR", "a1")

    def rows(self, count: int) -> list[list[Insert]]:
        """The oldest books that were not asked for yet, as the inserts of two transactions each."""
        taken, self._free = self._free[:count], self._free[count:]
        return [transaction for isbn in taken for transaction in self._rows_of("BOOK", isbn)]

    def _rows_of(self, entity_type: str, key: str) -> list[list[Insert]]:
        (number, tenant), *_ = self._query(
            "SELECT id, tenant FROM entity WHERE type = ? AND key = ?", [entity_type, key]
        )[1]
        aggregate = f"{TENANT}:{entity_type}#{TENANT}#{key}"
        of_lane = "tenant = ? AND aggregatetype = 'RAW_DATA' AND aggregateid = ?"
        raw_blocks = "tenant = ? AND id IN (SELECT root FROM raw WHERE entity = ?)"
        slice_blocks = "tenant = ? AND id IN (SELECT root FROM slice WHERE entity = ?)"
        return [
            [
                self._inserts("entity", "id = ?", [number]),
                self._inserts("raw", "entity = ?", [number]),
                self._inserts("block", raw_blocks, [tenant, number]),
                self._inserts("lane", of_lane, [tenant, aggregate]),
                self._inserts("outbox", of_lane, [tenant, aggregate]),
            ],
            [
                ("UPDATE entity SET compile_seq = compile_seq + 1 WHERE id = ?", [(number,)]),
                self._inserts("compile", "entity = ?", [number]),
                self._inserts("slice", "entity = ?", [number]),
                self._inserts("block", slice_blocks, [tenant, number]),
                self._inserts("index_entry", "entity = ?", [number]),
            ],
        ]

    def _inserts(self, table: str, condition: str, parameters: Sequence[Any]) -> Insert:
        names, rows = self._query(f"SELECT * FROM {table} WHERE {condition}", parameters)  # noqa: S608
        places = ", ".join("?" for _ in names)
        ignoring = " ON CONFLICT DO NOTHING" if table == "block" else ""
        return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places}){ignoring}", rows  # noqa: S608


def book(number: int) -> dict[str, Any]:
    """A book of about 1 KB."""
    return {
        "isbn": f"978-{number:07}",
        "title": prose(number, 60),
        "price": 900 + number,
        "authorId": "a1",
        "tags": ["sf", f"shelf-{number % 50}", prose(number, 12)],
        "stock": {"sites": [{"name": f"site {site}", "count": number % 9 + site} for site in range(8)]},
        "audit": {"by": "import", "note": prose(number + 1, 300)},
    }


def sqlite_floor(connection: sqlite3.Connection, shop: Bookshop) -> Round:
    """The same rows by executemany between BEGIN IMMEDIATE and COMMIT."""

    def write(transactions: list[list[Insert]]) -> float:
        started = time.perf_counter()
        for inserts in transactions:
            connection.execute("BEGIN IMMEDIATE")
            for sql, rows in inserts:
                connection.executemany(sql, rows)
            connection.execute("COMMIT")
        return time.perf_counter() - started

    write(shop.author_rows())
    return lambda count: write(shop.rows(count))


def postgres_floor(connection: psycopg.Connection[Any], shop: Bookshop) -> Round:
    """The same rows, each transaction's statements sent without waiting in between."""

    def write(transactions: list[list[Insert]]) -> float:
        sent = [[(sql.replace("?", "%s"), rows) for sql, rows in inserts] for inserts in transactions]
        started = time.perf_counter()
        for inserts in sent:
            with connection.pipeline(), connection.transaction(), connection.cursor(binary=True) as cursor:
                for sql, rows in inserts:
                    for row in rows:
                        cursor.execute(sql, row)
        return time.perf_counter() - started

    write(shop.author_rows())
    return lambda count: write(shop.rows(count))


def _floor_row(database: str, shop: Bookshop, floor: Round, entities: int, rounds: int) -> Row:
    # One round ahead, so that either side may begin.
    shop.round(entities)
    name = f"ingest and compile a book, {database}, durable"
    return compare(name, shop.round, floor, against="bare SQL", commits=entities, rounds=rounds, goal=FLOOR_GOAL)


def _incremental(database: str, url: str, objects: str | None, rounds: int) -> Row:
    """One of twenty sections of a document changes, and each is a slice."""
    with analemma.open(url, objects=objects, migrate=True) as app:
        app.contracts.load(_sections())
        tenant = app.tenant(TENANT)
        document = {f"section{number}": _section(number, 0) for number in range(SLICES)}
        tenant.ingest("REPORT", "r", document)
        tenant.compile("REPORT", "r")
        edits = iter(range(1, 10**9))

        def compile_in(mode: str) -> Callable[[], None]:
            def change() -> None:
                number = next(edits)
                document[f"section{number % SLICES}"] = _section(number % SLICES, number)
                tenant.ingest("REPORT", "r", document)
                started = time.perf_counter()
                tenant.compile("REPORT", "r", mode=mode)
                took[mode].append(time.perf_counter() - started)

            return change

        took: dict[str, list[float]] = {"full": [], "incremental": []}
        alternate(compile_in("full"), compile_in("incremental"), rounds)
        full, incremental = (statistics.median(took[mode]) * 1000 for mode in ("full", "incremental"))
    name = f"compile after 1 of {SLICES} slices changed, incremental, {database}"
    return Row.at_least(
        name, incremental, "ms", ratio=full / incremental, against=f"full ({full:.3g} ms)", limit=INCREMENTAL_GOAL
    )


def _section(number: int, edit: int) -> dict[str, Any]:
    """About 10 KB."""
    return {
        "heading": prose(number + edit, 80),
        "rows": [
            {"name": prose(number * 100 + row, 30), "value": row * number + edit, "unit": "mm"} for row in range(150)
        ],
    }


def _sections() -> list[dict[str, Any]]:
    common = {"version": "1.0.0", "status": "ACTIVE", "entityType": "REPORT"}
    slices = [
        {
            "type": f"SECTION{number}",
            "buildRules": {
                "type": "MapFields",
                "mappings": [
                    {"from": f"section{number}.heading", "to": "title"},
                    {"from": f"section{number}.rows[*].value", "to": "rows[*].amount"},
                    {"from": f"section{number}.rows[*].name", "to": "rows[*].label"},
                ],
            },
        }
        for number in range(SLICES)
    ]
    unit = {"ignore": [f"/section{number}/rows/*/unit" for number in range(SLICES)]}
    schema = {"fields": [{"name": f"section{number}", "type": "object"} for number in range(SLICES)]}
    return [
        {"kind": "ENTITY_SCHEMA", "id": "entity.report.v1", **common, **schema},
        {"kind": "RULESET", "id": "ruleset.report.v1", **common, **unit, "slices": slices},
    ]


def _latency(database: str, url: str, objects: str | None, arrivals: int) -> Iterator[Row]:
    """A worker of another connection waits for events; how long until a view shows what was ingested."""
    with analemma.open(url, objects=objects, migrate=True) as app:
        app.contracts.load(BOOKSHOP)
        shop = app.tenant(TENANT)
        view = shop.view(VIEW)
        took: list[float] = []
        with _working(url, objects):
            for number in range(arrivals):
                each = book(number)
                started = time.perf_counter()
                version = shop.ingest("BOOK", each["isbn"], each).version
                while not _is_served(view, each["isbn"], version):
                    if time.perf_counter() - started > LONGEST_WAIT_S:
                        raise TimeoutError(f"{each['isbn']} was not compiled")
                    time.sleep(0.0005)
                took.append(time.perf_counter() - started)
                # Until the worker is idle again, and waits.
                time.sleep(0.02)
        idle_s = app.settings.outbox_poll_idle_s
    took.sort()
    for name, seconds in (("p50", took[len(took) // 2]), ("p99", took[len(took) * 99 // 100])):
        yield Row.at_least(
            f"from ingest to view, {name}, {database}",
            seconds * 1000,
            "ms",
            ratio=idle_s / seconds,
            against=f"the idle poll interval ({idle_s:g} s)",
            limit=1,
        )


def _is_served(view: Any, key: str, version: str) -> bool:
    try:
        return bool(view.get(key).meta.version == version)
    except analemma.errors.NotFound:
        return False


@contextmanager
def _working(url: str, objects: str | None) -> Iterator[None]:
    with analemma.open(url, objects=objects) as app:
        worker = app.worker(concurrency=1)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield
        finally:
            worker.stop()
            thread.join()
