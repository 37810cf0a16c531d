"""Fanout: an author is renamed, and every book that shows the name follows; beside bare SQL that writes the same rows,
in a transaction each, and in the same transactions."""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg

import analemma
from analemma.catalog.engine.sqlite.engine import SqliteEngine
from analemma.contracts.loading import load_contracts
from analemma.store.store import App
from bench.harness import Row, temporary_folder
from bench.pipeline import BOOKSHOP, TENANT, Insert, Query, book
from tests.raw_rows import connect
from tests.servers import PostgresServer, postgres_missing

GOAL = 0.5
PAGE = 100
UPDATE = "UPDATE entity SET compile_seq = compile_seq + 1, ship_seq = ship_seq + 1 WHERE id = ?"

Floor = Callable[[list[list[Insert]]], float]
"""Writes some transactions; how long that took."""


def run(quick: bool) -> Iterator[Row]:
    """Both databases."""
    books, rounds = (1000, 5) if quick else (5000, 9)
    with temporary_folder() as folder:
        yield from _on_sqlite(folder, books, rounds)
    reason = postgres_missing()
    if reason is not None:
        yield Row.skip("fanout, PostgreSQL", reason)
        return
    server = PostgresServer(durable=True)
    try:
        with temporary_folder() as folder:
            yield from _on_postgres(server, folder, books, rounds)
    finally:
        server.stop()


class Bookshop:
    """Books of one author, who is renamed again and again."""

    def __init__(self, app: App, books: int, query: Query | None = None) -> None:
        # What sinks get is another benchmark's.
        documents = [each.document for each in load_contracts(BOOKSHOP).contracts if each.kind != "SINKRULE"]
        app.contracts.load(documents)
        self._app = app
        self._shop = app.tenant(TENANT)
        self._query = query
        self._renames = 0
        self.count = books
        self._shop.ingest("AUTHOR", "a1", {"name": "Ursula K. Le Guin", "country": "US"})
        self._shop.compile("AUTHOR", "a1")
        made = [book(number) for number in range(books)]
        self._shop.ingest_many([("BOOK", each["isbn"], each) for each in made])
        app.worker(1).drain()

    def rename(self) -> float:
        """From the rename until the last book has followed, with the one worker that does it."""
        self._renames += 1
        self._shop.ingest("AUTHOR", "a1", {"name": f"Le Guin {self._renames}", "country": "US"})
        self._shop.compile("AUTHOR", "a1")
        started = time.perf_counter()
        self._app.worker(1).drain()
        took = time.perf_counter() - started
        result = self._app.fanouts.get("AUTHOR", "a1", tenant=TENANT)
        assert (result.processed, result.skipped, result.failed) == (self.count, 0, 0), result
        return took

    def transactions(self, page: int) -> list[list[Insert]]:
        """The rows of the last rename, so many books in a transaction."""
        newest = self._renames + 1
        compiles = self._rows("compile", newest)
        slices = self._rows("slice", newest)
        numbers = [row[0] for row in compiles[1]]
        assert len(numbers) == len(slices[1]) == self.count
        of_slices = self._insert("block", "id IN (SELECT root FROM slice WHERE revision = ?)", [newest])
        found = [
            [
                (UPDATE, [(number,) for number in numbers[at : at + page]]),
                (compiles[0], compiles[1][at : at + page]),
                (slices[0], slices[1][at : at + page]),
            ]
            for at in range(0, self.count, page)
        ]
        found[0].insert(0, of_slices)
        return found

    def _rows(self, table: str, revision: int) -> Insert:
        books = "entity IN (SELECT id FROM entity WHERE type = 'BOOK')"
        return self._insert(table, f"revision = ? AND {books} ORDER BY entity", [revision])

    def _insert(self, table: str, condition: str, parameters: Sequence[Any]) -> Insert:
        assert self._query is not None
        names, rows = self._query(f"SELECT * FROM {table} WHERE {condition}", parameters)  # noqa: S608
        places = ", ".join("?" for _ in names)
        # A round of each: what both write may be there already, but for the blocks that is a test of its own.
        return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places}) ON CONFLICT DO NOTHING", rows  # noqa: S608


