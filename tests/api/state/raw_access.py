"""Reaching around the catalog into its tables, as damage and forgers do; every change can be undone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from tests.raw_rows import change, change_all, table
from tests.stores import Store

# Each table with what names a row of it, in an order in which they can be filled.
TABLES: dict[str, list[str]] = {
    "block": ["id"],
    "workflow": ["owner", "workflow"],
    "manifest": ["id"],
    "branch": ["owner", "workflow", "branch"],
    "journal": ["hash"],
    "head": ["owner", "workflow", "branch"],
    "ref": ["owner", "workflow", "kind", "name"],
    "decision": ["manifest"],
    "expired": ["manifest"],
}


class Rows:
    """Rows by their place in the table as it was first seen."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._before = {name: table(store, name) for name in TABLES}

    def __enter__(self) -> Rows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What was changed stays so."""

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
        change_all(self._store, [_insertion(table, {**self._before[table][number], **columns})])

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
        emptied: list[tuple[str, Sequence[Any]]] = [(f"DELETE FROM {name}", ()) for name in reversed(TABLES)]  # noqa: S608
        filled = [_insertion(name, row) for name in TABLES for row in self._before[name]]
        change_all(self._store, emptied + filled)

    def _where(self, table: str, number: int) -> tuple[str, list[Any]]:
        keys = TABLES[table]
        row = self._before[table][number]
        return " AND ".join(f"{key} = ?" for key in keys), [row[key] for key in keys]

    def _run(self, statement: str, *values: Any) -> None:
        change(self._store, statement, values)


@contextmanager
def damaged(store: Store) -> Iterator[Rows]:
    """Rows to change for a while: in the end they are as they were, whatever a test found."""
    rows = Rows(store)
    try:
        yield rows
    finally:
        rows.undo()


def _insertion(table: str, row: dict[str, Any]) -> tuple[str, Sequence[Any]]:
    marks = ", ".join("?" for _ in row)
    return f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", list(row.values())  # noqa: S608
