"""The PostgreSQL engine: psycopg 3, a pool of autocommit connections, binary and prepared statements."""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import psycopg
import psycopg_pool
from psycopg.conninfo import make_conninfo

from analemma.catalog.engine import Row, Transaction
from analemma.catalog.postgres_arrays import register
from analemma.catalog.postgres_errors import not_a_url, outcome_unknown, translate, translate_connecting
from analemma.catalog.postgres_transaction import PostgresTransaction
from analemma.catalog.postgres_url import parse_url, server_name
from analemma.catalog.statements import Dialect, load
from analemma.errors import AnalemmaError, Unavailable

Result = TypeVar("Result")
Connection = psycopg.Connection[Row]

OLDEST_SERVER = 140000
MAX_ATTEMPTS = 12
FIRST_BACKOFF_S = 0.002
LONGEST_BACKOFF_S = 0.25


class PostgresEngine:
    """One database, through a pool of connections.

    `pgbouncer=True` keeps to what a transaction-pooling proxy allows: no prepared statements and no session settings;
    set statement_timeout and idle_in_transaction_session_timeout on the role instead.
    """

    dialect: Dialect = "postgres"

    def __init__(
        self,
        url: str,
        *,
        min_connections: int = 1,
        max_connections: int = 8,
        connect_timeout_s: float = 10.0,
        statement_timeout_s: float | None = 60.0,
        pgbouncer: bool = False,
    ) -> None:
        self.statements: Counter[str] = Counter()
        self.pgbouncer = pgbouncer
        self._sql = load(self.dialect)
        self._sizes = (min_connections, max(min_connections, max_connections))
        self._connect_timeout_s = connect_timeout_s
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
        self._closed = False
        self._opening = threading.Lock()
        self._pool: psycopg_pool.ConnectionPool[Connection] | None = None
        # Once by hand: a pool that cannot connect only says that it timed out.
        with self._connect() as connection:
            if connection.info.server_version < OLDEST_SERVER:
                raise Unavailable(
                    f"PostgreSQL at {self.server} is version {connection.info.server_version // 10000}",
                    hint="14 or newer is needed",
                )
        _ENGINES.add(self)

    def one(self, name: str, /, **parameters: Any) -> Row | None:
        rows = self.all(name, **parameters)
        return rows[0] if rows else None

    def all(self, name: str, /, **parameters: Any) -> list[Row]:
        try:
            with self.connection() as (_, tx):
                return tx.all(name, **parameters)
        except ConnectionDropped:
            self._discard_dead_connections()
            with self.connection() as (_, tx):
                return tx.all(name, **parameters)

    def execute(self, name: str, /, **parameters: Any) -> int:
        return self.write(lambda tx: tx.execute(name, **parameters))

    def transaction(self, *, write: bool = False) -> AbstractContextManager[Transaction]:
        return self._transaction("begin_write" if write else "begin_read")

    @contextmanager
    def snapshot(self) -> Iterator[Transaction]:
        with self._transaction("begin_snapshot") as tx:
            tx.control("take_time")
            yield tx

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[PostgresTransaction]:
        try:
            connection, tx = self._begin(begin)
        except ConnectionDropped:
            self._discard_dead_connections()
            connection, tx = self._begin(begin)
        try:
            try:
                yield tx
            except BaseException:
                if not connection.broken:
                    tx.control("rollback_transaction")
                raise
            try:
                tx.commit()
            except AnalemmaError as exc:
                if connection.broken:
                    raise outcome_unknown(self.server) from exc
                raise
        finally:
            self._give_back(connection)

    def write(self, move: Callable[[Transaction], Result], /, *, durable: bool = False, lazy: bool = False) -> Result:
        def once() -> Result:
            with self.transaction(write=True) as tx:
                if durable:
                    tx.all("commit_durably")
                return move(tx)

        return retry_contention(once)

    @contextmanager
    def connection(self) -> Iterator[tuple[Connection, PostgresTransaction]]:
        """An autocommit connection; raises ConnectionDropped when it was lost meanwhile."""
        connection = self._borrow()
        try:
            yield connection, self._statements_on(connection)
        except AnalemmaError as exc:
            if connection.broken:
                raise ConnectionDropped(exc.message, hint=exc.hint) from exc
            raise
        finally:
            self._give_back(connection)

    def dedicated(self) -> DedicatedConnection:
        """A connection outside of the pool, for one that listens or notifies."""
        connection = self._connect()
        return DedicatedConnection(connection, self._statements_on(connection))

    def close(self) -> None:
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _discard_dead_connections(self) -> None:
        """After a restart of the server every pooled connection is dead; what has sent nothing yet can simply go on."""
        if self._pool is not None:
            self._pool.check()

    def _begin(self, begin: str) -> tuple[Connection, PostgresTransaction]:
        connection = self._borrow()
        tx = self._statements_on(connection)
        try:
            tx.control(begin)
        except BaseException as exc:
            broken = connection.broken
            self._give_back(connection)
            if broken and isinstance(exc, AnalemmaError):
                raise ConnectionDropped(exc.message, hint=exc.hint) from exc
            raise
        return connection, tx

    def _statements_on(self, connection: Connection) -> PostgresTransaction:
        return PostgresTransaction(connection, self._sql, self.statements, self.server)

    def _connect(self) -> Connection:
        try:
            connection = psycopg.connect(self._conninfo, **self._arguments)
        except (psycopg.ProgrammingError, UnicodeEncodeError):
            raise not_a_url() from None  # an option that libpq refuses, with its value
        except psycopg.Error as exc:
            # Before it reached a server, libpq complains about the URL, and repeats it.
            cause = exc if "connection to server" in str(exc) else None
            raise translate_connecting(exc, self.server) from cause
        return connection

    def _borrow(self) -> Connection:
        if self._closed:
            raise Unavailable(f"the catalog at {self.server} is closed", hint="open it again")
        pool = self._pool or self._open_pool()
        try:
            return pool.getconn()
        except (psycopg_pool.PoolTimeout, psycopg_pool.PoolClosed) as exc:
            raise translate(exc, self.server) from exc

    def _give_back(self, connection: Connection) -> None:
        pool = self._pool
        if pool is None:
            connection.close()
        else:
            pool.putconn(connection)

    def _open_pool(self) -> psycopg_pool.ConnectionPool[Connection]:
        least, most = self._sizes
        with self._opening:
            if self._pool is None:
                pool: psycopg_pool.ConnectionPool[Connection] = psycopg_pool.ConnectionPool(
                    self._conninfo,
                    kwargs=self._arguments,
                    min_size=least,
                    max_size=most,
                    timeout=self._connect_timeout_s,
                    configure=_configure,
                    open=False,
                )
                # Wait for it: asked before its first connection is up, a pool makes a second one, and from then on
                # takes turns between two half-warm servers.
                try:
                    pool.open(wait=True, timeout=self._connect_timeout_s)
                except psycopg_pool.PoolTimeout as exc:
                    pool.close()
                    raise translate(exc, self.server) from exc
                self._pool = pool
            return self._pool

    def _abandon(self) -> None:
        """In a forked child: the sockets are the parent's, and the pool's threads did not come along."""
        _ABANDONED.append(self._pool)
        self._pool = None
        self._opening = threading.Lock()


class DedicatedConnection:
    """A connection that one thread has to itself."""

    def __init__(self, connection: Connection, statements: PostgresTransaction) -> None:
        self._connection = connection
        self._statements = statements

    def execute(self, name: str) -> None:
        """Run a statement by its name."""
        self._statements.control(name)

    def heard(self, seconds: float) -> bool:
        """Wait for a notification, at most so long."""
        return any(True for _ in self._connection.notifies(timeout=seconds, stop_after=1))

    def close(self) -> None:
        """Give it back to the server."""
        self._connection.close()


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


def _configure(connection: Connection) -> None:
    register(connection)
    connection.prepared_max = 500


_ENGINES: weakref.WeakSet[PostgresEngine] = weakref.WeakSet()
_ABANDONED: list[object] = []


def _after_fork_in_child() -> None:
    for engine in list(_ENGINES):
        engine._abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
