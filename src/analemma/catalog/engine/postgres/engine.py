"""The PostgreSQL engine: psycopg 3, a pool of autocommit connections, binary and prepared statements."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from psycopg.conninfo import make_conninfo

from analemma.catalog.engine.db import Engine, Row, Transaction
from analemma.catalog.engine.postgres.errors import (
    ConnectionDropped,
    outcome_unknown,
)
from analemma.catalog.engine.postgres.functions import functions
from analemma.catalog.engine.postgres.names import (
    USUAL,
    choose_schema,
    names,
    parse_url,
    server_name,
    split_schema,
)
from analemma.catalog.engine.postgres.pool import Connection, PostgresPool
from analemma.catalog.engine.postgres.transaction import PostgresTransaction
from analemma.catalog.engine.sql import POSTGRES
from analemma.catalog.engine.wakeups import ServerWakeups, Wakeups
from analemma.errors import Invalid, Unavailable

Result = TypeVar("Result")

OLDEST_SERVER = 140000
_PAUSES_S = [min(0.25, 0.002 * 2**attempt) for attempt in range(11)]
"""Before each further attempt at a transaction that the server asks to be run again."""


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

        def once() -> Result:
            try:
                with self._lent(*begin) as tx:
                    return move(tx)
            except ConnectionDropped as exc:
                if alone:
                    raise outcome_unknown(self.pool.server) from exc
                raise

        for pause_s in _PAUSES_S:
            try:
                return once()
            except Unavailable as exc:
                # Deadlocks and serialization failures.
                if not exc.facts.get("retry"):
                    raise
            # Jitter, so that two transactions that collided do not meet again in step.
            time.sleep(random.uniform(0.5, 1.5) * pause_s)
        return once()

    def wakeups(self) -> Wakeups:
        # A pooler lends another connection for each transaction: what was listened to would be another's.
        return ServerWakeups(lambda: self._on(self.pool.connect()), listening=not self.pgbouncer)

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
