"""What tests of the collector share: stores with garbage in them, raw edits, and clocks that are off."""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from analemma import App, BlockId, Tenant
from tests.raw_rows import connect, is_sqlite, select
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
DAY_S = 86_400


def text(name: str, length: int = 4000) -> str:
    """Text that no compression makes small."""
    return "".join(hashlib.sha256(f"{name} {line}".encode()).hexdigest() for line in range(length // 64))


def save_versions(app: App, count: int = 5) -> None:
    """Versions that share one block and each have one of their own."""
    for number in range(count):
        app.kernel.save_state_delta({"shared": text("shared"), "own": text(f"own {number}"), "n": number}, **PLACE)


def expire_all_but_newest(app: App) -> None:
    app.kernel.set_retention(**PLACE, keep_last=1)
    app.kernel.expire(**PLACE)


def catalog_of(app: App) -> Store:
    """The catalog of an app, for whoever looks at its rows."""
    return Store(str(app.info()["url"]))


def blocks_of(tenant: Tenant, app: App) -> set[BlockId]:
    return {BlockId(row[0]) for row in select(catalog_of(app), "SELECT id FROM block WHERE tenant = ?", [tenant.id])}


def script(app: App, sql: str) -> None:
    """Do to the database what nobody should: one statement or several."""
    store = catalog_of(app)
    if is_sqlite(store):
        with closing(sqlite3.connect(Path(store.url) / "catalog.db", timeout=30)) as database, database:
            database.executescript(sql)
        return
    with connect(store.url) as connection:
        connection.execute(sql.encode())


def later(seconds: float) -> Callable[[object], int]:
    """The database's clock, which here is this machine's, so many seconds off."""
    return lambda _: time.time_ns() // 1000 + int(seconds * 1_000_000)
