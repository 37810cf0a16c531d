"""Opens the catalog that a URL or a path names."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote, urlsplit

from analemma.catalog.sql_catalog import SqlCatalog
from analemma.catalog.sqlite import MEMORY, SqliteEngine, Synchronous, sync_directory
from analemma.catalog.sqlite_catalog import SqliteCatalog
from analemma.clock import Clock
from analemma.errors import Invalid, Unavailable

FILE_NAME = "catalog.db"
"""What the database is called inside a store's directory."""


def open_catalog(
    url: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    synchronous: Synchronous = "full",
    migrate: bool = True,
    **postgres_options: Any,
) -> SqlCatalog:
    """Open a directory, `sqlite:///path`, `sqlite:///:memory:` or `postgresql://...`.

    `synchronous` is for SQLite, `migrate` and the remaining options (see PostgresEngine) are for PostgreSQL.

    >>> catalog = open_catalog("sqlite:///:memory:")
    >>> catalog.head(catalog.tenant("default"), BranchKey("ann", "report")) is None
    True
    """
    text = os.fspath(url)
    path = database_path(text)
    if path is None:
        return _open_postgres(text, clock, migrate, postgres_options)
    return _open_sqlite(path, clock, synchronous)


def database_path(url: str) -> str | None:
    """The SQLite file that a path or URL names, or None for PostgreSQL; Invalid for anything else."""
    scheme, found, _ = url.partition("://")
    if not found:
        if not url:
            raise Invalid("the store's path is empty", hint="name a directory, such as ./store")
        return os.path.join(url, FILE_NAME)
    if scheme == "sqlite":
        return _sqlite_path(url)
    if scheme in ("postgresql", "postgres"):
        return None
    raise Invalid(
        f"not a catalog URL: {scheme}://", hint="use a directory, sqlite:///path or postgresql://user@host/database"
    )


def _sqlite_path(url: str) -> str:
    path = unquote(urlsplit(url).path).removeprefix("/")
    if not path or urlsplit(url).netloc:
        raise Invalid(f"not a SQLite URL: {url}", hint="use sqlite:///relative/path or sqlite:////absolute/path")
    return path


def _open_sqlite(path: str, clock: Clock | None, synchronous: Synchronous) -> SqlCatalog:
    if path != MEMORY:
        make_directory(os.path.dirname(os.path.abspath(path)))
    engine = SqliteEngine(path, synchronous=synchronous)
    try:
        return SqliteCatalog(engine, clock=clock)
    except BaseException:
        engine.close()
        raise


def _open_postgres(url: str, clock: Clock | None, migrate: bool, options: dict[str, Any]) -> SqlCatalog:
    try:
        from analemma.catalog.postgres import PostgresEngine
        from analemma.catalog.postgres_catalog import PostgresCatalog
    except ImportError as exc:
        raise Unavailable("the PostgreSQL driver is not installed", hint="pip install 'analemma[postgres]'") from exc
    engine = PostgresEngine(url, **options)
    try:
        return PostgresCatalog(engine, clock=clock, migrate_schema=migrate)
    except BaseException:
        engine.close()
        raise


def make_directory(path: str) -> None:
    """Make it and what is above it, durably."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_directory(parent)
    try:
        os.makedirs(path, exist_ok=True)
        sync_directory(parent)
    except OSError as exc:
        raise Unavailable(
            f"cannot create the directory {path}: {exc.strerror}", hint="name a directory that this user may write in"
        ) from exc