def _on_sqlite(folder: Path, books: int, rounds: int) -> Iterator[Row]:
    with (
        analemma.open(folder / "ours") as app,
        analemma.open(folder / "each") as each,
        analemma.open(folder / "pages") as pages,
    ):
        assert isinstance(app.catalog.engine, SqliteEngine)
        reading = sqlite3.connect(app.catalog.engine.path)

        def query(sql: str, parameters: Sequence[Any]) -> tuple[list[str], list[tuple[Any, ...]]]:
            cursor = reading.execute(sql, parameters)
            return [column[0] for column in cursor.description], cursor.fetchall()

        shop = Bookshop(app, books, query)
        floors: list[Floor] = []
        for bare in each, pages:
            Bookshop(bare, books)
            assert isinstance(bare.catalog.engine, SqliteEngine)
            floors.append(sqlite_floor(bare.catalog.engine._writer._tx.connection))
        yield from _compare("SQLite", shop, floors[0], floors[1], rounds)
        reading.close()


def _on_postgres(server: PostgresServer, folder: Path, books: int, rounds: int) -> Iterator[Row]:
    objects = folder.as_uri()
    ours, each, pages = server.create_database(), server.create_database(), server.create_database()
    with (
        analemma.open(ours, objects=objects, migrate=True) as app,
        connect(ours, autocommit=True) as reading,
        connect(each, autocommit=True) as of_each,
        connect(pages, autocommit=True) as of_pages,
    ):

        def query(sql: str, parameters: Sequence[Any]) -> tuple[list[str], list[tuple[Any, ...]]]:
            cursor = reading.execute(sql.replace("?", "%s"), parameters, binary=True)
            assert cursor.description is not None
            return [column.name for column in cursor.description], cursor.fetchall()

        shop = Bookshop(app, books, query)
        for url in each, pages:
            with analemma.open(url, objects=objects, migrate=True) as bare:
                Bookshop(bare, books)
        yield from _compare("PostgreSQL", shop, postgres_floor(of_each), postgres_floor(of_pages), rounds)


def sqlite_floor(connection: sqlite3.Connection) -> Floor:
    """executemany between BEGIN IMMEDIATE and COMMIT."""

    def write(transactions: list[list[Insert]]) -> float:
        started = time.perf_counter()
        for inserts in transactions:
            connection.execute("BEGIN IMMEDIATE")
            for sql, rows in inserts:
                connection.executemany(sql, rows)
            connection.execute("COMMIT")
        return time.perf_counter() - started

    return write


def postgres_floor(connection: psycopg.Connection[Any]) -> Floor:
    """Each transaction's statements sent without waiting in between."""

    def write(transactions: list[list[Insert]]) -> float:
        sent = [[(sql.replace("?", "%s"), rows) for sql, rows in inserts] for inserts in transactions]
        started = time.perf_counter()
        for inserts in sent:
            with connection.pipeline(), connection.transaction(), connection.cursor(binary=True) as cursor:
                for sql, rows in inserts:
                    for row in rows:
                        cursor.execute(sql, row)
        return time.perf_counter() - started

    return write


def _compare(database: str, shop: Bookshop, each: Floor, pages: Floor, rounds: int) -> Iterator[Row]:
    took: dict[str, list[float]] = {"ours": [], "each": [], "pages": []}
    shop.rename()
    for _ in range(rounds):
        took["ours"].append(shop.rename())
        took["each"].append(each(shop.transactions(1)))
        took["pages"].append(pages(shop.transactions(PAGE)))
    rate = statistics.median(shop.count / seconds for seconds in took["ours"])
    name = f"fanout to {shop.count} books, {database}, durable"
    each_ratio, page_ratio = (
        statistics.median(floor / ours for floor, ours in zip(took[floor_name], took["ours"], strict=True))
        for floor_name in ("each", "pages")
    )
    yield Row.at_least(name, rate, "entities/s", ratio=each_ratio, against="bare SQL, a transaction each", limit=GOAL)
    # Beside the same transactions it is mostly evaluating that is measured.
    yield Row(name, rate, "entities/s", page_ratio, f"bare SQL, {PAGE} in a transaction")
