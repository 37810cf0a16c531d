"""The pool of connections of one PostgreSQL engine, and what an interrupt leaves of it.

Ctrl-C, an alarm or a cancelled thread raises between any two instructions: also inside of the driver's pool, between
taking a connection out of it and handing it over, when nothing but a local variable knows that connection. A pool that
was left at such a moment counts a connection that nobody has, and once it has lost all of them it answers nobody. So a
loan knows when it is at the pool, and a pool that was left in the middle is given up: the next loan opens another.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import psycopg
import psycopg_pool

from analemma.catalog.engine import Row, lost_in_a_fork
from analemma.catalog.postgres_arrays import register
from analemma.catalog.postgres_errors import translate
from analemma.errors import Unavailable

Connection = psycopg.Connection[Row]
DriverPool = psycopg_pool.ConnectionPool[Connection]


class PostgresPool:
    """Lends autocommit connections; opened when the first is asked for."""

    def __init__(
        self, conninfo: str, arguments: dict[str, Any], *, least: int, most: int, timeout_s: float, server: str
    ) -> None:
        self._conninfo = conninfo
        self._arguments = arguments
        self._least = least
        self._most = max(least, most)
        self._timeout_s = timeout_s
        self.server = server
        self._opening = threading.Lock()
        self._pool: DriverPool | None = None
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._refusal: Callable[[], Unavailable] | None = None
        """What whoever wants a connection is told; None: it is open."""
        self.loans: dict[weakref.ref[Loan], DriverPool] = {}
        """What is lent, and of which pool. Found dead here, a loan never came to its end."""

    def lend(self) -> Loan:
        """A loan that has not begun."""
        return Loan(self)

    def current(self) -> DriverPool:
        """The driver's pool, opened if there is none."""
        if self._refusal is not None:
            raise self._refusal()
        self.heal()
        pool = self._pool
        return self._open() if pool is None else pool

    def heal(self) -> bool:
        """Give up a pool whose loan is gone without having come to its end; False if there is none.

        Not by a finalizer: an interrupt that hits one is lost, and one would run after every loan."""
        found = False
        for loan, pool in list(self.loans.items()):
            if loan() is None:
                self.loans.pop(loan, None)
                self.give_up(pool)
                found = True
        return found

    def is_current(self, pool: DriverPool) -> bool:
        """Whether connections of it may be lent again."""
        return self._pool is pool

    def give_up(self, pool: DriverPool) -> None:
        """Lend nothing of it any more: what is idle is closed now, and what is lent when it comes back."""
        with self._opening:
            if self._pool is pool:
                self._pool = None
        pool.close()

    def discard_dead(self) -> None:
        """After a restart of the server every connection is dead; what has sent nothing yet can simply go on."""
        pool = self._pool
        if pool is None:
            return
        try:
            pool.check()
        except BaseException:
            self.give_up(pool)
            raise

    def close(self) -> None:
        """Close what is idle; refuse to lend."""
        self._refusal = self._refusal or self._closed
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def lose(self) -> None:
        """In a forked child: the sockets are the parent's, and the pool's threads did not come along. Whatever is sent
        here goes nowhere."""
        self._opening = threading.Lock()
        self._refusal = self._refusal or lost_in_a_fork
        if self._pool is not None:
            _KEPT.append(self._pool)
            self._pool = None
        with open(os.devnull, "r+b") as nowhere:
            for connection in self._connections:
                if not connection.closed:
                    os.dup2(nowhere.fileno(), connection.fileno(), inheritable=False)

    def configure(self, connection: Connection) -> None:
        """Prepare a new connection for our statements, and for a fork."""
        self._connections.add(connection)
        register(connection)
        connection.prepared_max = 500

    def _closed(self) -> Unavailable:
        return Unavailable(f"the catalog at {self.server} is closed", hint="open it again")

    def _open(self) -> DriverPool:
        with self._opening:
            if self._refusal is not None:
                raise self._refusal()
            if self._pool is None:
                pool: DriverPool = psycopg_pool.ConnectionPool(
                    self._conninfo,
                    kwargs=self._arguments,
                    min_size=self._least,
                    max_size=self._most,
                    timeout=self._timeout_s,
                    configure=self.configure,
                    open=False,
                )
                # Wait for it: asked before its first connection is up, a pool makes a second one, and from then on
                # takes turns between two half-warm servers.
                try:
                    pool.open(wait=True, timeout=self._timeout_s)
                except BaseException as exc:
                    pool.close()
                    if isinstance(exc, psycopg_pool.PoolTimeout):
                        raise translate(exc, self.server) from exc
                    raise
                self._pool = pool
            return self._pool


class Loan:
    """A connection from `take` until `give_back`, which must follow, whatever happens: twice, because an interrupt may
    hit the first, and a connection that is not given back is missing for ever."""

    __slots__ = ("__weakref__", "_at_the_pool", "_lender", "_pool", "_self", "connection")

    def __init__(self, lender: PostgresPool) -> None:
        self._lender = lender
        self._self = weakref.ref(self)
        self._pool: DriverPool | None = None
        self._at_the_pool = False
        """The pool is being asked: only afterwards it is known what it has."""
        self.connection: Connection | None = None

    def take(self) -> Connection:
        """Wait for a connection, as long as the pool does."""
        lender = self._lender
        while True:
            pool = lender.current()
            lender.loans[self._self] = pool
            self._at_the_pool = True
            self._pool = pool
            try:
                self.connection = connection = pool.getconn()
                self._at_the_pool = False
                return connection
            except (psycopg_pool.PoolTimeout, psycopg_pool.PoolClosed) as exc:
                self._pool = None
                self._at_the_pool = False
                _unchain(exc)
                # Others may have given this pool up, or lost what was waited for here; who knows that may be garbage.
                gc.collect()
                if lender.is_current(pool) and not lender.heal():
                    raise translate(exc, lender.server) from exc

    def give_back(self) -> None:
        """Let the next one have the connection; one that is broken or closed is replaced. May be repeated."""
        pool, connection = self._pool, self.connection
        if pool is None:
            self._lender.loans.pop(self._self, None)
            return
        if self._at_the_pool:
            self._lender.give_up(pool)
            if connection is not None:
                connection.close()
        elif connection is not None:
            if self._lender.is_current(pool):
                self._at_the_pool = True
                self.connection = None
                pool.putconn(connection)
            else:
                connection.close()
        self.connection = None
        self._pool = None
        self._at_the_pool = False
        self._lender.loans.pop(self._self, None)


def _unchain(error: BaseException | None) -> None:
    """Part an error of the driver's pool from what was being handled when it came. The pool keeps it with whoever
    waited, and it would keep the frames of an interrupt, and so the loan that was lost there."""
    while isinstance(error, psycopg_pool.PoolTimeout | psycopg_pool.PoolClosed):
        context, error.__context__ = error.__context__, None
        error = context


_KEPT: list[DriverPool] = []
"""Pools of a parent: closed here, one would wait for threads that did not come along."""
