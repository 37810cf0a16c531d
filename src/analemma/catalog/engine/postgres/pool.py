"""The connections of one PostgreSQL engine: lent to one thread at a time, kept for the next.

Ctrl-C, an alarm or a cancelled thread raises between any two instructions, also between taking a connection and noting
who has it. So nothing is counted: what is lent is lent to borrowers that somebody still knows, and a connection that
went astray is closed with the last that knew it.
"""

from __future__ import annotations

import os
import re
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast
from urllib.parse import unquote

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import BytesBinaryDumper, StrBinaryDumper

from analemma.catalog.engine.db import Array, Row, lost_in_a_fork
from analemma.catalog.engine.postgres.errors import not_a_url, translate_connecting
from analemma.errors import Invalid, Unavailable

LONGEST_IDLE_S = 600.0
LOOK_AGAIN_S = 0.1
"""How often whoever waits looks whether a borrower went astray, of which nobody tells."""
_SCHEMA = re.compile(r"(?!pg_|information_schema$)[a-z_][a-z0-9_]{0,46}")


class Connection(psycopg.Connection[Row]):
    """One that may be lost without a warning: the driver closes what nobody knows any more."""

    def __del__(self, *_: object) -> None:
        pass


class PostgresPool:
    """Lends autocommit connections, at most so many at a time."""

    def __init__(self, conninfo: str, server: str, *, most: int, timeout_s: float, prepare: bool) -> None:
        self._conninfo = conninfo
        self._most = most
        self._timeout_s = timeout_s
        self._prepare = prepare
        self.server = server
        """Where it is, without the password."""
        self._gate = threading.Lock()
        self._idle: deque[tuple[float, Connection]] = deque()
        """Since when they are, and those that were used last at the end."""
        self._lent: weakref.WeakSet[object] = weakref.WeakSet()
        self._waiting: deque[threading.Lock] = deque()
        self._all: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._refusal: Callable[[], Unavailable] | None = None
        """What whoever wants a connection is told; None: it is open."""

    def connect(self) -> Connection:
        """A connection that belongs to nobody else."""
        try:
            connection = Connection.connect(
                self._conninfo,
                autocommit=True,
                # Our statements say $1 themselves; psycopg would parse a long one anew each time to put that in.
                cursor_factory=psycopg.RawCursor,
                # From the first use on: the plan of a commit costs more than the commit.
                prepare_threshold=0 if self._prepare else None,
            )
        except (psycopg.Error, UnicodeEncodeError) as exc:
            # Before it reached a server, libpq complains about the URL, and repeats it.
            cause = exc if "connection to server" in str(exc) else None
            raise translate_connecting(exc, self.server) from cause
        self._all.add(connection)
        connection.prepared_max = 500
        _make_binary(connection.adapters)
        return connection

    def take(self, borrower: object) -> Connection:
        """Wait for a connection, as long as the timeout allows; `give_back` must follow, whatever happens."""
        deadline = time.monotonic() + self._timeout_s
        self._await_room(borrower, deadline)
        with suppress(IndexError):
            while True:
                _, connection = self._idle.pop()
                if _is_alive(connection):
                    return connection
                connection.close()
        pause_s = 0.05
        while True:
            try:
                return self.connect()
            except Unavailable:
                # The server may be starting again.
                if time.monotonic() + pause_s >= deadline:
                    raise
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 1.0)

    def give_back(self, borrower: object, connection: Connection | None) -> None:
        """Let the next one have it; one that is broken or closed is not kept. May be repeated without it."""
        if connection is not None and not connection.closed:
            self._idle.append((time.monotonic(), connection))
        self._lent.discard(borrower)
        self._call_first()
        if self._refusal is not None:
            self.close_idle()
        else:
            self._close_stale()

    def close_idle(self) -> None:
        """When one was found dead, most of the others are, too."""
        with suppress(IndexError):
            while True:
                self._idle.pop()[1].close()

    def _close_stale(self) -> None:
        """The one that has been idle longest, if it was too long. Another thread may take it, or all, meanwhile."""
        with suppress(IndexError):
            if self._idle[0][0] < time.monotonic() - LONGEST_IDLE_S:
                self._idle.popleft()[1].close()

    def close(self) -> None:
        """Close what is idle; refuse to lend."""
        self._refusal = self._refusal or self._closed
        self.close_idle()

    def lose(self) -> None:
        """In a forked child: the sockets are the parent's. Whatever is sent here goes nowhere."""
        self._gate = threading.Lock()
        self._refusal = self._refusal or lost_in_a_fork
        with open(os.devnull, "r+b") as nowhere:
            for connection in self._all:
                if not connection.closed:
                    os.dup2(nowhere.fileno(), connection.fileno(), inheritable=False)

    def _await_room(self, borrower: object, deadline: float) -> None:
        """Wait until one more may be lent, behind those who came first."""
        if self._may_lend(borrower, None):
            return
        ticket = threading.Lock()
        ticket.acquire()
        try:
            self._waiting.append(ticket)
            while not self._may_lend(borrower, ticket):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise Unavailable(
                        f"no connection to PostgreSQL at {self.server} became free",
                        hint="check that it runs, or raise the pool size",
                    )
                ticket.acquire(timeout=min(left_s, LOOK_AGAIN_S))
        finally:
            with suppress(ValueError):
                self._waiting.remove(ticket)
            # There may be room for the next one, too.
            self._call_first()

    def _call_first(self) -> None:
        """Have whoever waits longest look for itself."""
        for ticket in tuple(self._waiting)[:1]:
            with suppress(RuntimeError):  # it is about to
                ticket.release()

    def _may_lend(self, borrower: object, ticket: threading.Lock | None) -> bool:
        """Note one more that is lent, if there is room, and nobody waits for it longer."""
        with self._gate:
            if self._refusal is not None:
                raise self._refusal()
            # One that has waited leaves at any moment: looked at once.
            is_next = tuple(self._waiting)[:1] in ((), (ticket,))
            if is_next and len(self._lent) < self._most:
                self._lent.add(borrower)
                return True
            return False

    def _closed(self) -> Unavailable:
        return Unavailable(f"the catalog at {self.server} is closed", hint="open it again")


