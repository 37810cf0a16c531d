"""Looking at a store's tables, and damaging them, around the library."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.raw_rows import connect
from tests.stores import Store

TABLES = ("entity", "raw", "compile", "slice", "index_entry", "block", "outbox")


def query(store: Store, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Run it; `?` stands for a parameter."""
    if store.url.startswith("postgresql"):
        with connect(store.url, autocommit=True) as connection:
            cursor = connection.execute(sql.replace("?", "%s").encode(), parameters)
            return cursor.fetchall() if cursor.description else []
    database = sqlite3.connect(Path(store.url) / "catalog.db", isolation_level=None)
    try:
        return database.execute(sql, parameters).fetchall()
    finally:
        database.close()


@contextmanager
def damaged(store: Store) -> Iterator[None]:
    """For so long, documents that were stored before are not what their hashes say: nothing is compiled from them."""
    rows = query(store, "SELECT entity, version, hash FROM raw")
    for entity, version, _ in rows:
        query(store, "UPDATE raw SET hash = ? WHERE entity = ? AND version = ?", b"x" * 32, entity, version)
    yield
    for entity, version, digest in rows:
        query(store, "UPDATE raw SET hash = ? WHERE entity = ? AND version = ?", digest, entity, version)


def row_counts(store: Store) -> dict[str, int]:
    return {table: query(store, f"SELECT count(*) FROM {table}")[0][0] for table in TABLES}  # noqa: S608


def rows_added(store: Store, before: dict[str, int]) -> dict[str, int]:
    """How many rows each table has got, those left out that got none."""
    after = row_counts(store)
    return {table: after[table] - before[table] for table in TABLES if after[table] != before[table]}
