"""Named statements and procedures on one SQLite connection.

A procedure runs step by step, inside the write transaction, each step behind a failpoint. Its rows are bound one by
one, never passed as one JSON array with their bytes beside it: cutting those apart takes longer than all the rest.

SQLite stores any value in any column, so a damaged file or another program can put text where a number was. Such a row
is told as damage here, before anything computes with it.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, cast

from analemma.catalog.engine.db import Row, Transaction, lost_in_a_fork, picker
from analemma.catalog.engine.procedures import AFTER, BEFORE, Procedure, Refused
from analemma.catalog.engine.sql import SQLITE, Lazy, Statement
from analemma.catalog.engine.sqlite.errors import FAILURES, translate
from analemma.errors import AnalemmaError, Corrupt
from analemma.failpoints import hit

_INTO = re.compile(r"INSERT INTO (\w+)")
_TABLE = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE)\s+(\w+)", re.IGNORECASE)
_GIVEN = re.compile(r"\bAS\s+(\w+)", re.IGNORECASE)
"""A name that a statement gives to a column."""
_PYTHON: dict[str, type] = {"INTEGER": int, "BIGINT": int, "TEXT": str, "BLOB": bytes}
Values = Callable[[tuple[Any, ...]], tuple[Any, ...]]


class SqliteTransaction(Transaction):
    """Runs named statements on one connection."""

    __slots__ = ("__weakref__", "_types", "connection", "database")
    is_open = True

    def __init__(self, connection: sqlite3.Connection, counts: Counter[str], database: str, types: ColumnTypes) -> None:
        super().__init__(SQLITE, counts)
        self.connection = connection
        self.database = database
        self._types = types

    def all(self, name: str, /, **parameters: Any) -> list[Row]:
        statement, values = self._bound(name, parameters)
        if not statement.sql:
            return []
        try:
            # Fetched to the end at once: a half-read statement would hold its snapshot.
            cursor = self.connection.execute(statement.sql, values)
            rows = cursor.fetchall()
            if rows:
                self._types.check(statement, cursor, rows)
            return rows
        except FAILURES as exc:
            raise translate(exc, self.database) from exc

    def execute(self, name: str, /, **parameters: Any) -> int:
        statement, values = self._bound(name, parameters)
        try:
            return self.connection.execute(statement.sql, values).rowcount if statement.sql else 0
        except FAILURES as exc:
            raise translate(exc, self.database) from exc

    def execute_many(self, name: str, rows: Iterable[Sequence[Any]], /) -> int:
        statement = self._sql.statements[name]
        self._counts[name] += 1
        if statement.binds is not None:
            rows = (statement.bind(list(row)) for row in rows)
        try:
            return self.connection.executemany(statement.sql, rows).rowcount
        except FAILURES as exc:
            raise translate(exc, self.database) from exc

    def call(self, name: str, given: Any, /) -> list[Any] | None:
        try:
            return STEPS[name].run(self.connection, given, self._counts)
        except FAILURES as exc:
            raise translate(exc, self.database) from exc

    def script(self, sql: str, /) -> None:
        # Not executescript(): that commits first, and a migration must be all or nothing.
        statement = ""
        self._types.forget()
        try:
            for piece in self._sql.script(sql).split(";"):
                statement += f"{piece};"
                # A semicolon inside a literal, a comment or a trigger ends nothing.
                if sqlite3.complete_statement(statement):
                    self.connection.execute(statement)
                    statement = ""
        except sqlite3.Error as exc:
            raise translate(exc, self.database) from exc

    def control(self, name: str, translate: Callable[[sqlite3.Error, str], AnalemmaError] = translate) -> None:
        """Begin, commit and the like: uncounted."""
        try:
            self.connection.execute(self._sql.statements[name].sql)
        except sqlite3.Error as exc:
            raise translate(exc, self.database) from exc

    def abandon(self) -> sqlite3.Connection:
        """Refuse every statement from now on; the connection, which somebody must keep from being closed."""
        connection = self.connection
        self.connection = cast(sqlite3.Connection, _Abandoned())
        return connection


class ColumnTypes:
    """Knows the types of all columns, as the schema declares them; one for all connections."""

    def __init__(self) -> None:
        self._declared: dict[str, dict[str, type]] | None = None
        self._right: dict[str, set[tuple[type, ...]]] = {}
        """Of each statement, the types of rows that were found to be right."""

    def forget(self) -> None:
        """After the schema has changed."""
        self._declared = None
        self._right = {}

    def check(self, statement: Statement, cursor: sqlite3.Cursor, rows: Sequence[Row]) -> None:
        """Raise Corrupt if a column of these rows holds what its type does not allow."""
        found = {tuple(map(type, row)) for row in rows}
        if not found <= self._right.setdefault(statement.name, set()):
            self._judge(statement, cursor, found)

    def _judge(self, statement: Statement, cursor: sqlite3.Cursor, found: set[tuple[type, ...]]) -> None:
        sql = statement.sql
        declared = self._declared
        if declared is None:
            declared = {}
            for table, column, kind in cursor.connection.execute(SQLITE.statements["declared_columns"].sql):
                if kind in _PYTHON:
                    declared.setdefault(table, {})[column] = _PYTHON[kind]
            self._declared = declared
        tables = [declared[table] for table in set(_TABLE.findall(sql)) if table in declared]
        # A name that the statement gives says nothing of a column behind it; nor does the place in json_each.
        given = {name.lower() for name in _GIVEN.findall(sql)} | ({"key"} if "json_each" in sql else set())
        for place, (column, *_) in enumerate(cursor.description or ()):
            allowed = {table[column] for table in tables if column in table and column.lower() not in given}
            for types in found if allowed else ():
                if types[place] is not type(None) and types[place] not in allowed:
                    wanted = " or ".join(sorted(each.__name__ for each in allowed))
                    raise Corrupt(
                        f"a row of the catalog holds {types[place].__name__} in its column {column}, not {wanted}",
                        hint="restore the catalog from a backup; `PRAGMA integrity_check` says more",
                        column=column,
                        statement=statement.name,
                    )
        # Not what was found before: another thread may have forgotten that.
        self._right.setdefault(statement.name, set()).update(found)


class Steps:
    """One procedure, ready to be run."""

    def __init__(self, procedure: Procedure) -> None:
        self.procedure = procedure
        self._before, self._after = f"{procedure.name}.{BEFORE}", f"{procedure.name}.{AFTER}"
        self._steps = [_Ready(procedure, number) for number in range(len(procedure.steps))]

    def statements(self) -> list[tuple[str, int]]:
        """The text of each step, and how many values it takes."""
        return [(step.sql, step.placeholders) for step in self._steps if step.sql]

    def run(self, connection: sqlite3.Connection, given: Any, counts: Counter[str]) -> list[Any] | None:
        """Do it all, or raise and leave it to the transaction to undo the rest; the answer, if it has one."""
        hit(self._before)
        answer: list[Any] | None = None
        left: Sequence[Any] = ()
        for step in self._steps:
            rows: Sequence[Any] = ()
            if step.each is not None:
                rows = left if step.left else getattr(given, step.each)
                if not rows:
                    continue
            hit(step.failpoint)
            if not step.sql:
                continue
            counts[step.failpoint] += 1
            scalars = step.scalars(given)
            if step.each is None:
                step.run(connection, scalars, None)
                continue
            if step.refusal is not None:
                for number, row in enumerate(rows):
                    step.run(connection, scalars + step.columns(row), number)
                continue
            if step.numbers:
                answer = [step.run(connection, scalars + step.columns(row), None).lastrowid for row in rows]
                continue
            columns, order = step.columns, step.order
            values: Iterable[tuple[Any, ...]] = [scalars + columns(row) for row in rows]
            if order is not None:
                values = map(order, values)
            done = connection.executemany(step.sql, values).rowcount
            if step.new is not None:
                answer, left = _new(connection, step, rows, done)
        hit(self._after)
        return answer


STEPS = Lazy(lambda name: Steps(SQLITE.procedures[name]))
"""By the procedure's name."""


