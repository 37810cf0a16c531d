"""Reaching around the catalog into its tables, as damage and forgers do; every change can be undone."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg

from tests.stores import Store

# Each table with what names a row of it, in an order in which they can be filled.
TABLES: dict[str, list[str]] = {
    "block": ["id"],
    "workflow": ["owner", "workflow"],
    "manifest": ["id"],
    "branch": ["owner", "workflow", "branch"],
    "journal": ["hash"],
    "head": ["owner", "workflow", "branch"],
    "tag": ["owner", "workflow", "name"],
    "pin": ["manifest"],
    "decision": ["manifest"],
    "expired": ["manifest"],
}


class Rows:
    """Rows by their place in the table as it was first seen."""

    def __init__(self, store: Store) -> None:
        self._postgres = store.url.startswith("postgresql")
        self._connection: Any
        if self._postgres:
            self._connection = psycopg.connect(store.url, autocommit=True)
            self._run("SET session_replication_role = replica")
        else:
            self._connection = sqlite3.connect(Path(store.url) / "catalog.db", isolation_level=None)
        self._before = self._everything()

    def __enter__(self) -> Rows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def numbers(self, table: str) -> list[int]:
        return list(range(len(self._before[table])))

    def where(self, table: str, **columns: Any) -> list[int]:
        """The rows with these values."""
        rows = enumerate(self._before[table])
        return [number for number, row in rows if all(row[name] == value for name, value in columns.items())]

    def get(self, table: str, number: int, column: str) -> Any:
        return self._before[table][number][column]

    def set(self, table: str, number: int, column: str, value: Any) -> None:
        where, parameters = self._where(table, number)
        self._run(f"UPDATE {table} SET {column} = ? WHERE {where}", value, *parameters)  # noqa: S608

    def add_like(self, table: str, number: int, **columns: Any) -> None:
        """One more row, as this one but for these columns."""
        self._insert(table, {**self._before[table][number], **columns})

    def delete(self, table: str, number: int) -> None:
        where, parameters = self._where(table, number)
        self._run(f"DELETE FROM {table} WHERE {where}", *parameters)  # noqa: S608

    def pick_body(self, table: str, pick: random.Random) -> tuple[int, bytes]:
        number = pick.choice([n for n in self.numbers(table) if self.get(table, n, "body")])
        return number, self.get(table, number, "body")

    def forget_newest_version(self) -> None:
        """Take the newest version away and set the head and the journal back, as a forger with full access would."""
        journal = sorted(self._before["journal"], key=lambda row: row["seq"])
        newest = max(self._before["manifest"], key=lambda row: row["version"])
        before = next(row for row in self._before["manifest"] if row["version"] == newest["version"] - 1)
        self._run(
            "UPDATE head SET manifest = ?, version = ?, journal_seq = ?, journal_tip = ?",
            before["id"],
            before["version"],
            journal[-2]["seq"],
            journal[-2]["hash"],
        )
        self._run("DELETE FROM journal WHERE seq = ?", journal[-1]["seq"])
        self._run("DELETE FROM manifest WHERE version = ?", newest["version"])

    def undo(self) -> None:
        """Put every table back as it was."""
        self._run("BEGIN")
        for table in reversed(TABLES):
            self._run(f"DELETE FROM {table}")  # noqa: S608
        for table in TABLES:
            for row in self._before[table]:
                self._insert(table, row)
        self._run("COMMIT")

    def _insert(self, table: str, row: dict[str, Any]) -> None:
        marks = ", ".join("?" for _ in row)
        self._run(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", *row.values())  # noqa: S608

    def _where(self, table: str, number: int) -> tuple[str, list[Any]]:
        keys = TABLES[table]
        row = self._before[table][number]
        return " AND ".join(f"{key} = ?" for key in keys), [row[key] for key in keys]

    def _everything(self) -> dict[str, list[dict[str, Any]]]:
        return {table: self._rows(table) for table in TABLES}

    def _rows(self, table: str) -> list[dict[str, Any]]:
        cursor = self._run(f"SELECT * FROM {table}")  # noqa: S608
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def _run(self, statement: str, *parameters: Any) -> Any:
        if self._postgres:
            return self._connection.execute(statement.replace("?", "%s"), parameters)
        return self._connection.execute(statement, parameters)
