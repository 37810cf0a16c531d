"""A store's rows, reached past the package: what damage, another program or a wrong restore does to them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from tests.stores import Store


def connect(url: str, **options: Any) -> psycopg.Connection[Any]:
    """A connection past the package, on which the tables of a store need no schema before their names."""
    url, _, schema = url.partition("&schema=")
    return psycopg.connect(url, options=f"-c search_path={schema or 'analemma,public'}", **options)


def is_sqlite(store: Store) -> bool:
    return not store.url.startswith("postgres")


def select(store: Store, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """The rows of a query; `?` stands for a value on both databases."""
    if is_sqlite(store):
        with closing(sqlite3.connect(Path(store.url) / "catalog.db")) as database:
            return database.execute(sql, values).fetchall()
    with connect(store.url) as connection:
        return connection.execute(sql.replace("?", "%s").encode(), values).fetchall()


def change(store: Store, sql: str, values: Sequence[Any] = ()) -> int:
    """Run one statement and commit it; how many rows it touched. No check and no foreign key stands in its way."""
    if is_sqlite(store):
        with closing(sqlite3.connect(Path(store.url) / "catalog.db")) as database, database:
            database.execute("PRAGMA ignore_check_constraints = ON")
            return database.execute(sql, values).rowcount
    with connect(store.url) as connection:
        connection.execute("SET session_replication_role = replica")
        return connection.execute(sql.replace("?", "%s").encode(), values).rowcount


def change_all(store: Store, statements: Sequence[tuple[str, Sequence[Any]]]) -> None:
    """The same with many statements, in one transaction."""
    if is_sqlite(store):
        with closing(sqlite3.connect(Path(store.url) / "catalog.db")) as database, database:
            database.execute("PRAGMA ignore_check_constraints = ON")
            for sql, values in statements:
                database.execute(sql, values)
        return
    with connect(store.url) as connection:
        connection.execute("SET session_replication_role = replica")
        for sql, values in statements:
            connection.execute(sql.replace("?", "%s").encode(), values)


def table(store: Store, name: str) -> list[dict[str, Any]]:
    """All rows of a table, by the names of its columns."""
    file = Path(store.url) / "catalog.db"
    connection: Any = closing(sqlite3.connect(file)) if is_sqlite(store) else connect(store.url)
    with connection as database:
        found = database.execute(f"SELECT * FROM {name}")  # noqa: S608
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
