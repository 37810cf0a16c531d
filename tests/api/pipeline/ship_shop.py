"""A shop that ships: contracts with sinks of a test's own, and what those sinks have."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from analemma import App, Tenant, load_contracts, read_snapshot
from tests.core.contracts.bookshop import EXAMPLE
from tests.stores import Store

SLICES = ["CORE", "PRICE", "ENRICHED"]


def rule(sink: str, target: Mapping[str, Any], *, version: str = "1.0.0", **more: Any) -> dict[str, Any]:
    """A SINKRULE for books."""
    return {
        "kind": "SINKRULE",
        "id": sink,
        "version": version,
        "status": "ACTIVE",
        "input": {"type": "SLICE", "sliceTypes": SLICES, "entityTypes": ["BOOK"]},
        "target": dict(target),
        "docId": {"pattern": "{tenantId}__{entityId}"},
        **more,
    }


def jsonl(sink: str = "sink.file", name: str = "books.jsonl", **more: Any) -> dict[str, Any]:
    return rule(sink, {"type": "JSONL", "path": name}, **more)


def table(path: Path, sink: str = "sink.table", **more: Any) -> dict[str, Any]:
    """A table in a file of SQLite."""
    return rule(sink, {"type": "TABLE", "url": f"sqlite:///{path}", "table": "books", "create": True}, **more)


def shop_contracts(*rules: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The example's contracts, with other sinks."""
    loaded = load_contracts(EXAMPLE)
    return [each.document for each in loaded.contracts if each.kind != "SINKRULE"] + [dict(each) for each in rules]


@contextmanager
def open_ship_shop(
    store: Store, base: Path, *rules: Mapping[str, Any], **settings: Any
) -> Iterator[tuple[App, Tenant]]:
    """A store whose sinks are these, and whose relative paths begin at `base`."""
    quick = {"ship_rest_s": 0.05, "ship_rest_max_s": 0.2, "outbox_backoff_base_s": 0.01, "outbox_poll_idle_s": 0.05}
    if "ship_rest_s" in settings:
        settings.setdefault("ship_rest_max_s", settings["ship_rest_s"])
    with store.open(ship_base=str(base), **{**quick, **settings}) as app:
        app.contracts.load(shop_contracts(*rules))
        yield app, app.tenant("shop")


def drain(app: App) -> Any:
    """Deliver everything that is due."""
    return app.worker(2).drain()


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Everything that a JSONL sink was sent, in order."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def documents_of(path: Path) -> dict[str, Any]:
    """The newest state of every document in a JSONL sink, by id."""
    return {each.doc_id: each.body for each in read_snapshot(path)} if path.exists() else {}


def rows_of(path: Path) -> dict[str, tuple[int, Any]]:
    """A table's documents by id: ship_seq and body, None if deleted."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT doc_id, ship_seq, body FROM books").fetchall()
    return {doc_id: (ship_seq, None if body is None else json.loads(body)) for doc_id, ship_seq, body in found}
