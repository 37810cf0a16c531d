"""The pipeline for asyncio: the same verbs with the same parameters, as coroutines."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

import analemma.aio
from analemma.aio import AsyncTenant
from analemma.aio_pipeline import AsyncContracts, AsyncEntity, AsyncView
from analemma.app import Tenant
from analemma.errors import NotFound
from analemma.pipeline.contract_store import Contracts
from analemma.pipeline.entity_handle import Entity
from analemma.pipeline.querying import EntityView
from tests.unit.contracts.bookshop import EXAMPLE
from tests.unit.pipeline.shop import VIEW, book

TENANT_VERBS = ["ingest", "ingest_many", "delete", "compile", "slices"]


def public(owner: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(owner, inspect.isfunction) if not name.startswith("_")]


CASES = [
    *((AsyncTenant, Tenant, name) for name in TENANT_VERBS),
    *((AsyncView, EntityView, name) for name in public(EntityView)),
    *((AsyncEntity, Entity, name) for name in public(Entity)),
    *((AsyncContracts, Contracts, name) for name in public(Contracts)),
]


@pytest.mark.parametrize(("mine", "theirs", "name"), CASES, ids=lambda each: getattr(each, "__name__", each))
def test_every_verb_is_here_with_the_same_signature(mine: type, theirs: type, name: str) -> None:
    verb, original = getattr(mine, name), getattr(theirs, name)
    assert inspect.signature(verb).parameters == inspect.signature(original).parameters
    assert verb.__doc__ == original.__doc__
    iterates = name == "every"
    assert (inspect.isasyncgenfunction(verb), inspect.iscoroutinefunction(verb)) == (iterates, not iterates)


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