class _Ready:
    """One step, as SQLite takes it."""

    def __init__(self, procedure: Procedure, number: int) -> None:
        step = procedure.steps[number]
        self.failpoint = procedure.failpoint(number)
        self.each, self.left = step.each, step.left
        self.rows, self.refusal, self.numbers = step.rows, step.refusal, step.number is not None
        statement = SQLITE.translate(step.sql)
        self.sql = statement.sql
        self.is_query = self.sql.startswith("SELECT")
        paths = [procedure.path(step, name) for name in statement.parameters]
        wanted = [paths[place] for place in statement.places]
        self.placeholders = len(wanted)
        # Scalars are picked once for all rows of a table, and stand before its columns.
        scalars = [path for path in paths if path.table is None] if step.each is not None else wanted
        columns = [path for path in paths if path.table is not None]
        self.scalars, self.columns = (picker([path.column for path in each]) for each in (scalars, columns))
        given = scalars + columns
        self.order: Values | None = None if given == wanted else itemgetter(*map(given.index, wanted))
        self.new: tuple[str, Callable[[Any], tuple[Any, ...]]] | None = None
        if step.new is not None:
            into = _INTO.match(self.sql)
            assert into is not None
            # Rowids are handed out upwards, so the newest rows are the ones that this transaction's last insert made.
            newest = f"SELECT {step.new} FROM {into[1]} WHERE rowid > (SELECT max(rowid) FROM {into[1]}) - ?"  # noqa: S608 (our own text)
            self.new = newest, picker([step.new])

    def run(self, connection: sqlite3.Connection, values: tuple[Any, ...], row: int | None) -> sqlite3.Cursor:
        """Do it once, and look whether it found what it expects."""
        cursor = connection.execute(self.sql, values if self.order is None else self.order(values))
        if self.refusal is not None:
            found = len(cursor.fetchall()) if self.is_query else cursor.rowcount
            if found != self.rows:
                raise Refused(self.refusal, row)
        return cursor


def _new(
    connection: sqlite3.Connection, step: _Ready, rows: Sequence[Any], done: int
) -> tuple[list[Any], Sequence[Any]]:
    """What the answer is after an INSERT that added so many of the rows, and the rows that were there."""
    assert step.new is not None
    newest, column = step.new
    if done == len(rows):
        return [column(row)[0] for row in rows], ()
    found = {each[0] for each in connection.execute(newest, (done,))} if done > 0 else set()
    return list(found), [row for row in rows if column(row)[0] not in found]


class _Abandoned:
    """Stands where the connection of a parent process was, for code that was in a transaction when it forked."""

    in_transaction = False

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise lost_in_a_fork()
