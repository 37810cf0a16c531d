"""Opens the catalog that a URL or a path names."""

from __future__ import annotations

import errno
import os
import re
from urllib.parse import unquote, urlsplit

from analemma.catalog.engine.db import Engine
from analemma.catalog.engine.sqlite.engine import SqliteEngine
from analemma.catalog.engine.sqlite.memory import is_in_memory, make_directory_in_memory
from analemma.catalog.engine.sqlite.writer import Synchronous, sync
from analemma.catalog.object_places import FILE_NAME as FILE_NAME
from analemma.catalog.sql_catalog import SqlCatalog
from analemma.errors import Invalid, Unavailable
from analemma.settings import Settings

# What libpq also takes instead of a URL. It holds passwords, so it must not become the name of a directory.
_KEY_VALUE = re.compile(
    r"\s*(host|hostaddr|port|dbname|user|password|passfile|service|options|ssl\w+)\s*=|.*\bpassword\s*=", re.DOTALL
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")


def open_catalog(url: str | os.PathLike[str], settings: Settings | None = None, *, migrate: bool = True) -> SqlCatalog:
    """Open a directory, `sqlite:///path`, `sqlite:///:memory:` or `postgresql://...`. With `migrate` False an outdated
    or missing schema is refused.

    >>> catalog = open_catalog("sqlite:///:memory:")
    >>> catalog.head(catalog.tenant("default"), BranchKey("ann", "report")) is None
    True
    """
    text = os.fspath(url)
    return open_database(text, database_path(text), settings or Settings(), migrate)


def open_database(url: str, path: str | None, settings: Settings, migrate: bool) -> SqlCatalog:
    """Open the catalog of a URL whose `database_path` is known."""
    engine = _postgres_engine(url, settings) if path is None else _sqlite_engine(path, settings, migrate)
    try:
        catalog = SqlCatalog(engine, migrate_schema=migrate)
    except BaseException:
        engine.close()
        raise
    catalog.key_keep_us = round(settings.idempotency_keep_s * 1_000_000)
    return catalog


def database_path(url: str) -> str | None:
    """The SQLite file that a path or URL names, or None for PostgreSQL; Invalid for anything else. In memory, it is in
    a new directory, which goes when the catalog that is opened there is closed."""
    if not url:
        raise Invalid("the store's path is empty", hint="name a directory, such as ./store")
    if _KEY_VALUE.match(url) and not url.startswith(("postgresql://", "postgres://")):
        raise Invalid(
            "not a catalog URL but a key/value connection string",
            hint="use postgresql://user:password@host:port/database, or put ./ before a directory's name",
        )
    scheme, found, _ = url.partition("://")
    if not found:
        return _checked(os.path.join(url, FILE_NAME))
    if scheme == "sqlite":
        path = _sqlite_path(url)
        return os.path.join(make_directory_in_memory(), FILE_NAME) if path == ":memory:" else _checked(path)
    if scheme in ("postgresql", "postgres"):
        return None
    raise Invalid(
        f"not a catalog URL: {scheme}://" if _SCHEME.fullmatch(scheme) else "not a catalog URL",
        hint="use a directory, sqlite:///path or postgresql://user@host/database",
    )


def _sqlite_path(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    path = "" if parts is None or parts.netloc else unquote(parts.path).removeprefix("/")
    if not path:
        raise Invalid("not a SQLite URL", hint="use sqlite:///relative/path or sqlite:////absolute/path")
    return path


def _checked(path: str) -> str:
    """Refuse what no file can be called, and what cannot be looked at, before anything is made."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as exc:
        if exc.errno == errno.ENAMETOOLONG:
            raise Invalid("the store's path is too long", hint="name a shorter one") from exc
        raise Unavailable(
            f"cannot look at {path}: {exc.strerror}", hint="check the path, and that this user may read it"
        ) from exc
    except ValueError as exc:  # NUL, or a character that file names here cannot hold
        raise Invalid(f"not a path: {path!r}", hint="remove the NUL or the lone surrogate") from exc
    return path


def _sqlite_engine(path: str, settings: Settings, migrate: bool) -> Engine:
    if not migrate and not os.path.exists(path) and not is_in_memory(path):
        raise Unavailable(f"there is no database at {path}", hint="run `analemma migrate`")
    make_directory(os.path.dirname(os.path.abspath(path)))
    synchronous: Synchronous = "full" if settings.sqlite_synchronous == "FULL" else "normal"
    return SqliteEngine(path, synchronous=synchronous, patience_s=settings.sqlite_lock_timeout_s)


def _postgres_engine(url: str, settings: Settings) -> Engine:
    try:
        from analemma.catalog.engine.postgres.engine import PostgresEngine
    except ImportError as exc:
        raise Unavailable("the PostgreSQL driver is not installed", hint="pip install 'analemma[postgres]'") from exc
    return PostgresEngine(
        url,
        max_connections=settings.postgres_pool_max,
        connect_timeout_s=settings.connect_timeout_s,
        statement_timeout_s=settings.statement_timeout_s,
        pgbouncer=not settings.postgres_prepare,
    )


def make_directory(path: str) -> None:
    """Make it and what is above it, durably."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_directory(parent)
    try:
        os.makedirs(path, exist_ok=True)
        sync(parent)
    except OSError as exc:
        raise Unavailable(
            f"cannot create the directory {path}: {exc.strerror}", hint="name a directory that this user may write in"
        ) from exc
