"""The async face: the same verbs, each a hop to a thread.

The library is synchronous, because SQLite is; here an await waits for a thread of our own instead of blocking the event
loop. Cancelling an await abandons the wait, never the transaction: one that has begun runs to its end in its thread.

>>> import asyncio
>>> import analemma.aio
>>> async def main():
...     async with analemma.aio.open("sqlite:///:memory:") as app:
...         saved = await app.kernel.save_state_delta({"n": 1}, workflow_id="trip", owner_id="ann")
...         return await app.kernel.load_state(saved.manifest_id)
>>> asyncio.run(main())
{'n': 1}
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from analemma.aio_kernel import AsyncKernel
from analemma.aio_threads import Hopping, Threads, default_threads, hop
from analemma.app import App, Stats, Tenant, open_app
from analemma.bag.payloads import Payloads
from analemma.errors import Invalid
from analemma.settings import Settings

if TYPE_CHECKING:
    from analemma.aio_archives import AsyncArchives
    from analemma.aio_flows import AsyncFlows
    from analemma.aio_pipeline import (
        AsyncBackfills,
        AsyncContracts,
        AsyncDeploys,
        AsyncEntity,
        AsyncFanouts,
        AsyncSinks,
        AsyncView,
    )
    from analemma.pipeline.backfill import Backfill, BackfillPlan, Kind, Scope

__all__ = ["AsyncApp", "AsyncKernel", "AsyncPayloads", "AsyncTenant", "Threads", "default_threads", "open"]


class AsyncPayloads(Hopping[Payloads]):
    """The verbs on payloads as coroutines. What `hydrate` gives reads the store on first access, in whatever thread
    that is: name what will be needed in `load_fields`."""

    dehydrate = hop(Payloads.dehydrate)
    filter_event_payload = hop(Payloads.filter_event_payload)
    hydrate = hop(Payloads.hydrate)
    leases = hop(Payloads.leases)
    load_fields_selective = hop(Payloads.load_fields_selective)
    release = hop(Payloads.release)


class AsyncTenant(Hopping[Tenant]):
    """One tenant's part of an open store."""

    def __init__(self, tenant: Tenant, threads: Threads) -> None:
        super().__init__(tenant, threads)
        self.name = tenant.name
        self.kernel = AsyncKernel(tenant.kernel, threads)
        self.payloads = AsyncPayloads(tenant.payloads, threads)

    ingest = hop(Tenant.ingest)
    ingest_many = hop(Tenant.ingest_many)
    deploy = hop(Tenant.deploy)
    ship = hop(Tenant.ship)
    delete = hop(Tenant.delete)
    compile = hop(Tenant.compile)
    slices = hop(Tenant.slices)
    state_sources = hop(Tenant.state_sources)
    source_problems = hop(Tenant.source_problems)
    backfill_sources = hop(Tenant.backfill_sources)

    @property
    def deploys(self) -> AsyncDeploys:
        """This tenant's deploys."""
        from analemma.aio_pipeline import AsyncDeploys

        return AsyncDeploys(self._target.deploys, self._threads)

    @property
    def archives(self) -> AsyncArchives:
        """This tenant's workspaces, and their archives."""
        from analemma.aio_archives import AsyncArchives

        return AsyncArchives(self._target.archives, self._threads)

    @property
    def flows(self) -> AsyncFlows:
        """This tenant's runs of workflows."""
        from analemma.aio_flows import AsyncFlows

        return AsyncFlows(self._target.flows, self._threads)

    def view(self, view_id: str, version: str | None = None) -> AsyncView:
        """One view, whose verbs are coroutines; whether there is such a view shows when it is asked."""
        from analemma.aio_pipeline import AsyncView
        from analemma.pipeline.querying import EntityView

        return AsyncView(EntityView(self._target.views, view_id, version), self._threads)

    def entity(self, entity_type: str, entity_id: str) -> AsyncEntity:
        """One entity, whose verbs are coroutines."""
        from analemma.aio_pipeline import AsyncEntity

        return AsyncEntity(self._target.entity(entity_type, entity_id), self._threads)