class ArrayDumper(Dumper):
    """The statement says what it is an array of."""

    format = Format.BINARY

    def dump(self, obj: Any) -> Buffer:
        return cast(bytes, obj)


def _make_binary(adapters: AdaptersMap) -> None:
    """Make everything binary, and every integer a bigint.

    psycopg would choose an integer's type by its magnitude, and each choice would be another prepared statement."""
    adapters.register_dumper(int, Int8BinaryDumper)
    adapters.register_dumper(bytes, BytesBinaryDumper)
    adapters.register_dumper(str, StrBinaryDumper)
    adapters.register_dumper(Array, ArrayDumper)


def _is_alive(connection: Connection) -> bool:
    """Whether nothing came while nobody asked: a server that goes away says so."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def split_schema(url: str) -> tuple[str, str | None]:
    """The URL as PostgreSQL knows it, and the schema that it names."""
    base, asked, options = url.partition("?")
    kept: list[str] = []
    schemas: list[str] = []
    for option in options.split("&"):
        name, _, value = option.partition("=")
        (schemas if name == "schema" else kept).append(value if name == "schema" else option)
    if not schemas:
        return url, None
    if len(set(schemas)) > 1:
        raise Invalid("the URL names two schemas", hint="say schema= once")
    schema = unquote(schemas[0])
    # Nothing that would have to be quoted.
    if _SCHEMA.fullmatch(schema) is None:
        raise Invalid(
            f"not the name of a schema: {schema[:60]!r}",
            hint="use up to 47 small letters, digits and _, not beginning with a digit or pg_",
        )
    return base + (asked + "&".join(kept) if kept else ""), schema


def parse_url(url: str) -> dict[str, Any]:
    """What the URL says. A special character that was not escaped puts a piece of the password where we print it."""
    try:
        parts = conninfo_to_dict(url)
    except (psycopg.Error, UnicodeEncodeError):
        raise not_a_url() from None
    ports = str(parts.get("port") or "").split(",")
    if (
        "\0" in url
        or any("@" in str(parts.get(key) or "") for key in ("host", "hostaddr", "port", "dbname"))
        or not all(port == "" or (port.isascii() and port.isdigit()) for port in ports)
    ):
        raise not_a_url()
    return parts


def server_name(parts: Mapping[str, Any]) -> str:
    """Where it is, without the password."""
    host = parts.get("host") or "localhost"
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"{host}{port}/{parts.get('dbname') or ''}"
