"""Fixtures shared by all tests: databases and whole stores."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings

from tests.raw_rows import connect
from tests.servers import PostgresServer, memory_folder, postgres_missing
from tests.stores import Store

if (memory := memory_folder()) is not None:
    # Tests stop programs, never the machine: what they write need not reach a disk.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", memory)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background has them ignore it; what they start would, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A run says something about the change at hand only if the one before it tried the same: generated values are the same
# each time. `make soak` looks for what nobody tried yet.
settings.register_profile("same", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile("explore", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("same")


pytest_plugins = ["tests.reports"]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Half of the time a test waits: for a process to come forward, a lease to end, a server to answer."""
    return 2 * (os.cpu_count() or 1)


def pytest_collection_finish() -> None:
    """Ten thousand tests stay until the end: whoever looks for garbage need not look through them each time, nor look
    as often as a program would that runs for days."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One real PostgreSQL server per test process."""
    reason = postgres_missing()
    if reason is not None:
        pytest.skip(reason)
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh, empty database."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def migrated_template(postgres_server: PostgresServer) -> str:
    """A database with the schema, for copying: running the migrations for every test takes five times as long."""
    url = postgres_server.create_database()
    Store(url).open().close()
    return url


@pytest.fixture
def migrated_url(
    postgres_server: PostgresServer, migrated_template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A fresh database, as migrating an empty one leaves it. Sinks whose paths are relative write beside the test."""
    monkeypatch.setenv("ANALEMMA_SHIP_BASE", str(tmp_path))
    url = _migrated_copy(postgres_server, migrated_template)
    yield url
    postgres_server.drop_database(url)


def _migrated_copy(server: PostgresServer, template: str) -> str:
    url = server.create_database(template)
    with connect(url) as connection:
        connection.execute("UPDATE store SET id = replace(gen_random_uuid()::text, '-', '')")
    return url


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the schema, for copying: running the migrations takes ten times as long."""
    directory = tmp_path_factory.mktemp("migrated")
    Store(str(directory)).open().close()
    return directory / "catalog.db"


@pytest.fixture
def migrated_directory(migrated_file: Path, tmp_path: Path) -> Path:
    """A directory as opening a new one leaves it."""
    return _migrated_directory(migrated_file, tmp_path / "store")


def _migrated_directory(template: Path, directory: Path) -> Path:
    directory.mkdir()
    shutil.copyfile(template, directory / template.name)
    with closing(sqlite3.connect(directory / template.name, isolation_level=None)) as connection:
        connection.execute("UPDATE store SET id = lower(hex(randomblob(16)))")
    return directory


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store: a directory with SQLite, or PostgreSQL with objects in a directory.

    `make test` tries the second only for tests marked `both_stores`, which says why."""
    if request.param == "sqlite":
        return Store(str(request.getfixturevalue("migrated_directory")))
    return Store(request.getfixturevalue("migrated_url"), str(tmp_path / "objects"))


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def module_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """An empty store as `store` is, one for all tests of a module: for what is written once and then only read."""
    folder = tmp_path_factory.mktemp("module")
    if request.param == "sqlite":
        yield Store(str(_migrated_directory(request.getfixturevalue("migrated_file"), folder / "store")))
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = _migrated_copy(server, request.getfixturevalue("migrated_template"))
    yield Store(url, str(folder / "objects"))
    server.drop_database(url)
