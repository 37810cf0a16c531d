"""Tables of other databases that documents are shipped to. Each row has its `ship_seq`, and no write makes it smaller.

The database is not our catalog: it has its own connection, and a table that was perhaps there before."""

from __future__ import annotations

import re
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from analemma.catalog.engine.db import Array, Statement
from analemma.catalog.engine.sql import POSTGRES, SQLITE, Sql
from analemma.errors import Invalid, Unavailable

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


class SinkTable(ABC):
    """A table in a database of either kind. Threads may share it. An error ends its connection, and with that its
    transaction; the next call makes another.

    Unavailable: nothing was changed, or nobody knows; trying again is right. Invalid: a row does not fit the database,
    and nothing was changed."""

    begin = "BEGIN"
    errors: tuple[type[Exception], ...]
    """What its driver raises."""

    def __init__(self, sql: Sql, table: str, *, create: bool, timeout_s: float) -> None:
        self._statements = _load(sql, _quoted(table))
        self._create = create
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._connection: Any = None

    def write(self, rows: Sequence[SinkRow], *, remove_deleted: bool) -> set[str]:
        """Write each row that is not older than what is there; the ids of those that are. Deleted documents leave a row
        without a body or, with `remove_deleted`, none. Each id stands there once."""
        removed = [row for row in rows if row.body is None and remove_deleted]
        written = [row for row in rows if row.body is not None or not remove_deleted]
        stale: set[str] = set()
        with self._lock, self._connected():
            self._connection.execute(self.begin)
            if removed:
                stale |= self._remove(removed)
            if written:
                stale |= self._upsert(written)
            self._connection.execute("COMMIT")
        return stale

    def check(self) -> None:
        """Return if the table can be read and has the columns."""
        with self._lock, self._connected():
            self._run("check_sink_table")

    def close(self) -> None:
        """Give back the connection."""
        with self._lock:
            self._disconnect()

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Inside the block, which has the lock, the connection is there; an error of the driver leaves it as one of
        ours. The lock is not taken here: an interrupt at the wrong moment would leave it to a generator nobody ends."""
        is_connected = self._connection is not None
        try:
            if not is_connected:
                self._connection = self._open()
                self._run("set_timeouts", timeout=f"{max(1, int(self._timeout_s * 1000))}ms")
                if self._create:
                    self._run("create_sink_table")
                is_connected = True
            yield
        except BaseException as exc:
            self._disconnect()
            if not isinstance(exc, self.errors):
                raise
            # What making the table may meet, if another makes it too, is not about documents.
            if is_connected and self._is_refusal(exc):
                raise Invalid(f"the database refuses a document: {_first_line(exc)}") from exc
            raise self._unavailable(exc) from exc

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _run(self, name: str, **parameters: Any) -> list[Any]:
        """Every row of a statement's answer."""
        statement = self._statements[name]
        return self._rows(statement.sql, statement.bind([parameters[each] for each in statement.parameters]))

    @abstractmethod
    def _open(self) -> Any: ...

    @abstractmethod
    def _rows(self, sql: str, values: Sequence[Any]) -> list[Any]: ...

    @abstractmethod
    def _remove(self, rows: Sequence[SinkRow]) -> set[str]: ...

    @abstractmethod
    def _upsert(self, rows: Sequence[SinkRow]) -> set[str]: ...

    @abstractmethod
    def _is_refusal(self, exc: Exception) -> bool: ...

    @abstractmethod
    def _unavailable(self, exc: Exception) -> Unavailable: ...


def open_sink_table(url: str, table: str, *, create: bool, timeout_s: float) -> SinkTable:
    """A table, `name` or `schema.name`, of the PostgreSQL database or SQLite file that a URL names. It is connected to
    when it is first used."""
    if url.startswith(("postgres://", "postgresql://")):
        return PostgresSinkTable(url, POSTGRES, table, create=create, timeout_s=timeout_s)
    path = url.removeprefix("sqlite:///") if url.startswith("sqlite:") else ""
    if not path:
        raise Invalid("not the URL of a database", hint="use postgresql://... or sqlite:///path")
    if "." in table:
        raise Invalid("a table of SQLite has no schema", hint="name the table alone")
    return SqliteSinkTable(path, SQLITE, table, create=create, timeout_s=timeout_s)


