"""Runs for asyncio: side by side, in queues and on schedules."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import analemma.aio
from analemma import Flow


def test_runs_go_on_side_by_side(tmp_path: Path) -> None:
    flow = Flow("side")

    @flow.step(reads=["n"], writes=["n"])
    async def wait(state: Any, ctx: Any) -> dict[str, int]:
        await asyncio.sleep(0.01)
        return {"n": state["n"] + 1}

    flow.human("ask", choices=["yes"])

    async def one(flows: Any, number: int) -> int:
        run = await flows.run(flow, {"n": number}, workflow_id=f"w-{number}", owner_id="me")
        run = await flows.read(await flows.approve(run.execution_id, "yes", "me"))
        assert run.status == "COMPLETED"
        return int(run.state["n"])

    async def all_of_them() -> list[int]:
        async with analemma.aio.open(tmp_path / "store") as app:
            return await asyncio.gather(*[one(app.flows, number) for number in range(6)])

    assert asyncio.run(all_of_them()) == [1, 2, 3, 4, 5, 6]


def test_queues_and_schedules_are_there_for_coroutines(tmp_path: Path) -> None:
    flow = Flow("nightly")
    flow.human("ask", choices=["yes"])

    async def use() -> None:
        async with analemma.aio.open(tmp_path / "store") as app:
            assert (await app.flows.queues.set("mail", concurrency=2)).concurrency == 2
            await app.flows.schedules.add("nightly", flow, owner_id="me", cron="0 3 * * *", queue="mail")
            run = await app.flows.schedules.run_now("nightly")
            assert (run.queue, run.status) == ("mail", "PENDING")
            assert [each.waiting for each in await app.flows.queues.list()] == [1]
            await app.flows.schedules.remove("nightly")

    asyncio.run(use())
