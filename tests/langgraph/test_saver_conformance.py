"""LangGraph's own suite for checkpointers, as it is on PyPI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from langgraph.checkpoint.conformance import checkpointer_test, validate

from analemma import App
from analemma.langgraph import AnalemmaSaver


def test_every_capability_is_found_and_every_test_passes(app: App) -> None:
    @checkpointer_test(name="AnalemmaSaver")
    async def saver() -> AsyncGenerator[AnalemmaSaver, None]:
        yield AnalemmaSaver(app)

    report = asyncio.run(validate(saver))
    assert {name: result.failures for name, result in report.results.items() if result.passed is not True} == {}
    assert all(result.detected for result in report.results.values())
    assert sum(result.tests_passed for result in report.results.values()) == 81
