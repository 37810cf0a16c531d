"""What all tests of archives begin with."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects go when their archives do, also those that are not in a store's own directory."""
    monkeypatch.setenv("ANALEMMA_GC_OBJECT_DELAY_S", "0")
