"""The verbs on payloads for asyncio."""

from __future__ import annotations

import asyncio
import inspect

import analemma.aio
from analemma import App
from analemma.aio import AsyncPayloads
from tests.api.bag.payload_stores import LARGE, NAMES


def test_every_verb_is_here_with_the_same_signature(app: App) -> None:
    payloads = type(app.payloads)
    verbs = [name for name, _ in inspect.getmembers(payloads, inspect.isfunction) if not name.startswith("_")]
    assert {"dehydrate", "hydrate", "release"} < set(verbs)
    for name in verbs:
        mine, theirs = getattr(AsyncPayloads, name), getattr(payloads, name)
        assert inspect.signature(mine) == inspect.signature(theirs) and mine.__doc__ == theirs.__doc__, name
        assert inspect.iscoroutinefunction(mine), name


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
