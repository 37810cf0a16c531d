"""Named statements on one SQLite connection."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from analemma.catalog.engine.db import Row, Statements, lost_in_a_fork
from analemma.catalog.engine.sql import Dialect, Statement
from analemma.catalog.engine.sqlite.errors import translate, translate_commit
from analemma.catalog.engine.sqlite.types import ColumnTypes
from analemma.catalog.engine.steps import steps
from analemma.errors import Internal


class SqliteTransaction(Statements):
    """Runs named statements on one connection."""

    __slots__ = ("__weakref__", "_counts", "_database", "_statements", "_types", "connection")
    dialect: Dialect = "sqlite"
    is_open = True

    def __init__(
        self,
        connection: sqlite3.Connection,
        statements: Mapping[str, Statement],
        counts: Counter[str],
        database: str,
        types: ColumnTypes,
    ) -> None:
        self.connection = connection
        self._statements = statements
        self._counts = counts
        self._database = database
        self._types = types

    def all(self, name: str, /, **parameters: Any) -> list[Row]:
        try:
            if not self._statements[name].sql:
                return []
            # Fetched to the end at once: a half-read statement would hold its snapshot.
            cursor = self._run(name, parameters)
            rows = cursor.fetchall()
            if rows:
                self._types.check(name, cursor, rows)
            return rows
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as exc:
            raise translate(exc, self._database) from exc

    def execute(self, name: str, /, **parameters: Any) -> int:
        try:
            return self._run(name, parameters).rowcount if self._statements[name].sql else 0
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as exc:
            raise translate(exc, self._database) from exc

    def execute_many(self, name: str, rows: Iterable[Sequence[Any]], /) -> int:
        statement = self._statements[name]
        self._counts[name] += 1
        if statement.binds is not None:
            rows = (statement.bind(list(row)) for row in rows)
        try:
            return self.connection.executemany(statement.sql, rows).rowcount
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as exc:
            raise translate(exc, self._database) from exc

    def call(self, name: str, given: Any, /) -> list[Any] | None:
        try:
            return steps(name).run(self.connection, given, self._counts)
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as exc:
            raise translate(exc, self._database) from exc

    def script(self, sql: str, /) -> None:
        # Not executescript(): that commits first, and a migration must be all or nothing.
        statement = ""
        self._types.forget()
        try:
            for piece in sql.split(";"):
                statement += f"{piece};"
                # A semicolon inside a literal, a comment or a trigger ends nothing.
                if sqlite3.complete_statement(statement):
                    self.connection.execute(statement)
                    statement = ""
        except sqlite3.Error as exc:
            raise translate(exc, self._database) from exc

    def control(self, name: str) -> None:
        """Begin, commit and the like: uncounted."""
        try:
            self.connection.execute(self._statements[name].sql)
        except sqlite3.Error as exc:
            raise translate(exc, self._database) from exc

    def commit(self) -> None:
        """COMMIT; raises OutcomeUnknown if nobody can say whether it took effect."""
        try:
            self.connection.execute(self._statements["commit_transaction"].sql)
        except sqlite3.Error as exc:
            raise translate_commit(exc, self._database) from exc

    def abandon(self) -> sqlite3.Connection:
        """Refuse every statement from now on; the connection, which somebody must keep from being closed."""
        connection = self.connection
        self.connection = cast(sqlite3.Connection, _Abandoned())
        return connection

    def _run(self, name: str, parameters: dict[str, Any]) -> sqlite3.Cursor:
        statement = self._statements[name]
        self._counts[name] += 1
        names = statement.parameters
        if len(parameters) != len(names):
            raise Internal(
                f"{name} takes {', '.join(names) or 'nothing'}; it was given {', '.join(parameters) or 'nothing'}"
            )
        values = [parameters[name] for name in names]
        return self.connection.execute(statement.sql, values if statement.binds is None else statement.bind(values))


class _Abandoned:
    """Stands where the connection of a parent process was, for code that was in a transaction when it forked."""

    in_transaction = False

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise lost_in_a_fork()