class SqliteSinkTable(SinkTable):
    """A table in a file."""

    begin = "BEGIN IMMEDIATE"
    errors = (sqlite3.Error, OverflowError, UnicodeEncodeError)

    def __init__(self, path: str, *table: Any, **options: Any) -> None:
        super().__init__(*table, **options)
        self._path = path

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(
            f"file:{quote(self._path)}?mode={'rwc' if self._create else 'rw'}",
            uri=True,
            timeout=self._timeout_s,
            isolation_level=None,
            check_same_thread=False,
        )

    def _rows(self, sql: str, values: Sequence[Any]) -> list[Any]:
        found: list[Any] = self._connection.execute(sql, values).fetchall()
        return found

    def _remove(self, rows: Sequence[SinkRow]) -> set[str]:
        for row in rows:
            self._run("remove_document", doc_id=row.doc_id, ship_seq=row.ship_seq)
        return self._newer(rows)

    def _upsert(self, rows: Sequence[SinkRow]) -> set[str]:
        statement = self._statements["upsert_document"]
        assert statement.parameters == SinkRow._fields
        changed = self._connection.executemany(statement.sql, (statement.bind(list(row)) for row in rows)).rowcount
        return set() if changed == len(rows) else self._newer(rows)

    def _newer(self, rows: Sequence[SinkRow]) -> set[str]:
        """Those of which something newer is there."""
        return {row.doc_id for row in rows if self._run("is_newer", doc_id=row.doc_id, ship_seq=row.ship_seq)}

    def _is_refusal(self, exc: Exception) -> bool:
        code = (getattr(exc, "sqlite_errorcode", None) or 0) & 0xFF
        refusals = (sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_CONSTRAINT)
        return code in refusals or not isinstance(exc, sqlite3.Error)

    def _unavailable(self, exc: Exception) -> Unavailable:
        text = " ".join(str(exc).split())
        return Unavailable(f"{self._path}: {text}", hint="check the file, and the table's name and columns")


class PostgresSinkTable(SinkTable):
    """A table on a server."""

    def __init__(self, url: str, *table: Any, **options: Any) -> None:
        try:
            import psycopg

            from analemma.catalog.engine.postgres.pool import ArrayDumper, parse_url, server_name
        except ModuleNotFoundError as exc:
            raise Unavailable("PostgreSQL needs psycopg", hint="pip install 'analemma[postgres]'") from exc
        super().__init__(*table, **options)
        self._psycopg = psycopg
        self._arrays = ArrayDumper
        self._server = server_name(parse_url(url))
        self._url = url
        self.errors = (psycopg.Error, UnicodeEncodeError)

    def _open(self) -> Any:
        connection = self._psycopg.connect(
            self._url,
            autocommit=True,
            # The server may be behind a pooler that forgets prepared statements.
            prepare_threshold=None,
            connect_timeout=max(2, int(self._timeout_s)),
        )
        connection.adapters.register_dumper(Array, self._arrays)
        return connection

    def _rows(self, sql: str, values: Sequence[Any]) -> list[Any]:
        with self._psycopg.RawCursor(self._connection) as cursor:
            cursor.execute(sql.encode(), values)
            return [] if cursor.description is None else cursor.fetchall()

    def _remove(self, rows: Sequence[SinkRow]) -> set[str]:
        return {row[0] for row in self._run("remove_documents", documents=rows)}

    def _upsert(self, rows: Sequence[SinkRow]) -> set[str]:
        return {row.doc_id for row in rows} - {row[0] for row in self._run("upsert_documents", documents=rows)}

    def _is_refusal(self, exc: Exception) -> bool:
        refusals = (UnicodeEncodeError, self._psycopg.DataError, self._psycopg.IntegrityError)
        # Class 54: what is too large for a row or an index.
        return isinstance(exc, refusals) or (getattr(exc, "sqlstate", None) or "").startswith("54")

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
    return sql.parse(text)


def _first_line(exc: Exception) -> str:
    """Without the lines in which PostgreSQL quotes the values."""
    return str(exc).partition("\n")[0]
