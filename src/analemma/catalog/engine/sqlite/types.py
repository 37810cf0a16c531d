"""The types of what SQLite gives: it stores any value in any column, so a damaged file or another program can put text
where a number was. Such a row is told as damage here, before anything computes with it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence

from analemma.catalog.engine.db import Row
from analemma.catalog.engine.sql import Statement
from analemma.errors import Corrupt

_TABLE = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE)\s+(\w+)", re.IGNORECASE)
_GIVEN = re.compile(r"\bAS\s+(\w+)", re.IGNORECASE)
"""A name that a statement gives to a column."""
_PYTHON: dict[str, type] = {"INTEGER": int, "BIGINT": int, "TEXT": str, "BLOB": bytes}


class ColumnTypes:
    """Knows the types of all columns, as the schema declares them; one for all connections."""

    def __init__(self, statements: Mapping[str, Statement]) -> None:
        self._sql = statements
        self._declared: dict[str, dict[str, type]] | None = None
        self._right: dict[str, set[tuple[type, ...]]] = {}
        """Of each statement, the types of rows that were found to be right."""

    def forget(self) -> None:
        """After the schema has changed."""
        self._declared = None
        self._right = {}

    def check(self, name: str, cursor: sqlite3.Cursor, rows: Sequence[Row]) -> None:
        """Raise Corrupt if a column of these rows holds what its type does not allow."""
        found = {tuple(map(type, row)) for row in rows}
        if not found <= self._right.setdefault(name, set()):
            self._judge(name, cursor, found)

    def _judge(self, name: str, cursor: sqlite3.Cursor, found: set[tuple[type, ...]]) -> None:
        sql = self._sql[name].sql
        declared = self._declared
        if declared is None:
            declared = {}
            for table, column, kind in cursor.connection.execute(self._sql["declared_columns"].sql):
                if kind in _PYTHON:
                    declared.setdefault(table, {})[column] = _PYTHON[kind]
            self._declared = declared
        tables = [declared[table] for table in set(_TABLE.findall(sql)) if table in declared]
        given = {name.lower() for name in _GIVEN.findall(sql)}
        for place, (column, *_) in enumerate(cursor.description or ()):
            allowed = {table[column] for table in tables if column in table}
            # A name that the statement gives says nothing of a column behind it; nor does the place in json_each.
            if column == "key" and "json_each" in sql:
                continue
            if not allowed or column.lower() in given:
                continue
            for types in found:
                if types[place] is not type(None) and types[place] not in allowed:
                    wanted = " or ".join(sorted(each.__name__ for each in allowed))
                    raise Corrupt(
                        f"a row of the catalog holds {types[place].__name__} in its column {column}, not {wanted}",
                        hint="restore the catalog from a backup; `PRAGMA integrity_check` says more",
                        column=column,
                        statement=name,
                    )
        # Not what was found before: another thread may have forgotten that.
        self._right.setdefault(name, set()).update(found)
