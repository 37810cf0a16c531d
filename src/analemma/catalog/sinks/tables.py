"""Tables of other databases that documents are shipped to. Each row has its `ship_seq`, and no write makes it smaller.

The database is not our catalog: it has its own connection, and a table that was perhaps there before."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote

from analemma.catalog.engine.arrays import Array
from analemma.catalog.engine.sql import POSTGRES, SQLITE, Sql, Statement
from analemma.errors import AnalemmaError, Invalid, Unavailable

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_STANDS_FOR_TABLE: Final = '"sink_table"'


class SinkRow(NamedTuple):
    """One document."""

    doc_id: str
    ship_seq: int
    tenant: str
    entity_key: str
    version: int
    body: str | None
    """JSON; None: deleted."""


class SinkTable(Protocol):
    """A table in a database of either kind. Threads may share it.

    Unavailable: nothing was changed, or nobody knows; trying again is right. Invalid: a row does not fit the database,
    and nothing was changed."""

    def write(self, rows: Sequence[SinkRow], *, remove_deleted: bool) -> set[str]:
        """Write each row that is not older than what is there; the ids of those that are. Deleted documents leave a row
        without a body or, with `remove_deleted`, none. Each id stands there once."""

    def check(self) -> None:
        """Return if the table can be read and has the columns."""

    def close(self) -> None:
        """Give back the connection."""


def open_sink_table(url: str, table: str, *, create: bool, timeout_s: float) -> SinkTable:
    """A table, `name` or `schema.name`, of the PostgreSQL database or SQLite file that a URL names. It is connected to
    when it is first used."""
    if url.startswith(("postgres://", "postgresql://")):
        return PostgresSinkTable(url, _quoted(table), create=create, timeout_s=timeout_s)
    path = url.removeprefix("sqlite:///") if url.startswith("sqlite:") else ""
    if not path:
        raise Invalid("not the URL of a database", hint="use postgresql://... or sqlite:///path")
    if "." in table:
        raise Invalid("a table of SQLite has no schema", hint="name the table alone")
    return SqliteSinkTable(path, _quoted(table), create=create, timeout_s=timeout_s)


class SqliteSinkTable:
    """A table in a file."""

    def __init__(self, path: str, quoted_table: str, *, create: bool, timeout_s: float) -> None:
        self._path = path
        self._statements = _load(SQLITE, quoted_table)
        self._create = create
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def write(self, rows: Sequence[SinkRow], *, remove_deleted: bool) -> set[str]:
        removed = [row for row in rows if row.body is None and remove_deleted]
        written = [row for row in rows if row.body is not None or not remove_deleted] if removed else list(rows)
        with self._lock:
            try:
                connection = self._connected()
                connection.execute("BEGIN IMMEDIATE")
                try:
                    stale = self._remove(connection, removed) | self._upsert(connection, written)
                    connection.execute("COMMIT")
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
            except (sqlite3.Error, OverflowError, UnicodeEncodeError) as exc:
                raise self._translated(exc) from exc
        return stale

    def check(self) -> None:
        with self._lock:
            try:
                self._run(self._connected(), "check_sink_table").fetchall()
            except sqlite3.Error as exc:
                raise self._translated(exc) from exc

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _upsert(self, connection: sqlite3.Connection, rows: Sequence[SinkRow]) -> set[str]:
        if not rows:
            return set()
        statement = self._statements["upsert_document"]
        assert statement.parameters == SinkRow._fields
        changed = connection.executemany(statement.sql, (statement.bind(list(row)) for row in rows)).rowcount
        if changed == len(rows):
            return set()
        return {row.doc_id for row in rows if self._held(connection, row.doc_id) > row.ship_seq}

    def _remove(self, connection: sqlite3.Connection, rows: Sequence[SinkRow]) -> set[str]:
        for row in rows:
            self._run(connection, "remove_document", doc_id=row.doc_id, ship_seq=row.ship_seq)
        return {row.doc_id for row in rows if self._held(connection, row.doc_id) > row.ship_seq}

    def _held(self, connection: sqlite3.Connection, doc_id: str) -> int:
        """The `ship_seq` of the row that is there; -1 if none is."""
        row = self._run(connection, "find_ship_seq", doc_id=doc_id).fetchone()
        return -1 if row is None else int(row[0])

    def _run(self, connection: sqlite3.Connection, name: str, **parameters: Any) -> sqlite3.Cursor:
        statement = self._statements[name]
        values = [parameters[parameter] for parameter in statement.parameters]
        return connection.execute(statement.sql, statement.bind(values))

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            mode = "rwc" if self._create else "rw"
            connection = sqlite3.connect(
                f"file:{quote(self._path)}?mode={mode}",
                uri=True,
                timeout=self._timeout_s,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                if self._create:
                    self._run(connection, "create_sink_table")
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _translated(self, exc: Exception) -> AnalemmaError:
        if not isinstance(exc, sqlite3.Error):
            return Invalid("a value does not fit the database")
        code = (getattr(exc, "sqlite_errorcode", None) or 0) & 0xFF
        text = " ".join(str(exc).split())
        if code in (sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_CONSTRAINT):
            return Invalid(f"the database refuses a document: {text}")
        return Unavailable(f"{self._path}: {text}", hint="check the file, and the table's name and columns")


class PostgresSinkTable:
    """A table on a server."""

    def __init__(self, url: str, quoted_table: str, *, create: bool, timeout_s: float) -> None:
        try:
            import psycopg

            from analemma.catalog.engine.postgres.names import parse_url, server_name
            from analemma.catalog.engine.postgres.pool import ArrayDumper
        except ModuleNotFoundError as exc:
            raise Unavailable("PostgreSQL needs psycopg", hint="pip install 'analemma[postgres]'") from exc
        self._psycopg = psycopg
        self._arrays = ArrayDumper
        self._server = server_name(parse_url(url))
        self._url = url
        self._statements = _load(POSTGRES, quoted_table)
        self._create = create
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def write(self, rows: Sequence[SinkRow], *, remove_deleted: bool) -> set[str]:
        removed = [row for row in rows if row.body is None and remove_deleted]
        written = [row for row in rows if row.body is not None or not remove_deleted]
        stale: set[str] = set()
        with self._lock, self._translating() as connection, connection.transaction():
            if removed:
                stale |= self._ids(connection, "remove_documents", documents=removed)
            if written:
                stale |= {row.doc_id for row in written} - self._ids(connection, "upsert_documents", documents=written)
        return stale

    def check(self) -> None:
        with self._lock, self._translating() as connection:
            self._ids(connection, "check_sink_table")

    def close(self) -> None:
        with self._lock:
            self._drop_connection()

    def _ids(self, connection: Any, name: str, **parameters: Any) -> set[str]:
        statement = self._statements[name]
        values = [parameters[parameter] for parameter in statement.parameters]
        with self._psycopg.RawCursor(connection) as cursor:
            return {row[0] for row in cursor.execute(statement.sql.encode(), statement.bind(values)).fetchall()}

    def _connected(self) -> Any:
        if self._connection is None:
            milliseconds = max(1, int(self._timeout_s * 1000))
            connection = self._psycopg.connect(
                self._url,
                autocommit=True,
                # The server may be behind a pooler that forgets prepared statements.
                prepare_threshold=None,
                connect_timeout=max(2, int(self._timeout_s)),
            )
            connection.adapters.register_dumper(Array, self._arrays)
            try:
                self._ids(connection, "set_timeouts", timeout=f"{milliseconds}ms")
                if self._create:
                    connection.execute(self._statements["create_sink_table"].sql.encode())
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    @contextlib.contextmanager
    def _translating(self) -> Iterator[Any]:
        """The connection inside a block; an error of the driver leaves it as one of ours."""
        try:
            connection = self._connected()
        except self._psycopg.Error as exc:
            # Also what making the table may meet, if another makes it too: none of it is about documents.
            raise self._unavailable(exc) from exc
        try:
            yield connection
        except (self._psycopg.Error, UnicodeEncodeError) as exc:
            translated = self._translated(exc)
            if not isinstance(translated, Invalid):
                # Perhaps it ended, perhaps the table has changed: the next one begins with a new connection.
                self._drop_connection()
            raise translated from exc
        except BaseException:
            self._drop_connection()
            raise

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _translated(self, exc: Exception) -> AnalemmaError:
        state = getattr(exc, "sqlstate", None) or ""
        refusals = (UnicodeEncodeError, self._psycopg.DataError, self._psycopg.IntegrityError)
        # Class 54: what is too large for a row or an index.
        if isinstance(exc, refusals) or state.startswith("54"):
            return Invalid(f"the database refuses a document: {_first_line(exc)}")
        return self._unavailable(exc)

    def _unavailable(self, exc: Exception) -> Unavailable:
        state = getattr(exc, "sqlstate", None)
        # Without a state it is libpq that speaks, and that may repeat parts of the URL.
        what = f" ({state}: {_first_line(exc)})" if state else ""
        return Unavailable(
            f"PostgreSQL at {self._server} did not take the documents{what}",
            hint="check that it runs, and the table's name, columns and rights",
        )


def _quoted(table: str) -> str:
    """The identifier in quotes. It has nothing in it that would need escaping."""
    parts = table.split(".")
    if len(parts) > 2 or not all(_NAME.fullmatch(part) for part in parts):
        raise Invalid(
            f"not the name of a table: {table[:80]!a}",
            hint="use letters, digits and '_', up to 63; a schema may stand before a dot",
        )
    return ".".join(f'"{part}"' for part in parts)


@cache
def _load(sql: Sql, quoted_table: str) -> dict[str, Statement]:
    """The statements for one table. An identifier cannot be a parameter, so it stands in their text."""
    file = resources.files("analemma.catalog") / "sql" / "foreign" / "sink_table.sql"
    text = file.read_text(encoding="utf-8").replace(_STANDS_FOR_TABLE, quoted_table)
    return sql.parse(text, source=file.name)


def _first_line(exc: Exception) -> str:
    """Without the lines in which PostgreSQL quotes the values."""
    return str(exc).partition("\n")[0]
