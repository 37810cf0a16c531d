"""The PostgreSQL engine: psycopg 3, a pool of autocommit connections, binary and prepared statements.

Every statement names the schema of its tables. No session has a search path of ours, nor is one looked at: a pooler
lends its connections to everybody.
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from functools import cache, partial
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo

from analemma.catalog.engine.db import Engine, Row, Transaction
from analemma.catalog.engine.postgres.errors import FAILURES, ConnectionDropped, outcome_unknown, translate
from analemma.catalog.engine.postgres.functions import function, functions
from analemma.catalog.engine.postgres.pool import Connection, PostgresPool, parse_url, server_name, split_schema
from analemma.catalog.engine.schema import migrations
from analemma.catalog.engine.sql import POSTGRES, Lazy
from analemma.catalog.engine.wakeups import Listener, ServerListener, Wakeups
from analemma.errors import AnalemmaError, Internal, Invalid, Unavailable
from analemma.failpoints import hit

Result = TypeVar("Result")

OLDEST_SERVER = 140000
USUAL = "analemma"
FIRST = "public"
"""Where stores were before they had a schema of their own."""
_PAUSES_S = (*(min(0.25, 0.002 * 2**attempt) for attempt in range(11)), None)
"""After each attempt at a transaction that the server asks to be run again; None: it was the last."""


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
        self.pool = PostgresPool(
            make_conninfo("", **{key: value for key, value in parts.items() if value not in (None, "")}),
            server_name(parts),
            most=max(1, max_connections),
            timeout_s=connect_timeout_s,
            prepare=not pgbouncer,
        )
        super().__init__()
        # At once: what is wrong with the URL should be told here.
        connection = self.pool.connect()
        try:
            self._look_at(connection, schema)
        except BaseException:
            connection.close()
            raise
        self.pool.give_back(self, connection)

    def all(self, name: str, /, **parameters: Any) -> list[Row]:
        try:
            with self._lent() as tx:
                return tx.all(name, **parameters)
        except ConnectionDropped:
            # By itself a statement may be sent again: the few that write find what they wrote, or are refused.
            self.pool.close_idle()
            with self._lent() as tx:
                return tx.all(name, **parameters)

    def snapshot(self, *, long: bool = False) -> AbstractContextManager[Transaction]:
        return self._lent("begin_snapshot", "take_time") if long else self._lent("begin_read")

    def write(self, move: Callable[[Transaction], Result], /, *, durable: bool = False, alone: bool = False) -> Result:
        begin = () if alone else ("begin_write", "commit_durably") if durable else ("begin_write",)

        pauses = iter(_PAUSES_S)
        while True:
            try:
                with self._lent(*begin) as tx:
                    return move(tx)
            except Unavailable as exc:
                if alone and isinstance(exc, ConnectionDropped):
                    raise outcome_unknown(self.pool.server) from exc
                # Deadlocks and serialization failures.
                pause_s = next(pauses) if exc.facts.get("retry") else None
                if pause_s is None:
                    raise
            # Jitter, so that two transactions that collided do not meet again in step.
            time.sleep(random.uniform(0.5, 1.5) * pause_s)

    def wakeups(self) -> Wakeups:
        def connect() -> PostgresTransaction:
            return self._on(self.pool.connect())

        # A pooler lends another connection for each transaction: what was listened to would be another's.
        return Wakeups(Listener if self.pgbouncer else partial(ServerListener, connect), connect)

    def functions(self) -> Mapping[str, str]:
        return {name: function.create for name, function in functions().items()}

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

    def _lent(self, *begin: str) -> PostgresTransaction:
        """A connection of the pool for a block of code; raises ConnectionDropped when it was lost meanwhile."""
        return PostgresTransaction(self.pool, self._names, self.statements, *begin)

    def _on(self, connection: Connection) -> PostgresTransaction:
        """Statements on a connection that is nobody else's."""
        tx = self._lent()
        tx.connection = connection
        return tx

    def _look_at(self, connection: Connection, schema: str | None) -> None:
        """Refuse a server that is too old, and find out where the store is."""
        if connection.info.server_version < OLDEST_SERVER:
            raise Unavailable(
                f"PostgreSQL at {self.pool.server} is version {connection.info.server_version // 10000}",
                hint="14 or newer is needed",
            )
        self._names = names(schema or USUAL)
        if schema is None:
            found = self._on(connection).all("find_stores")
            self._names = names(choose_schema([name for (name,) in found]))


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


class Names:
    """The names of one schema: what statements, functions and scripts are sent as.

    In their text, tables stand behind a word that tells them from columns, and all functions begin alike. `{schema}` is
    the schema, `{channel}` what its workers listen to, and `{number}` tells its advisory locks from those of others."""

    def __init__(self, schema: str) -> None:
        number = int.from_bytes(hashlib.sha256(schema.encode()).digest()[:6])
        # Of the first they are what they always were: a program of an earlier release may be there, too.
        is_first = schema == FIRST
        self._tokens = {
            "{schema}": f'"{schema}"',
            "{channel}": "analemma_outbox" if is_first else f"analemma_outbox_{schema}",
            "{number}": "0" if is_first else str(number),
        }
        # As psycopg takes them; always the same objects, so that it finds them in its own caches.
        self.queries = Lazy(lambda name: self.qualified(POSTGRES.statements[name].sql))
        """Statements, by their names."""
        self.sent = Lazy(self.qualified)
        """Calls of functions, by their text."""

    def qualified(self, sql: str) -> bytes:
        """The same with the schema before every name that is ours."""
        for token, stands_for in self._tokens.items():
            sql = sql.replace(token, stands_for)
        before = self._tokens["{schema}"] + "."
        return _ours().sub(lambda found: found[0] if found["other"] else found[0] + before, sql).encode()


names = cache(Names)
"""Those of a schema."""


@cache
def _ours() -> re.Pattern[str]:
    """What stands before a name that is ours."""
    created = (re.findall(r"^CREATE (?:TABLE|VIEW) (\w+)", each.text, re.MULTILINE) for each in migrations())
    tables = "|".join(sorted({"migration", *(name for names in created for name in names)}))
    places = r"FROM|JOIN|INTO|UPDATE|USING|REFERENCES|TABLE|TABLE IF NOT EXISTS|VIEW|INDEX \w+ ON"
    return re.compile(
        rf"""(?P<other>'(?:[^']|'')*'|"[^"]*"|--[^\n]*)"""
        rf"|\b(?:{places})\s+(?=(?:{tables})\b(?!\.))|\bDROP INDEX\s+|\b(?=analemma_)"
    )


def choose_schema(found: Sequence[str]) -> str:
    """The schema that is meant where none is named, in a database with stores in these."""
    usual = [schema for schema in found if schema in (USUAL, FIRST)]
    if len(usual) > 1 or (found and not usual):
        raise Invalid(
            f"it is not clear which store is meant: the database has one in the schema {', and one in '.join(found)}",
            hint="add schema=NAME to the URL's options; a new store may have a new name",
        )
    return usual[0] if usual else USUAL
