"""Threads of LangGraph checkpoints on every saver that the LangGraph benchmark compares: ours and theirs, on SQLite and
on PostgreSQL, called alike."""

from __future__ import annotations

import itertools
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

import analemma
from bench.contenders.base import disk_bytes
from bench.contenders.langgraph_savers import DeltaThread, PostgresThread, Saver
from tests.servers import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVER_VARIABLE = "ANALEMMA_BENCH_POSTGRES"
"""The URL of a server to measure on. The one that benchmarks start by themselves has no lz4."""

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}


class OurThread(Saver):
    """AnalemmaSaver in a directory. Opened anew, it has nothing cached."""

    name = "AnalemmaSaver"

    def __init__(self, where: Path | str) -> None:
        from analemma.langgraph import AnalemmaSaver

        @contextmanager
        def opened() -> Iterator[Any]:
            with analemma.open(where, migrate=True) as app:
                self.app = app
                yield _WithSetup(AnalemmaSaver(app))

        self._where = where
        super().__init__(opened)

    def disk_bytes(self) -> int:
        """What the directory holds."""
        return disk_bytes(Path(self._where))

    def history(self) -> int:
        """Every checkpoint of the thread without its state; how many."""
        return sum(1 for _ in self.saver.history(CONFIG))

    def copy(self, target: str) -> int:
        """Copy the thread; the bytes of state that this wrote."""
        before = self.app.stats().stored_bytes
        self.saver.copy_thread("bench", target)
        return self.app.stats().stored_bytes - before


class OurPostgresThread(OurThread):
    """AnalemmaSaver in a database."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._empty = database_bytes(url)

    def disk_bytes(self) -> int:
        """What the database holds beyond an empty one."""
        return database_bytes(str(self._where)) - self._empty


class PlainPostgresThread(PostgresThread):
    """PostgresSaver in a database that compresses in one of PostgreSQL's ways."""

    def __init__(self, url: str, compression: str) -> None:
        compress_with(url, compression)
        self.name = f"PostgresSaver, {compression}"
        self._url = url
        super().__init__(url)
        self._empty = database_bytes(url)

    def disk_bytes(self) -> int:
        """What the database holds beyond an empty one."""
        return database_bytes(self._url) - self._empty


class DeltaPostgresThread(DeltaThread):
    """PostgresSaver with messages in a DeltaChannel (beta)."""

    name = "PostgresSaver, DeltaChannel"

    def __init__(self, url: str, compression: str) -> None:
        from langgraph.checkpoint.postgres import PostgresSaver

        compress_with(url, compression)
        self._url = url
        Saver.__init__(self, lambda: PostgresSaver.from_conn_string(url))
        self._empty = database_bytes(url)

    def disk_bytes(self) -> int:
        """What the database holds beyond an empty one."""
        return database_bytes(self._url) - self._empty


class _WithSetup:
    """Theirs want to be set up; ours is when it is open."""

    def __init__(self, saver: Any) -> None:
        self._saver = saver

    def setup(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._saver, name)


def compress_with(url: str, compression: str) -> None:
    """How values of this database are compressed from now on."""
    with psycopg.connect(url, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        setting = sql.SQL("ALTER DATABASE {} SET default_toast_compression = {}")
        connection.execute(setting.format(name, sql.Literal(compression)))


class NamedServer:
    """A PostgreSQL server that somebody else runs, and where databases may be made."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._numbers = itertools.count(1)
        self._admin = psycopg.connect(url, autocommit=True)

    def create_database(self) -> str:
        """A new, empty database; its URL."""
        name = f"analemma_bench_{os.getpid()}_{next(self._numbers)}"
        self._admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    def drop_database(self, url: str) -> None:
        """Remove it, whoever is still connected."""
        name = sql.Identifier(urlsplit(url).path[1:])
        self._admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))

    def stop(self) -> None:
        """Leave it."""
        self._admin.close()


def open_server() -> PostgresServer | NamedServer:
    """The durable server that is named in the environment, or one of our own."""
    named = os.environ.get(SERVER_VARIABLE)
    return PostgresServer(durable=True) if named is None else NamedServer(named)


def offers_lz4(url: str) -> bool:
    """Whether this server was built with it."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression'"
        ).fetchone()
    return found is not None and bool(found[0])


def database_bytes(url: str) -> int:
    """The size of a database, with everything written to its files."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        found = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert found is not None
    return int(found[0])
