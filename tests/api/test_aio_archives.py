"""Workspaces for asyncio: what coroutines make of directories and hooks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import analemma.aio
from analemma.errors import Conflict, NotFound


def test_workspaces_come_and_go_side_by_side(tmp_path: Path) -> None:
    names = [f"ws{number:03}" for number in range(8)]

    async def come_and_go(archives: Any, name: str) -> str:
        root = tmp_path / "volumes" / name
        root.mkdir(parents=True)
        (root / "file").write_text(name)
        await archives.create(name, owner_id="ann", volume=root)
        unit = await archives.archive(name)
        assert not root.exists()
        await archives.restore(name, owner_id="ann")
        assert (root / "file").read_text() == name
        op_id: str = unit.op_id
        return op_id

    async def work() -> None:
        async with analemma.aio.open(tmp_path / "store") as app:
            ops = await asyncio.gather(*[come_and_go(app.archives, name) for name in names])
            assert len({*ops}) == len(names)
            assert [each.id async for each in app.archives.list(status="WARM")] == names
            with pytest.raises(Conflict, match="WARM"):
                await app.archives.restore("ws000")
            shop = await app.tenant("shop")
            with pytest.raises(NotFound):
                await shop.archives.get("ws000")
            assert [each async for each in shop.archives.list()] == []
            assert (await app.archives.gc_plan()).counts.needed == len(names)
            assert await app.archives.reconcile() == ()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_hook_is_called_in_a_thread(tmp_path: Path) -> None:
    started: list[str] = []

    async def work() -> None:
        async with analemma.aio.open(tmp_path / "store") as app:
            await app.archives.create("ws1", owner_id="ann", volume=tmp_path / "volume")
            await app.archives.on_start(lambda workspace: started.append(workspace.id))
            assert (await app.archives.start("ws1")).status == "RUNNING"

    asyncio.run(asyncio.wait_for(work(), 60))
    assert started == ["ws1"]
