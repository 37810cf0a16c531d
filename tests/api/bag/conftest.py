"""Fixtures for tests of bags and payloads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import analemma
from analemma import App


@pytest.fixture
def app() -> Iterator[App]:
    """A store that lives as long as its test."""
    with analemma.open("sqlite:///:memory:") as app:
        yield app
