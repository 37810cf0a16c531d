"""Backfills beside a bare loop that compiles the same entities one after the other: fresh ones, and such as are up to
date already; and what verifying them takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import analemma
from analemma.store.store import App
from bench.harness import Row, temporary_folder
from tests.servers import PostgresServer, postgres_missing

BOOKSHOP = Path(__file__).parent.parent / "examples" / "bookshop" / "contracts.yaml"
TENANT = "shop"
SCOPE = {"tenant": TENANT}
AUTHORS = 100
GOAL = 0.5


def run(quick: bool) -> Iterator[Row]:
    """Both databases; 100,000 entities on SQLite at full size."""
    with temporary_folder() as folder:
        count = 2_000 if quick else 100_000
        yield from _rows("SQLite", str(folder / "ours"), str(folder / "floor"), None, count)
    reason = postgres_missing()
    if reason is not None:
        yield Row.skip("backfill, PostgreSQL", reason)
        return
    server = PostgresServer(durable=True)
    try:
        with temporary_folder() as folder:
            count = 1_000 if quick else 20_000
            ours, floor = server.create_database(), server.create_database()
            yield from _rows("PostgreSQL", ours, floor, folder.as_uri(), count)
    finally:
        server.stop()


def _rows(name: str, ours: str, floor: str, objects: str | None, count: int) -> Iterator[Row]:
    with (
        analemma.open(ours, objects=objects, migrate=True) as app,
        analemma.open(floor, objects=objects, migrate=True) as bare,
    ):
        # The loop is timed on a part, and both on fresh entities.
        part = max(500, count // 10)
        _fill(app, count)
        _fill(bare, part)
        loop_s = _loop(bare, part)
        for what, goal in (("fresh", GOAL), ("up to date", None)):
            started = time.perf_counter()
            done = app.backfill(SCOPE, executor="threads:2")
            took_s = time.perf_counter() - started
            assert done.state == "DONE" and done.counts.done == count + AUTHORS
            per_s = count / took_s
            if goal is None:
                yield Row(f"backfill, {what}, {count:,} entities, {name}", per_s, "entities/s")
            else:
                yield Row.at_least(
                    f"backfill, {what}, {count:,} entities, {name}",
                    per_s,
                    "entities/s",
                    ratio=per_s * loop_s / part,
                    against="a bare loop of compiles",
                    limit=goal,
                )
        started = time.perf_counter()
        assert app.backfills.verify(SCOPE, executor="threads:2").ok
        yield Row(f"verify strict, {count:,} entities, {name}", count / (time.perf_counter() - started), "entities/s")


def _fill(app: App, count: int) -> None:
    app.contracts.load(BOOKSHOP)
    shop = app.tenant(TENANT)
    shop.ingest_many((("AUTHOR", f"a{number}", {"name": f"Author {number}"}) for number in range(AUTHORS)), batch=500)
    shop.ingest_many(
        (
            (
                "BOOK",
                f"b{number:06}",
                {
                    "isbn": f"b{number:06}",
                    "title": f"Book {number}",
                    "price": number,
                    "authorId": f"a{number % AUTHORS}",
                    "tags": [f"t{number % 9}"],
                },
            )
            for number in range(count)
        ),
        batch=500,
    )


def _loop(app: App, count: int) -> float:
    shop = app.tenant(TENANT)
    for number in range(AUTHORS):
        shop.compile("AUTHOR", f"a{number}", mode="full")
    started = time.perf_counter()
    for number in range(count):
        shop.compile("BOOK", f"b{number:06}", mode="full")
    return time.perf_counter() - started
