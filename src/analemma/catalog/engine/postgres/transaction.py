"""Named statements on one PostgreSQL connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from analemma.catalog.engine.db import Row, Transaction
from analemma.catalog.engine.postgres.errors import FAILURES, rolled_back, translate
from analemma.catalog.engine.postgres.functions import function
from analemma.catalog.engine.postgres.names import Names
from analemma.catalog.engine.postgres.pool import Connection
from analemma.catalog.engine.sql import POSTGRES
from analemma.errors import AnalemmaError
from analemma.failpoints import hit


class PostgresTransaction(Transaction):
    """Runs named statements on one connection."""

    __slots__ = ("_connection", "_failure", "_names", "_server")

    def __init__(self, connection: Connection, names: Names, counts: Counter[str], server: str) -> None:
        super().__init__(POSTGRES, counts)
        self._connection = connection
        self._names = names
        self._server = server
        self._failure: AnalemmaError | None = None
        """Why PostgreSQL refuses the rest of this transaction."""

    @property
    def is_open(self) -> bool:
        return self._connection.info.transaction_status != TransactionStatus.IDLE

    def all(self, name: str, /, **parameters: Any) -> list[Row]:
        cursor = self._run(name, parameters)
        return [] if cursor is None else cursor.fetchall()

    def execute(self, name: str, /, **parameters: Any) -> int:
        cursor = self._run(name, parameters)
        return 0 if cursor is None else cursor.rowcount

    def execute_many(self, name: str, rows: Iterable[Sequence[Any]], /) -> int:
        self._counts[name] += 1
        cursor = self._connection.cursor()
        try:
            cursor.executemany(self._names.queries[name], rows)
        except FAILURES as exc:
            raise self._failed(exc) from exc
        return cursor.rowcount

    def call(self, name: str, given: Any, /) -> list[Any] | None:
        self._counts[name] += 1
        called = function(name, given)
        try:
            hit(called.before)
            row = self._connection.execute(self._names.sent[called.call], called.bind(given), binary=True).fetchone()
            hit(called.after)
        except FAILURES as exc:
            raise self._failed(exc) from exc
        assert row is not None
        return None if not called.answers else row[0] or []

    def script(self, sql: str, /) -> None:
        try:
            self._connection.execute(self._names.qualified(self._sql.script(sql)), prepare=False)
        except psycopg.Error as exc:
            raise self._failed(exc) from exc

    def control(self, name: str) -> None:
        """Begin, commit and the like: uncounted, never prepared."""
        try:
            self._connection.execute(self._names.queries[name], prepare=False)
        except psycopg.Error as exc:
            raise self._failed(exc) from exc

    def heard(self, seconds: float) -> bool:
        """Wait for a notification, at most so long."""
        return any(True for _ in self._connection.notifies(timeout=seconds, stop_after=1))

    def close(self) -> None:
        """Give a connection back to the server that is not the pool's."""
        self._connection.close()

    def commit(self) -> None:
        """COMMIT. Asked to commit a transaction in which a statement failed, PostgreSQL rolls it back without an
        error."""
        try:
            answer = self._connection.execute(self._names.queries["commit_transaction"], prepare=False).statusmessage
        except psycopg.Error as exc:
            raise self._failed(exc) from exc
        if answer != "COMMIT":
            raise self._failure or rolled_back()

    def _failed(self, exc: Exception) -> AnalemmaError:
        self._failure = translate(exc, self._server)
        return self._failure

    def _run(self, name: str, parameters: dict[str, Any]) -> psycopg.Cursor[Row] | None:
        statement, values = self._bound(name, parameters)
        if not statement.sql:
            return None
        try:
            return self._connection.execute(self._names.queries[name], values, binary=True)
        except FAILURES as exc:
            raise self._failed(exc) from exc
