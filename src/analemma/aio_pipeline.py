"""The view pipeline for asyncio: its verbs as coroutines, each a hop to a thread of `analemma.aio`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from analemma.aio_threads import Hopping as Hopping
from analemma.aio_threads import hop as hop
from analemma.pipeline.backfill import BackfillJobs
from analemma.pipeline.contract_store import Contracts
from analemma.pipeline.deploys import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    Deploys,
    check_waiting,
    is_reached,
    late,
)
from analemma.pipeline.entity_handle import Entity
from analemma.pipeline.fanouts import Fanouts
from analemma.pipeline.querying import PAGE, EntityView
from analemma.pipeline.sinks import Sinks
from analemma.pipeline.view_answers import Damage

if TYPE_CHECKING:
    from analemma.contracts.contract_set import ContractSet
    from analemma.pipeline.deploy_records import Deploy
    from analemma.pipeline.view_answers import ViewResponse
    from analemma.slicing.entity_key import EntityKey


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
        """All answers, page by page; entities for which the view has none are left out. Where something is damaged,
        Corrupt names it after all others were given."""
        cursor = None
        damage = Damage(self.id)
        while True:
            found = await self.range(prefix, limit=page, cursor=cursor)
            for each in found:
                yield each
            damage.add(found)
            cursor = found.next_cursor
            if cursor is None:
                damage.check()
                return


class AsyncEntity(Hopping[Entity]):
    """One entity of one tenant."""

    @property
    def key(self) -> EntityKey:
        """Its type, tenant and id."""
        return self._target.key

    ingest = hop(Entity.ingest)
    deploy = hop(Entity.deploy)
    delete = hop(Entity.delete)
    compile = hop(Entity.compile)
    slices = hop(Entity.slices)


class AsyncSinks(Hopping[Sinks]):
    """The sinks of all tenants."""

    list = hop(Sinks.list)
    health = hop(Sinks.health)
    wake = hop(Sinks.wake)


class AsyncFanouts(Hopping[Fanouts]):
    """The fanouts of all tenants."""

    status = hop(Fanouts.status)
    list = hop(Fanouts.list)
    alerts = hop(Fanouts.alerts)
    get = hop(Fanouts.get)
    resume = hop(Fanouts.resume)
    housekeep = hop(Fanouts.housekeep)


class AsyncDeploys(Hopping[Deploys]):
    """The deploys of one tenant, or of all."""

    get = hop(Deploys.get)
    list = hop(Deploys.list)
    explain = hop(Deploys.explain)
    retry = hop(Deploys.retry)
    housekeep = hop(Deploys.housekeep)

    async def await_(self, id: str, *, until: str = "done", timeout_s: float | None = 30.0) -> Deploy:
        # Not a thread that waits: many tasks may wait at a time, and threads are few.
        check_waiting(until, timeout_s)
        begun, pause_s = time.monotonic(), FIRST_PAUSE_S
        while True:
            found = await self.get(id)
            if is_reached(found.state, until):
                return found
            left_s = LONGEST_PAUSE_S if timeout_s is None else begun + timeout_s - time.monotonic()
            if left_s <= 0:
                raise late(found, until, timeout_s or 0.0, (await self.explain(id)).waits_for)
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    await_.__doc__ = Deploys.await_.__doc__


class AsyncBackfills(Hopping[BackfillJobs]):
    """The backfills of all tenants. One that runs has a thread until it is done: pause it from another task."""

    plan = hop(BackfillJobs.plan)
    create = hop(BackfillJobs.create)
    execute = hop(BackfillJobs.execute)
    run = hop(BackfillJobs.run)
    resume = hop(BackfillJobs.resume)
    pause = hop(BackfillJobs.pause)
    cancel = hop(BackfillJobs.cancel)
    get = hop(BackfillJobs.get)
    list = hop(BackfillJobs.list)
    needed = hop(BackfillJobs.needed)
    verify = hop(BackfillJobs.verify)


class AsyncContracts(Hopping[Contracts]):
    """The contracts of an open store."""

    load = hop(Contracts.load)
    fresh = hop(Contracts.fresh)
    list = hop(Contracts.list)
    get = hop(Contracts.get)

    async def current(self) -> ContractSet:
        """What applies now, at most a second behind what other processes load; NotFound if there is nothing."""
        return await self._threads.run(lambda: self._target.current)
