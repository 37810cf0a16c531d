"""Shipping: requests that are queued until all documents are in the sink, beside loops that only write the same
documents.

The bare loop writes one document after the other, each on disk before the next, as a script would that must not lose
any. The loop of batches writes as many at once as we do: it shows what reading, order and bookkeeping cost us."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import psycopg

import analemma
from analemma.contracts.loading import load_contracts
from analemma.settings import Settings
from analemma.slicing.entity_key import EntityKey
from analemma.store.store import App
from bench.harness import Row, temporary_folder
from bench.pipeline import BOOKSHOP, book
from tests.servers import PostgresServer, postgres_missing

TENANT = "shop"
BATCH = 1000
GOAL = 0.5

Document = tuple[str, dict[str, Any]]
Loop = Callable[[Sequence[Document]], None]


def run(quick: bool) -> Iterator[Row]:
    """To a file and to a table, from both catalogs."""
    count, rounds = (2000, 3) if quick else (10_000, 5)
    reason = postgres_missing()
    server = None if reason is not None else PostgresServer(durable=True)
    try:
        with temporary_folder() as folder:
            yield from _from("SQLite", str(folder / "store"), folder, server, count, rounds)
        if server is None:
            yield Row.skip("ship, PostgreSQL", reason or "")
            return
        with temporary_folder() as folder:
            yield from _from("PostgreSQL", server.create_database(), folder, server, count, rounds)
    finally:
        if server is not None:
            server.stop()


def _from(
    catalog: str, url: str, folder: Path, server: PostgresServer | None, count: int, rounds: int
) -> Iterator[Row]:
    documents = prepare(url, folder, count)
    file = folder / "bare.jsonl"
    ours = {"type": "JSONL", "path": str(folder / "ours.jsonl")}
    yield from _compare(
        f"ship to JSONL, {catalog}",
        url,
        folder,
        ours,
        documents,
        rounds,
        lines_one_by_one(file),
        lines_in_batches(file),
    )
    if server is None:
        return
    database = server.create_database()
    target = {"type": "TABLE", "url": database, "table": "books", "create": True}
    with closing(psycopg.connect(database, autocommit=True)) as connection:
        connection.execute("CREATE TABLE bare (doc_id text PRIMARY KEY, ship_seq bigint NOT NULL, body jsonb)")
        loops = rows_one_by_one(connection), rows_in_batches(connection)
        yield from _compare(f"ship to PostgreSQL, {catalog}", url, folder, target, documents, rounds, *loops)


def prepare(url: str, folder: Path, count: int) -> list[Document]:
    """A store with so many books that are compiled; their documents."""
    with analemma.open(url, objects=folder.as_uri(), migrate=True) as app:
        app.contracts.load([each.document for each in load_contracts(BOOKSHOP).contracts if each.kind != "SINKRULE"])
        shop = app.tenant(TENANT)
        shop.ingest("AUTHOR", "a1", {"name": "Ursula K. Le Guin", "country": "US"})
        shop.compile("AUTHOR", "a1")
        books = [book(number) for number in range(count)]
        shop.ingest_many([("BOOK", each["isbn"], each) for each in books])
        app.worker(4).drain()
        found = []
        for each in books:
            slices = shop.slices("BOOK", each["isbn"])
            body: dict[str, Any] = {}
            for name in ("CORE", "PRICE", "ENRICHED"):
                body |= slices[name].data or {}
            found.append((f"{TENANT}__{each['isbn']}", body))
        return found


def _compare(
    name: str,
    url: str,
    folder: Path,
    target: dict[str, Any],
    documents: Sequence[Document],
    rounds: int,
    one_by_one: Loop,
    in_batches: Loop,
) -> Iterator[Row]:
    took: list[tuple[float, float, float]] = []
    for _ in range(rounds):
        # Opened anew each time, so that documents come from the store and not from memory.
        with analemma.open(url, objects=folder.as_uri(), settings=Settings(tenant=TENANT), migrate=True) as app:
            ours = ship_all(app, target, documents)
        took.append((ours, _timed(one_by_one, documents), _timed(in_batches, documents)))
    rate = statistics.median(len(documents) / ours for ours, _, _ in took)
    for place, loop, goal in ((1, "bare loop", GOAL), (2, "bare loop of batches", None)):
        theirs = statistics.median(len(documents) / each[place] for each in took)
        ratio = statistics.median(each[place] / each[0] for each in took)
        against = f"{loop} ({theirs:,.0f}/s)"
        if goal is None:
            yield Row(f"{name}, beside batches", rate, "documents/s", ratio, against)
        else:
            yield Row.at_least(name, rate, "documents/s", ratio=ratio, against=against, limit=goal)


def ship_all(app: App, target: dict[str, Any], documents: Sequence[Document]) -> float:
    """Queue a request for every document; how long it takes until all are shipped."""
    sink = f"sink.{target['type'].lower()}"
    rule = {
        "kind": "SINKRULE",
        "id": sink,
        "version": "1.0.0",
        "status": "ACTIVE",
        "input": {"type": "SLICE", "sliceTypes": ["CORE", "PRICE", "ENRICHED"], "entityTypes": ["BOOK"]},
        "target": target,
        "commit": {"batchSize": BATCH},
    }
    app.contracts.load([rule])
    shop = app.tenant(TENANT)
    version = int(shop.pipeline.ingest._versions.generate())
    keys = [EntityKey("BOOK", TENANT, doc_id.removeprefix(f"{TENANT}__")) for doc_id, _ in documents]
    for start in range(0, len(keys), BATCH):
        asked = [(key, version, 1) for key in keys[start : start + BATCH]]
        app.catalog.engine.write(
            lambda tx, asked=asked: shop.pipeline.shipping.enqueue(tx, asked, [sink])  # type: ignore[misc]
        )
    worker = app.worker(1)
    started = time.perf_counter()
    done = worker.drain()
    took = time.perf_counter() - started
    assert done.delivered == len(documents) and not done.failed and not done.dead, done
    return took


def _timed(loop: Loop, documents: Sequence[Document]) -> float:
    started = time.perf_counter()
    loop(documents)
    return time.perf_counter() - started


def lines_one_by_one(path: Path) -> Loop:
    """Each line flushed to disk before the next."""

    def loop(documents: Sequence[Document]) -> None:
        with path.open("ab", buffering=0) as file:
            for doc_id, body in documents:
                file.write(_line(doc_id, body))
                os.fsync(file.fileno())

    return loop


def lines_in_batches(path: Path) -> Loop:
    """So many lines together."""

    def loop(documents: Sequence[Document]) -> None:
        with path.open("ab", buffering=0) as file:
            for start in range(0, len(documents), BATCH):
                file.write(b"".join([_line(doc_id, body) for doc_id, body in documents[start : start + BATCH]]))
                os.fsync(file.fileno())

    return loop


def _line(doc_id: str, body: dict[str, Any]) -> bytes:
    return orjson.dumps({"docId": doc_id, "shipSeq": 1, "op": "upsert", "body": body}) + b"\n"


ONE_ROW = """INSERT INTO bare VALUES (%s, 1, %s::jsonb)
ON CONFLICT (doc_id) DO UPDATE SET ship_seq = excluded.ship_seq, body = excluded.body"""
MANY_ROWS = """INSERT INTO bare SELECT doc_id, 1, body::jsonb FROM unnest(%s::text[], %s::text[]) AS one (doc_id, body)
ON CONFLICT (doc_id) DO UPDATE SET ship_seq = excluded.ship_seq, body = excluded.body"""


def rows_one_by_one(connection: psycopg.Connection[Any]) -> Loop:
    """A transaction for each row."""

    def loop(documents: Sequence[Document]) -> None:
        for doc_id, body in documents:
            connection.execute(ONE_ROW, (doc_id, orjson.dumps(body).decode()))

    return loop


def rows_in_batches(connection: psycopg.Connection[Any]) -> Loop:
    """So many rows in one statement."""

    def loop(documents: Sequence[Document]) -> None:
        for start in range(0, len(documents), BATCH):
            some = documents[start : start + BATCH]
            connection.execute(
                MANY_ROWS,
                ([doc_id for doc_id, _ in some], [orjson.dumps(body).decode() for _, body in some]),
            )

    return loop
