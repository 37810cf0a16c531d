"""The verbs on payloads for asyncio."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import analemma.aio
from analemma.aio import AsyncPayloads
from analemma.bag.payloads import Payloads
from tests.api.bag.payload_stores import LARGE, NAMES


def verbs() -> dict[str, Callable[..., Any]]:
    return {name: verb for name, verb in inspect.getmembers(Payloads, inspect.isfunction) if not name.startswith("_")}


@pytest.mark.parametrize("name", verbs())
def test_every_verb_is_here_with_the_same_signature(name: str) -> None:
    mine, theirs = getattr(AsyncPayloads, name), getattr(Payloads, name)
    assert inspect.signature(mine) == inspect.signature(theirs) and mine.__doc__ == theirs.__doc__
    assert inspect.iscoroutinefunction(mine)


def test_payloads_come_back() -> None:
    async def work() -> None:
        async with analemma.aio.open("sqlite:///:memory:") as app:
            payload = await app.payloads.dehydrate({"plan": LARGE}, **NAMES)
            state = await app.payloads.hydrate(payload, load_fields={"plan"})
            assert state.not_loaded() == {} and state == {"plan": LARGE}
            shop = await app.tenant("shop")
            assert await shop.payloads.leases(owner_id="ann", workflow_id="report") == []
            assert await app.payloads.release(**NAMES) == 1

    asyncio.run(asyncio.wait_for(work(), 60))
