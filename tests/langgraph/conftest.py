"""Fixtures for tests of the saver. Making a database takes longer than most of these tests: they share two, and each
has a tenant of its own in them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from analemma import App
from analemma.langgraph import AnalemmaSaver
from tests.servers import PostgresServer
from tests.stores import Store

NUMBERS = count(1)


@pytest.fixture(scope="session")
def embedded_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(str(tmp_path_factory.mktemp("threads") / "store"))


@pytest.fixture(scope="session")
def server_store(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    url = postgres_server.create_database()
    yield Store(url, str(tmp_path_factory.mktemp("threads") / "objects"))
    postgres_server.drop_database(url)


@pytest.fixture(params=["sqlite", "postgres"])
def threads_store(request: pytest.FixtureRequest) -> Store:
    """A store with a tenant in it that nobody else has."""
    found = request.getfixturevalue("embedded_store" if request.param == "sqlite" else "server_store")
    assert isinstance(found, Store)
    return found


@pytest.fixture
def app(threads_store: Store) -> Iterator[App]:
    with threads_store.open(sqlite_synchronous="NORMAL", tenant=f"test-{next(NUMBERS)}") as app:
        yield app


@pytest.fixture
def saver(app: App) -> AnalemmaSaver:
    return AnalemmaSaver(app)
