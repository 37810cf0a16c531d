"""The second half of `analemma demo`: a bookshop whose views and sinks follow when an author is renamed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console

from analemma.sinks.port import SinkDocument
from analemma.sinks.registry import open_sink
from analemma.sinks.snapshot import read_snapshot
from analemma.store.store import App, Tenant

BOOKS = 200
VIEW = "view.book"
FIRST = "book-000"
UNTOUCHED = ("CORE", "PRICE")


def tell_bookshop_story(console: Console, app: App, directory: Path) -> None:
    """Tell it; every number is measured while it runs."""
    file = directory / "out" / "books-shop.jsonl"
    table = {"type": "TABLE", "url": f"sqlite:///{directory / 'sink.db'}", "table": "books", "create": True}
    app.contracts.load(_contracts(file, table))
    shop = app.tenant("shop")
    _open_shop(console, app, shop, file)
    before = _rows_of(shop)
    _rename(console, app, shop, before)
    _look_at_sinks(console, file)
    _ship_an_old_state(console, shop, table)


def _open_shop(console: Console, app: App, shop: Tenant, file: Path) -> None:
    """Documents in, views and sink documents out."""
    shop.ingest("AUTHOR", "lem", {"name": "S. Lem", "country": "PL"})
    books = (f"book-{number:03}" for number in range(BOOKS))
    started = time.perf_counter()
    shop.ingest_many(
        ("BOOK", isbn, {"title": f"Tales, volume {isbn[-3:]}", "price": 1200, "authorId": "lem"}) for isbn in books
    )
    app.worker().drain()
    seconds = time.perf_counter() - started
    shipped = sum(1 for _ in read_snapshot(file))
    console.print(f"[bold]{BOOKS} books[/] ingested, compiled by contracts and shipped in {seconds:.1f} s:")
    console.print(f"  the view {VIEW} of {FIRST} says {_shown(shop)}")
    console.print(f"  {shipped} documents in a file, and as many rows in a table.\n")


def _rename(console: Console, app: App, shop: Tenant, before: dict[str, list[tuple[Any, ...]]]) -> None:
    """One document changes, and everything that joins it follows."""
    started = time.perf_counter()
    shop.ingest("AUTHOR", "lem", {"name": "Stanisław Lem", "country": "PL"})
    app.worker().drain()
    seconds = time.perf_counter() - started
    after = _rows_of(shop)
    written = sum(one != other for one, other in zip(before["ENRICHED"], after["ENRICHED"], strict=True))
    others = sum(before[name] != after[name] for name in UNTOUCHED)
    console.print(f"The author is renamed. {seconds:.1f} s later, {written} books have another ENRICHED slice;")
    console.print(f"  rows of {' and '.join(UNTOUCHED)} that were written: {others}.")
    console.print(f"  The view says {_shown(shop)}\n")


def _look_at_sinks(console: Console, file: Path) -> None:
    lines = list(read_snapshot(file))
    renamed = sum((line.body or {})["author"]["name"] == "Stanisław Lem" for line in lines)
    console.print(f"The file followed: {renamed} of {len(lines)} documents have the new name.")


def _ship_an_old_state(console: Console, shop: Tenant, table: dict[str, Any]) -> None:
    """What a late worker would do."""
    sink = open_sink(table)
    try:
        old = SinkDocument(
            doc_id=f"shop__{FIRST}",
            ship_seq=1,
            body={"title": "as it was", "author": {"name": "S. Lem"}},
            tenant="shop",
            entity_key=f"BOOK#shop#{FIRST}",
            version=1,
        )
        answer = sink.ship(old)
    finally:
        sink.close()
    console.print(
        f"A late worker sends the table the state before that; the sink's guard answers: [bold]{answer.outcome}[/]."
    )


def _shown(shop: Tenant) -> str:
    data = shop.view(VIEW).get(FIRST).data
    return f"{data['CORE']['title']!r} by {data['ENRICHED']['author']['name']}"


def _rows_of(shop: Tenant) -> dict[str, list[tuple[Any, ...]]]:
    """Which row each slice of each book is."""
    found: dict[str, list[tuple[Any, ...]]] = {"CORE": [], "PRICE": [], "ENRICHED": []}
    for answer in shop.view(VIEW).every():
        for name, served in answer.meta.slices.items():
            found[name].append((answer.entity_id, served.version, served.revision, served.hash))
    return found


def _contracts(file: Path, table: dict[str, Any]) -> list[dict[str, Any]]:
    def contract(kind: str, name: str, **keys: Any) -> dict[str, Any]:
        return {"kind": kind, "id": name, "version": "1.0.0", "status": "ACTIVE", **keys}

    def copied(*fields: str) -> dict[str, Any]:
        return {"type": "PassThrough", "fields": list(fields)}

    join = {
        "name": "author",
        "type": "LOOKUP",
        "sourceFieldPath": "authorId",
        "targetEntityType": "AUTHOR",
        "targetSliceType": "SUMMARY",
    }
    slices = [
        {"type": "CORE", "buildRules": copied("title")},
        {"type": "PRICE", "buildRules": copied("price")},
        {"type": "ENRICHED", "sliceKind": "ENRICHMENT", "buildRules": copied("author"), "joins": [join]},
    ]
    shipped = {"type": "SLICE", "entityTypes": ["BOOK"]}
    place = str(file).replace("-shop.jsonl", "-{tenantId}.jsonl")
    text, number = {"type": "string"}, {"type": "long"}
    return [
        contract(
            "ENTITY_SCHEMA",
            "entity.author",
            entityType="AUTHOR",
            fields=[{"name": "name", **text, "required": True}, {"name": "country", **text}],
        ),
        contract(
            "RULESET",
            "ruleset.author",
            entityType="AUTHOR",
            slices=[{"type": "SUMMARY", "buildRules": copied("name", "country")}],
        ),
        contract(
            "ENTITY_SCHEMA",
            "entity.book",
            entityType="BOOK",
            fields=[{"name": "title", **text}, {"name": "price", **number}, {"name": "authorId", **text}],
        ),
        contract(
            "RULESET",
            "ruleset.book",
            entityType="BOOK",
            slices=slices,
            indexes=[{"type": "author", "selector": "$.authorId", "references": "AUTHOR"}],
        ),
        contract("VIEW_DEFINITION", VIEW, entityType="BOOK", requiredSlices=["CORE", "PRICE", "ENRICHED"]),
        contract("SINKRULE", "sink.file", input=shipped, target={"type": "JSONL", "path": place}),
        contract("SINKRULE", "sink.table", input=shipped, target=table),
    ]
