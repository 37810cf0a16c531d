"""Fixtures for tests of bags and payloads. Making a store takes longer than most of these tests: they share one, and
each has a tenant of its own in it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from analemma import App
from tests.stores import Store

NUMBERS = count(1)


@pytest.fixture(scope="session")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(str(tmp_path_factory.mktemp("bags") / "store"))


@pytest.fixture
def app(shared_store: Store) -> Iterator[App]:
    """A store with a tenant in it that nobody else has."""
    with shared_store.open(sqlite_synchronous="NORMAL", tenant=f"test-{next(NUMBERS)}") as app:
        yield app
