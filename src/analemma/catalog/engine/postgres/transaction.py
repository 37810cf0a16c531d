"""Statements on one PostgreSQL connection, for as long as a block of code takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any

import psycopg

from analemma.catalog.engine.db import Row, Transaction
from analemma.catalog.engine.postgres.errors import (
    FAILURES,
    ConnectionDropped,
    outcome_unknown,
    translate,
)
from analemma.catalog.engine.postgres.functions import function
from analemma.catalog.engine.postgres.names import Names
from analemma.catalog.engine.postgres.pool import Connection, PostgresPool
from analemma.catalog.engine.sql import POSTGRES
from analemma.errors import AnalemmaError, Internal
from analemma.failpoints import hit


class PostgresTransaction(Transaction):
    """A connection of the pool is lent to it for a block of code: for statements that are each by themselves or, behind
    those of `begin`, for a transaction that is committed at the end, and rolled back if the block raises.

    Not a generator: interrupted right behind its `yield`, one would keep the connection as long as the traceback is
    there, and a notebook keeps that."""

    __slots__ = ("__weakref__", "_begin", "_failure", "_lent", "_names", "_pool", "connection")

    def __init__(self, pool: PostgresPool, names: Names, counts: Counter[str], *begin: str) -> None:
        super().__init__(POSTGRES, counts)
        self._pool = pool
        self._names = names
        self._begin = begin
        self._lent: Connection | None = None
        """What is to be given back."""
        self._failure: AnalemmaError | None = None
        """Why PostgreSQL refuses the rest of this transaction. Without the traceback: that knows this, which then
        would be known for ever."""
        self.connection: Connection

    def __enter__(self) -> PostgresTransaction:
        try:
            try:
                self._start()
            except ConnectionDropped:
                # Nothing was sent on it that matters.
                self._give_back()
                self._pool.close_idle()
                self._start()
        except BaseException as exc:
            self.__exit__(None, exc, None)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Given back twice: an interrupt may hit the first, and what is not is missing as long as anything knows this.
        try:
            try:
                self._end(error)
            finally:
                self._give_back()
        finally:
            self._give_back()

    @property
    def is_open(self) -> bool:
        return bool(self._begin)

    def all(self, name: str, /, **parameters: Any) -> list[Row]:
        cursor = self._run(name, parameters)
        return [] if cursor is None else cursor.fetchall()

    def execute(self, name: str, /, **parameters: Any) -> int:
        cursor = self._run(name, parameters)
        return 0 if cursor is None else cursor.rowcount

    def execute_many(self, name: str, rows: Iterable[Sequence[Any]], /) -> int:
        self._counts[name] += 1
        cursor = self.connection.cursor()
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
            row = self.connection.execute(self._names.sent[called.call], called.bind(given), binary=True).fetchone()
            hit(called.after)
        except FAILURES as exc:
            raise self._failed(exc) from exc
        assert row is not None
        return None if not called.answers else row[0] or []

    def script(self, sql: str, /) -> None:
        self._send(self._names.qualified(self._sql.script(sql)))

    def control(self, name: str) -> str | None:
        """Begin, commit and the like: uncounted, never prepared; what the server says."""
        return self._send(self._names.queries[name])

    def _send(self, query: bytes) -> str | None:
        try:
            return self.connection.execute(query, prepare=False).statusmessage
        except psycopg.Error as exc:
            raise self._failed(exc) from exc

    def _run(self, name: str, parameters: dict[str, Any]) -> psycopg.Cursor[Row] | None:
        try:
            statement, values = self._bound(name, parameters)
            if not statement.sql:
                return None
            return self.connection.execute(self._names.queries[name], values, binary=True)
        except FAILURES as exc:
            raise self._failed(exc) from exc

    def _failed(self, exc: Exception) -> AnalemmaError:
        error = translate(exc, self._pool.server)
        if self.connection.broken:
            error = ConnectionDropped(error.message, hint=error.hint)
        self._failure = copy(error)
        return error

    def _start(self) -> None:
        self._lent = self.connection = self._pool.take(self)
        for name in self._begin:
            self.control(name)

    def _end(self, error: BaseException | None) -> None:
        connection = self._lent
        if connection is None:
            return
        try:
            if error is None:
                self._commit()
            elif _may_interrupt(error):
                connection.close()
            elif self._begin and not connection.broken:
                self.control("rollback_transaction")
        except BaseException as exc:
            if _may_interrupt(exc):
                connection.close()
            raise

    def _commit(self) -> None:
        try:
            # Asked to commit a transaction in which a statement failed, PostgreSQL rolls it back without an error.
            if self._begin and self.control("commit_transaction") != "COMMIT":
                raise self._failure or Internal(
                    "PostgreSQL rolled a transaction back when it was to commit", hint="nothing was changed"
                )
        except ConnectionDropped as exc:
            raise outcome_unknown(self._pool.server) from exc

    def _give_back(self) -> None:
        """Let the next one have the connection. May be repeated."""
        connection, self._lent = self._lent, None
        self._pool.give_back(self, connection)


def _may_interrupt(error: BaseException) -> bool:
    """Whether it may have been raised between two instructions of the driver, by a signal or from another thread. Then
    what the driver believes of the server (the transaction, what is prepared, who is to answer) may not be so, and
    neither may be asked to make it so."""
    return not isinstance(error, (AnalemmaError, GeneratorExit))
