"""The PostgreSQL engine: psycopg 3, a pool of autocommit connections, binary and prepared statements."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo

from analemma.catalog.engine.db import Engine, Row, Transaction
from analemma.catalog.engine.postgres import functions
from analemma.catalog.engine.postgres.errors import not_a_url, outcome_unknown, translate_connecting
from analemma.catalog.engine.postgres.names import (
    USUAL,
    choose_schema,
    names,
    parse_url,
    server_name,
    split_schema,
)
from analemma.catalog.engine.postgres.pool import Connection, Loan, PostgresPool
from analemma.catalog.engine.postgres.transaction import PostgresTransaction
from analemma.catalog.engine.postgres.wakeups import PostgresWakeups
from analemma.catalog.engine.sql import POSTGRES
from analemma.catalog.engine.wakeups import Wakeups
from analemma.errors import AnalemmaError, Invalid, Unavailable

Result = TypeVar("Result")

OLDEST_SERVER = 140000
MAX_ATTEMPTS = 12
FIRST_BACKOFF_S = 0.002
LONGEST_BACKOFF_S = 0.25


class PostgresEngine(Engine):
    """One schema of a database, through a pool of connections: the one that the URL names as its option `schema`, or
    where a store is, or `analemma`.

    `pgbouncer=True` keeps to what a transaction-pooling proxy allows: no prepared statements and no session settings;
    set statement_timeout and idle_in_transaction_session_timeout on the role instead.
    """

    sql = POSTGRES
    has_one_writer = False

    def __init__(
        self,
        url: str,
        *,
        max_connections: int = 8,
        connect_timeout_s: float = 10.0,
        statement_timeout_s: float | None = 60.0,
        pgbouncer: bool = False,
    ) -> None:
        self.pgbouncer = pgbouncer
        url, schema = split_schema(url)
        parts = parse_url(url)
        self.server = server_name(parts)
        if not pgbouncer:
            settings = [str(parts.get("options") or "")]
            if statement_timeout_s is not None:
                limit = round(statement_timeout_s * 1000)
                # Whoever is frozen inside of a transaction, or cut off, would keep its locks, and with them whatever
                # it was at, until it is heard of again: nobody could take that over. Only directly behind execute_many
                # it still does: psycopg ends that with a Flush, which stops PostgreSQL's clock until the next one.
                settings += [f"-c statement_timeout={limit}", f"-c idle_in_transaction_session_timeout={limit}"]
            parts["options"] = " ".join(filter(None, settings))
        parts.setdefault("connect_timeout", max(2, round(connect_timeout_s)))
        parts.setdefault("application_name", "analemma")
        self._conninfo = make_conninfo("", **{key: value for key, value in parts.items() if value not in (None, "")})
        self._arguments: dict[str, Any] = {
            "autocommit": True,
            # Our statements say $1 themselves; psycopg would parse a long one anew each time to put that in.
            "cursor_factory": psycopg.RawCursor,
            # From the first use on: the plan of a commit costs more than the commit.
            "prepare_threshold": None if pgbouncer else 0,
        }
        self.pool = PostgresPool(
            self._connect, most=max(1, max_connections), timeout_s=connect_timeout_s, server=self.server
        )
        super().__init__()
        # At once: what is wrong with the URL should be told here.
        connection = self.pool.connect()
        try:
            self._look_at(connection, schema)
        except BaseException:
            connection.close()
            raise
        self.pool.give_back(Loan(self.pool), connection)

    def all(self, name: str, /, **parameters: Any) -> list[Row]:
        try:
            with self.connection() as tx:
                return tx.all(name, **parameters)
        except ConnectionDropped:
            # By itself a statement may be sent again: the few that write find what they wrote, or are refused.
            self.pool.close_idle()
            with self.connection() as tx:
                return tx.all(name, **parameters)

    def snapshot(self, *, long: bool = False) -> AbstractContextManager[Transaction]:
        return _Session(self, "begin_snapshot", "take_time") if long else _Session(self, "begin_read")

    def write(self, move: Callable[[Transaction], Result], /, *, durable: bool = False, alone: bool = False) -> Result:
        def at_once() -> Result:
            try:
                with self.connection() as tx:
                    return move(tx)
            except ConnectionDropped as exc:
                raise outcome_unknown(self.server) from exc

        def once() -> Result:
            with _Session(self, "begin_write") as tx:
                if durable:
                    tx.all("commit_durably")
                return move(tx)

        return retry_contention(at_once if alone else once)

    def connection(self) -> AbstractContextManager[PostgresTransaction]:
        """An autocommit connection; raises ConnectionDropped when it was lost meanwhile."""
        return _Session(self)

    def wakeups(self) -> Wakeups:
        # A pooler lends another connection for each transaction: what was listened to would be another's.
        return PostgresWakeups(lambda: self.statements_on(self.pool.connect()), listening=not self.pgbouncer)

    def missing_functions(self, found: Mapping[str, str]) -> list[str]:
        return functions.missing(found)

    def function_changes(self, found: Mapping[str, str]) -> list[str]:
        return functions.changes(found)

    def identity(self) -> tuple[str | None, str]:
        ((database, may_ask),) = self.all("database_oid")
        system = self.one("system_identifier") if may_ask else None
        return None if system is None else str(system[0]), str(database)

    def vacuum(self) -> tuple[int, int]:
        raise Invalid(
            "PostgreSQL reuses free pages by itself",
            hint="leave it to autovacuum; VACUUM FULL or pg_repack give them back to the system",
        )

    def close(self) -> None:
        self.pool.close()

    def lose(self, *, quiet: bool) -> None:
        self.pool.lose()

    def statements_on(self, connection: Connection) -> PostgresTransaction:
        return PostgresTransaction(connection, self._names, self.statements, self.server)

    def _look_at(self, connection: Connection, schema: str | None) -> None:
        """Refuse a server that is too old, and find out where the store is."""
        if connection.info.server_version < OLDEST_SERVER:
            raise Unavailable(
                f"PostgreSQL at {self.server} is version {connection.info.server_version // 10000}",
                hint="14 or newer is needed",
            )
        self._names = names(schema or USUAL)
        if schema is None:
            found = self.statements_on(connection).all("find_stores")
            self._names = names(choose_schema([name for (name,) in found]))

    def _connect(self) -> Connection:
        try:
            return Connection.connect(self._conninfo, **self._arguments)
        except (psycopg.ProgrammingError, UnicodeEncodeError):
            raise not_a_url() from None  # an option that libpq refuses, with its value
        except psycopg.Error as exc:
            # Before it reached a server, libpq complains about the URL, and repeats it.
            cause = exc if "connection to server" in str(exc) else None
            raise translate_connecting(exc, self.server) from cause


class _Session:
    """Statements on a connection of the pool, for as long as a block of code takes: each by itself or, behind `begin`,
    a transaction that is committed at the end, and rolled back if the block raises.

    Not a generator: interrupted right behind its `yield`, one would keep the connection as long as the traceback is
    there, and a notebook keeps that."""

    __slots__ = ("_begin", "_engine", "_loan", "_tx")

    def __init__(self, engine: PostgresEngine, *begin: str) -> None:
        self._engine = engine
        self._begin = begin
        self._loan = Loan(engine.pool)

    def __enter__(self) -> PostgresTransaction:
        try:
            try:
                return self._start()
            except ConnectionDropped:
                # Nothing was sent on it that matters.
                self._loan.give_back()
                self._engine.pool.close_idle()
                return self._start()
        except BaseException:
            try:
                self._loan.give_back()
            finally:
                self._loan.give_back()
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        loan = self._loan
        try:
            try:
                if error is not None:
                    self._fail(error)
                elif self._begin:
                    self._commit()
            finally:
                loan.give_back()
        finally:
            loan.give_back()

    def _start(self) -> PostgresTransaction:
        self._tx = tx = self._engine.statements_on(self._loan.take())
        try:
            for name in self._begin:
                tx.control(name)
        except BaseException as exc:
            self._judge(exc)
            raise
        return tx

    def _commit(self) -> None:
        connection = self._loan.connection
        assert connection is not None
        try:
            self._tx.commit()
        except AnalemmaError as exc:
            if connection.broken:
                raise outcome_unknown(self._engine.server) from exc
            raise
        except BaseException:
            connection.close()
            raise

    def _fail(self, error: BaseException) -> None:
        connection = self._loan.connection
        if not self._begin or connection is None or _may_interrupt(error):
            self._judge(error)
        elif not connection.broken:
            try:
                self._tx.control("rollback_transaction")
            except BaseException as exc:
                if _may_interrupt(exc):
                    connection.close()
                raise

    def _judge(self, error: BaseException) -> None:
        """What is to be done with a connection on which a statement failed."""
        connection = self._loan.connection
        if connection is None:
            return
        if _may_interrupt(error):
            connection.close()
        elif connection.broken and isinstance(error, AnalemmaError):
            raise ConnectionDropped(error.message, hint=error.hint) from error


class ConnectionDropped(Unavailable):
    """The connection went away under a statement."""


def retry_contention(work: Callable[[], Result]) -> Result:
    """Run it again while the database asks for that (deadlocks, serialization failures), a bounded number of times."""
    for attempt in range(MAX_ATTEMPTS):
        try:
            return work()
        except Unavailable as exc:
            if not exc.facts.get("retry") or attempt == MAX_ATTEMPTS - 1:
                raise
        # Jitter, so that two transactions that collided do not meet again in step.
        time.sleep(random.uniform(0.5, 1.5) * min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2**attempt))
    raise AssertionError("unreachable")


def _may_interrupt(error: BaseException) -> bool:
    """Whether it may have been raised between two instructions of the driver, by a signal or from another thread. Then
    what the driver believes of the server (the transaction, what is prepared, who is to answer) may not be so, and
    neither may be asked to make it so."""
    return not isinstance(error, (AnalemmaError, GeneratorExit))
