"""The view pipeline for asyncio: its verbs as coroutines, each a hop to a thread of `analemma.aio`."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from analemma.pipeline.contract_store import Contracts
from analemma.pipeline.entity_handle import Entity
from analemma.pipeline.querying import PAGE, EntityView

if TYPE_CHECKING:
    from analemma.aio import Threads
    from analemma.contracts.contract_set import ContractSet
    from analemma.pipeline.view_answers import ViewResponse
    from analemma.slicing.entity_key import EntityKey

P = ParamSpec("P")
T = TypeVar("T")
Target = TypeVar("Target")


class Hopping(Generic[Target]):
    """Something whose verbs run in threads."""

    def __init__(self, target: Target, threads: Threads) -> None:
        self._target = target
        self._threads = threads


def hop(verb: Callable[Concatenate[Target, P], T]) -> Callable[Concatenate[Hopping[Target], P], Coroutine[Any, Any, T]]:
    """The verb as a coroutine that waits for a thread."""

    @functools.wraps(verb)
    async def awaited(self: Hopping[Target], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._threads.run(functools.partial(verb, self._target, *args, **kwargs))

    return awaited


class AsyncView(Hopping[EntityView]):
    """One view of one tenant's entities."""

    @property
    def id(self) -> str:
        """That of its contract."""
        return self._target.id

    get = hop(EntityView.get)
    many = hop(EntityView.many)
    range = hop(EntityView.range)
    search = hop(EntityView.search)
    count = hop(EntityView.count)

    async def every(self, prefix: str = "", *, page: int = PAGE) -> AsyncIterator[ViewResponse]:
        """All answers, page by page; entities for which the view has none are left out."""
        cursor = None
        while True:
            found = await self.range(prefix, limit=page, cursor=cursor)
            for each in found:
                yield each
            cursor = found.next_cursor
            if cursor is None:
                return


class AsyncEntity(Hopping[Entity]):
    """One entity of one tenant."""

    @property
    def key(self) -> EntityKey:
        """Its type, tenant and id."""
        return self._target.key

    ingest = hop(Entity.ingest)
    delete = hop(Entity.delete)
    compile = hop(Entity.compile)
    slices = hop(Entity.slices)


class AsyncContracts(Hopping[Contracts]):
    """The contracts of an open store."""

    load = hop(Contracts.load)
    list = hop(Contracts.list)
    get = hop(Contracts.get)

    async def current(self) -> ContractSet:
        """What applies now, at most a second behind what other processes load; NotFound if there is nothing."""
        return await self._threads.run(lambda: self._target.current)
