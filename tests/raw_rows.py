"""A store's rows, reached past the package: what damage, another program or a wrong restore does to them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from tests.stores import Store


def is_sqlite(store: Store) -> bool:
    return not store.url.startswith("postgres")


def select(store: Store, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """The rows of a query; `?` stands for a value on both databases."""
    if is_sqlite(store):
        with closing(sqlite3.connect(Path(store.url) / "catalog.db")) as database:
            return database.execute(sql, values).fetchall()
    with psycopg.connect(store.url) as connection:
        return connection.execute(sql.replace("?", "%s").encode(), values).fetchall()


def change(store: Store, sql: str, values: Sequence[Any] = ()) -> int:
    """Run one statement and commit it; how many rows it touched. No check and no foreign key stands in its way."""
    if is_sqlite(store):
        with closing(sqlite3.connect(Path(store.url) / "catalog.db")) as database, database:
            database.execute("PRAGMA ignore_check_constraints = ON")
            return database.execute(sql, values).rowcount
    with psycopg.connect(store.url) as connection:
        connection.execute("SET session_replication_role = replica")
        return connection.execute(sql.replace("?", "%s").encode(), values).rowcount