class AsyncApp:
    """A store, open from `async with` or `await` until it is closed. For one event loop."""

    def __init__(self, opener: Callable[[], App], threads: int | None = None) -> None:
        self._opener = opener
        self._threads = Threads(default_threads() if threads is None else threads)
        self._app: App | None = None
        self._default: AsyncTenant | None = None

    async def __aenter__(self) -> AsyncApp:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, AsyncApp]:
        return self._open().__await__()

    @property
    def sync(self) -> App:
        """The same store, for programs that also have threads of their own."""
        if self._app is None:
            raise Invalid("the store is not open", hint="use `async with analemma.aio.open(...) as app`")
        return self._app

    @property
    def kernel(self) -> AsyncKernel:
        """The state kernel of the default tenant."""
        return self.default.kernel

    @property
    def payloads(self) -> AsyncPayloads:
        """The payloads of the default tenant."""
        return self.default.payloads

    @property
    def archives(self) -> AsyncArchives:
        """The workspaces of the default tenant, and their archives."""
        return self.default.archives

    @property
    def flows(self) -> AsyncFlows:
        """The runs of the default tenant."""
        return self.default.flows

    @property
    def contracts(self) -> AsyncContracts:
        """The contracts of the store; `current` is a coroutine here too."""
        from analemma.aio_pipeline import AsyncContracts

        return AsyncContracts(self.sync.contracts, self._threads)

    @property
    def deploys(self) -> AsyncDeploys:
        """The deploys of all tenants."""
        from analemma.aio_pipeline import AsyncDeploys

        return AsyncDeploys(self.sync.deploys, self._threads)

    @property
    def sinks(self) -> AsyncSinks:
        """The sinks of all tenants."""
        from analemma.aio_pipeline import AsyncSinks

        return AsyncSinks(self.sync.sinks, self._threads)

    @property
    def fanouts(self) -> AsyncFanouts:
        """The fanouts of all tenants."""
        from analemma.aio_pipeline import AsyncFanouts

        return AsyncFanouts(self.sync.fanouts, self._threads)

    @property
    def backfills(self) -> AsyncBackfills:
        """The backfills of all tenants."""
        from analemma.aio_pipeline import AsyncBackfills

        return AsyncBackfills(self.sync.backfills, self._threads)

    async def backfill(
        self, scope: Scope = None, *, kind: Kind = "raw_to_slice", dry_run: bool = False, **options: Any
    ) -> Backfill | BackfillPlan:
        """Compile, or ship, all entities of a scope again, or replay its dead letters: durably, each entity once. With
        `dry_run`, only what would change."""
        if dry_run:
            return await self.backfills.plan(scope, kind, **options)
        return await self.backfills.execute(scope, kind, **options)

    @property
    def default(self) -> AsyncTenant:
        """The tenant that the settings name."""
        if self._default is None:
            self._default = AsyncTenant(self.sync.default, self._threads)
        return self._default

    async def tenant(self, name: str) -> AsyncTenant:
        """One tenant's part of the store, made if it is new."""
        tenant = await self._threads.run(lambda: self.sync.tenant(name))
        return AsyncTenant(tenant, self._threads)

    async def stats(self, tenant: str | None = None) -> Stats:
        """How many blocks there are, what they hold and what they take."""
        return await self._threads.run(lambda: self.sync.stats(tenant))

    async def info(self) -> dict[str, str | int]:
        """Where everything is, without secrets."""
        return await self._threads.run(self.sync.info)

    async def close(self) -> None:
        """Wait for what was asked for, also by awaits that were cancelled, then give everything back."""
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._finish))

    async def _open(self) -> AsyncApp:
        opening = self._threads.submit(self._opened)
        try:
            self._app = await asyncio.wrap_future(opening)
        except BaseException:
            # Nobody waits for it any more; should it still open, it must not stay open.
            opening.add_done_callback(_close_opened)
            raise
        return self

    def _opened(self) -> App:
        app = self._opener()
        # Reading the default tenant asks the database; afterwards `kernel` need not.
        _ = app.default.kernel
        return app

    def _finish(self) -> None:
        self._threads.finish()
        if self._app is not None:
            self._app.close()


def open(
    where: str | os.PathLike[str] | None = None,
    *,
    objects: str | None = None,
    settings: Settings | None = None,
    migrate: bool | None = None,
    create: bool = True,
    objects_moved: bool = False,
    threads: int | None = None,
) -> AsyncApp:
    """As `analemma.open`, for `async with` or `await`; at most so many `threads` work at once."""
    options: dict[str, Any] = {
        "objects": objects,
        "settings": settings,
        "migrate": migrate,
        "create": create,
        "objects_moved": objects_moved,
    }
    return AsyncApp(lambda: open_app(where, **options), threads)


def _close_opened(opening: Future[App]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
