"""The pipeline for asyncio: from documents to answers, waiting in no thread."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import analemma.aio
from analemma.errors import Invalid, NotFound, Timeout
from tests.api.pipeline.shop import VIEW, book
from tests.core.contracts.bookshop import EXAMPLE


def test_from_a_document_to_an_answer(tmp_path: Path) -> None:
    async def work() -> None:
        async with analemma.aio.open(tmp_path / "store") as app:
            with pytest.raises(NotFound, match="no contracts are loaded"):
                await app.contracts.current()
            await app.contracts.load(EXAMPLE)
            assert (await app.contracts.current()).entity_types == ("AUTHOR", "BOOK")
            assert len(await app.contracts.list()) == 6
            shop = await app.tenant("shop")
            isbns = [f"{number:02}" for number in range(20)]
            await asyncio.gather(*[shop.ingest("BOOK", isbn, book(isbn, tags=["sf"])) for isbn in isbns])
            await asyncio.gather(*[shop.compile("BOOK", isbn) for isbn in isbns])
            view = shop.view(VIEW)
            assert (view.id, str(shop.entity("BOOK", "07").key)) == (VIEW, "BOOK#shop#07")
            assert (await view.get("07")).data["CORE"]["title"] == "Book 07"
            assert [each.entity_id async for each in view.every(page=7)] == isbns
            found: Any = await view.search("tag", "sf", limit=5)
            assert len(found) == 5 and await view.count(index="tag", value="sf") == 20
            with pytest.raises(NotFound, match=r"there is no view view\.nope"):
                await shop.view("view.nope").get("07")
            await shop.delete("BOOK", "07")
            assert (await shop.entity("BOOK", "07").slices())["CORE"].data is not None

    asyncio.run(asyncio.wait_for(work(), 60))


def test_deploys_are_waited_for_without_threads_that_wait(tmp_path: Path) -> None:
    async def work() -> None:
        async with analemma.aio.open(tmp_path / "store") as app:
            await app.contracts.load(EXAMPLE)
            shop = await app.tenant("shop")
            made = [await shop.entity("BOOK", f"{n}").deploy(book("1"), compile="async", ship=[]) for n in range(40)]
            with pytest.raises(Timeout, match=r"is QUEUED after 0\.1 s, and not ready"):
                await app.deploys.await_(made[0].id, until="ready", timeout_s=0.1)
            with pytest.raises(Invalid):
                await app.deploys.await_(made[0].id, until="later")
            waiting = asyncio.gather(*[shop.deploys.await_(each.id, timeout_s=30) for each in made])
            await asyncio.sleep(0.05)
            # More wait than there are threads, and others still get one.
            await asyncio.to_thread(lambda: app.sync.worker(2).drain())
            assert {each.state.value for each in await waiting} == {"DONE"}
            assert len((await app.deploys.list(state="DONE")).deploys) == 40
            assert (await app.deploys.explain(made[0].id)).waits_for is None

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_backfill_runs_while_others_are_served(tmp_path: Path) -> None:
    async def work() -> None:
        async with analemma.aio.open(tmp_path / "store") as app:
            await app.contracts.load(EXAMPLE)
            shop = await app.tenant("shop")
            for number in range(30):
                await shop.ingest("BOOK", f"{number:02}", book(f"{number:02}"))
            scope = {"tenant": "shop"}
            plan: Any = await app.backfill(scope, dry_run=True)
            running = asyncio.create_task(app.backfills.execute(scope, rate=30, page=3))
            while not (found := await app.backfills.list()) or found[0].counts.done < 3:
                await asyncio.sleep(0.02)
            await app.backfills.pause(found[0].id)
            paused = await running
            assert paused.state == "PAUSED" and paused.counts.done < 30
            done = await app.backfills.resume(paused.id)
            assert done.counts == plan.changes
            assert (await app.backfills.verify(scope)).ok

    asyncio.run(asyncio.wait_for(work(), 60))


def test_an_entity_is_shipped_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with analemma.aio.open(tmp_path / "store") as app:
            await app.contracts.load(EXAMPLE)
            shop = await app.tenant("shop")
            await shop.ingest("BOOK", "978", book("978"))
            await shop.compile("BOOK", "978")
            assert (await shop.ship("BOOK", "978")).sinks == ("sinkrule.file.book",)
            [status] = await app.sinks.list()
            assert (status.id, status.pending) == ("sinkrule.file.book", 1)
            assert [each.is_healthy for each in await app.sinks.health()] == [True]
            assert not await app.sinks.wake("sinkrule.file.book")

    asyncio.run(work())
