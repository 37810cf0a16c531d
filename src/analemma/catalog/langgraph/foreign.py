"""Databases of LangGraph's own savers, read only: which threads they hold, and what tasks wrote there.

The states themselves are read by those savers, on the connection that is opened here."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from importlib import resources
from typing import Any, NamedTuple
from urllib.parse import quote

from analemma.catalog.engine.sql import POSTGRES, SQLITE, Sql
from analemma.errors import Invalid, NotFound, Unavailable

TABLES = 2
"""How many tables of theirs are looked for."""


class ForeignPlace(NamedTuple):
    """One namespace of one thread."""

    thread: str
    namespace: str
    checkpoints: int


class ForeignThreads:
    """The threads of one such database."""

    def __init__(self, connection: Any, cursor: Callable[[], Any], sql: Sql) -> None:
        self.connection = connection
        """For the saver that reads the states."""
        self.is_file = sql is SQLITE
        """Of SqliteSaver, and not a database of PostgresSaver."""
        self._cursor = cursor
        # Apart from the catalog's own statements: these are for tables that are not ours.
        file = resources.files("analemma.catalog") / "sql" / "foreign" / "threads.sql"
        self._statements = sql.parse(file.read_text(encoding="utf-8"))

    def check(self, source: str) -> None:
        """Raise Invalid unless the tables of a saver are there."""
        if self._rows("foreign_tables")[0]["found"] != TABLES:
            raise Invalid(
                f"{source} holds no threads of LangGraph",
                hint="name the database that SqliteSaver or PostgresSaver writes to",
            )

    def places(self) -> list[ForeignPlace]:
        """Every namespace of every thread."""
        return [ForeignPlace(*row.values()) for row in self._rows("foreign_places")]

    def checkpoints(self, place: ForeignPlace) -> list[str]:
        """The ids of its checkpoints, oldest first: parents come before their children."""
        rows = self._rows("foreign_checkpoints", thread=place.thread, namespace=place.namespace)
        return [row["checkpoint_id"] for row in rows]

    def writes(self, at: ForeignPlace, checkpoint: str) -> Iterator[tuple[Any, ...]]:
        """What tasks wrote on top of a checkpoint: task, place, path, channel, the format, and the bytes."""
        for row in self._rows("foreign_writes", thread=at.thread, namespace=at.namespace, checkpoint=checkpoint):
            # Rows of old savers have no path, those of very old ones no format.
            place = row["task_id"], row["idx"], row.get("task_path", ""), row["channel"]
            yield *place, row["type"] or "msgpack", bytes(row["value" if self.is_file else "blob"] or b"")

    def _rows(self, name: str, **parameters: str) -> list[dict[str, Any]]:
        statement = self._statements[name]
        values = [parameters[parameter] for parameter in statement.parameters]
        try:
            return [dict(row) for row in self._cursor().execute(statement.sql, statement.bind(values))]
        except Exception as exc:
            raise Unavailable(f"the threads cannot be read: {exc}", hint="check the database, and try again") from exc


@contextmanager
def open_foreign(source: str) -> Iterator[ForeignThreads]:
    """A file of SqliteSaver or a database of PostgresSaver, open for reading only while the block runs."""
    if source.startswith(("postgres://", "postgresql://")):
        name, opened = "the PostgreSQL database", _open_database(source)
    else:
        name = source.removeprefix("sqlite:///")
        opened = _open_file(name)
    with closing(opened.connection):
        opened.check(name)
        yield opened


def _open_file(path: str) -> ForeignThreads:
    if not os.path.isfile(path):
        raise NotFound(f"there is no file {path}", hint="name a file of SqliteSaver, or a postgresql:// URL")
    try:
        connection = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, check_same_thread=False)
        connection.execute("SELECT 1 FROM sqlite_master")
    except sqlite3.Error as exc:
        raise Invalid(f"{path} is no SQLite database: {exc}", hint="name a file of SqliteSaver") from exc
    # Rows that the saver may unpack, too.
    connection.row_factory = sqlite3.Row
    return ForeignThreads(connection, connection.cursor, SQLITE)


def _open_database(url: str) -> ForeignThreads:
    try:
        import psycopg
        from psycopg.rows import dict_row
    except ModuleNotFoundError as exc:
        raise Unavailable("PostgreSQL needs psycopg", hint="pip install 'analemma[postgres]'") from exc
    # As PostgresSaver wants it.
    wanted: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    try:
        connection = psycopg.connect(url, **wanted, options="-c default_transaction_read_only=on")
    except psycopg.Error as exc:
        raise Unavailable("the PostgreSQL database cannot be reached", hint="check the URL") from exc
    return ForeignThreads(connection, partial(psycopg.RawCursor, connection), POSTGRES)
