"""Fixtures for tests of the outbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from analemma import App
from tests.stores import Store


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open(outbox_backoff_base_s=0, outbox_max_attempts=3) as app:
        yield app
