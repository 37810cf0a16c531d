"""Named SQL is understood by the database it is meant for."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg

from tests.ports.entry_points.catalog import load, load_migrations


def test_both_databases_have_the_same_migrations() -> None:
    sqlite, postgres = ([(each.number, each.name) for each in load_migrations(name)] for name in ("sqlite", "postgres"))
    assert sqlite == postgres
    assert [number for number, _ in sqlite] == list(range(1, len(sqlite) + 1))


def test_sqlite_understands_every_statement(migrated_directory: Path) -> None:
    wrong = {}
    with closing(sqlite3.connect(migrated_directory / "catalog.db")) as connection:
        # One that only waits for others does nothing here.
        for statement in (each for each in load("sqlite").values() if each.sql):
            values = [None] * len(statement.binds or statement.parameters)
            try:
                connection.execute(f"EXPLAIN {statement.sql}", values).fetchall()
            except sqlite3.OperationalError as exc:
                # What makes this table is run where there is none.
                if "table migration already exists" not in str(exc):
                    wrong[statement.name] = str(exc)
    assert wrong == {}


def test_postgres_understands_every_statement(migrated_url: str) -> None:
    with psycopg.connect(migrated_url, autocommit=True) as connection:
        for statement in load("postgres").values():
            result = connection.pgconn.prepare(statement.name.encode(), statement.sql.encode())
            assert result.status == psycopg.pq.ExecStatus.COMMAND_OK, (statement.name, result.error_message)
