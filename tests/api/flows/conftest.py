"""Fixtures of tests that run workflows."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

import analemma
from analemma import App
from tests.stores import Store


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Runs that fail are what many of these tests are about."""
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open() as app:
        yield app


@pytest.fixture(scope="module")
def memory() -> Iterator[App]:
    """One store for all tests of a module, for what does not depend on the database. Each takes places of its own."""
    with analemma.open("sqlite:///:memory:") as app:
        yield app
