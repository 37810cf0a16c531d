"""The LangGraph benchmark at a size at which it proves only that it runs, and counts what it says it counts."""

from __future__ import annotations

import pytest

from bench.langgraph import SHAPES, on_sqlite


@pytest.mark.parametrize("shape", SHAPES)
def test_a_tiny_run_measures_everything(shape: str) -> None:
    rows = list(on_sqlite(shape, 12))
    assert [row.skipped for row in rows if row.skipped] == []
    values = {(row.name.partition(": ")[2], (row.against or "").partition(" (")[0]): row.value for row in rows}
    peers = ("SqliteSaver", "SqliteSaver, DeltaChannel")
    times = ("put", "put, 99th percentile", "put, first tenth", "get latest, again", "get latest, just opened")
    for name in ("disk", *times):
        for peer in peers:
            assert (values[name, peer] or 0) > 0, name
    assert values["copy_thread, bytes of state written", ""] == 0
    # The goals are about a thousand steps: at another number nothing about size is judged.
    assert {row.met for row in rows if row.name.endswith((": disk", ": put"))} == {None}
