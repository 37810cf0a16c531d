"""Fixtures shared by all tests: databases and whole stores."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import PostgresServer, postgres_missing
from tests.stores import Store


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One real PostgreSQL server per test process."""
    reason = postgres_missing()
    if reason is not None:
        pytest.skip(reason)
    try:
        server = PostgresServer()
    except (OSError, subprocess.SubprocessError, RuntimeError) as exc:
        pytest.skip(f"PostgreSQL does not start here: {exc}")
    yield server
    server.stop()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh, empty database."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store: a directory with SQLite, or PostgreSQL with objects in a directory."""
    if request.param == "sqlite":
        return Store(str(tmp_path / "store"))
    return Store(request.getfixturevalue("postgres_url"), str(tmp_path / "objects"))
