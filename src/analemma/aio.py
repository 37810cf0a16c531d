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
import contextvars
import copy
import functools
import inspect
import itertools
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from analemma.app import App, Stats, Tenant, open_app
from analemma.bag.kernel import BagKernel as Kernel
from analemma.bag.payloads import Payloads
from analemma.bag.state_bag import SmartStateBag
from analemma.clock import Clock
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

P = ParamSpec("P")
T = TypeVar("T")


def default_threads() -> int:
    """How many verbs run at once, unless told otherwise: they wait more than they compute."""
    return min(32, (os.cpu_count() or 1) + 4)


class Threads:
    """A bounded number of threads, in which the verbs run."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise Invalid(f"{size} threads", hint="use at least one")
        self._executor = ThreadPoolExecutor(size, thread_name_prefix="analemma-aio")

    async def run(self, call: Callable[[], T]) -> T:
        """Run it in a thread and wait for it. Cancelled before its turn, it does not run; after, it runs to its end."""
        return await asyncio.wrap_future(self.submit(call))

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run it in a thread, with the context variables of here."""
        return self._executor.submit(contextvars.copy_context().run, call)

    def finish(self) -> None:
        """Wait for everything that was asked for, and take nothing more."""
        self._executor.shutdown(wait=True)


def hop(
    verb: Callable[Concatenate[Kernel, P], T],
) -> Callable[Concatenate[AsyncKernel, P], Coroutine[Any, Any, T]]:
    """The verb as a coroutine that waits for a thread."""

    @functools.wraps(verb)
    async def awaited(self: AsyncKernel, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._threads.run(functools.partial(verb, self._kernel, *args, **kwargs))

    return awaited


def stream(
    verb: Callable[Concatenate[Kernel, P], Iterator[T]],
) -> Callable[Concatenate[AsyncKernel, P], AsyncIterator[T]]:
    """The verb as an async iterator, which begins when it is first asked for something. It has a thread of its own:
    whoever waits for hours must not keep others from saving."""

    @functools.wraps(verb)
    async def iterated(self: AsyncKernel, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        wanted: queue.SimpleQueue[Future[list[T]] | None] = queue.SimpleQueue()
        stopped = threading.Event()
        kernel = copy.copy(self._kernel)
        kernel._clock = StoppableClock(self._kernel._clock, stopped)
        make = functools.partial(contextvars.copy_context().run, verb, kernel, *args, **kwargs)
        # A daemon: a program that ends must not wait for what it waits for.
        threading.Thread(target=_serve, args=(make, wanted), name=f"analemma-{verb.__name__}", daemon=True).start()
        try:
            while items := await _next(wanted):
                yield items[0]
        finally:
            stopped.set()
            wanted.put(None)

    return iterated


def manage(
    verb: Callable[Concatenate[Kernel, P], AbstractContextManager[T]],
) -> Callable[Concatenate[AsyncKernel, P], AbstractAsyncContextManager[T]]:
    """The verb as an async context manager, whose beginning and end wait for threads."""

    @functools.wraps(verb)
    def managed(self: AsyncKernel, /, *args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T]:
        return _managed(self._threads, verb(self._kernel, *args, **kwargs))

    return managed


@asynccontextmanager
async def _managed(threads: Threads, manager: AbstractContextManager[T]) -> AsyncIterator[T]:
    value = await threads.run(manager.__enter__)
    try:
        yield value
    except BaseException as exc:
        if not await threads.run(functools.partial(manager.__exit__, type(exc), exc, exc.__traceback__)):
            raise
    else:
        await threads.run(functools.partial(manager.__exit__, None, None, None))


class Stopped(Exception):
    """Ends an iterator that nobody listens to any more while it waits."""


class StoppableClock:
    """A clock whose sleepers can be sent home."""

    def __init__(self, clock: Clock, stopped: threading.Event) -> None:
        self._clock = clock
        self._stopped = stopped

    def now_us(self) -> int:
        return self._clock.now_us()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise Stopped


async def _next(wanted: queue.SimpleQueue[Future[list[T]] | None]) -> list[T]:
    asked: Future[list[T]] = Future()
    wanted.put(asked)
    return await asyncio.wrap_future(asked)


def _serve(make: Callable[[], Iterator[T]], wanted: queue.SimpleQueue[Future[list[T]] | None]) -> None:
    """Take one step of the iterator for each future; nothing in it means that the iterator has ended."""
    items: Iterator[T] | None = None
    while (asked := wanted.get()) is not None:
        if not asked.set_running_or_notify_cancel():
            continue
        try:
            items = make() if items is None else items
            asked.set_result(list(itertools.islice(items, 1)))
        except BaseException as exc:
            asked.set_exception(exc)
    if isinstance(items, Generator):
        items.close()


class AsyncKernel:
    """The kernel's verbs as coroutines, and its iterators as async iterators, with the same parameters.

    Those listed here are known to type checkers; any other that the kernel has is added below."""

    def __init__(self, kernel: Kernel, threads: Threads) -> None:
        self._kernel = kernel
        self._threads = threads

    blame = hop(Kernel.blame)
    branches = hop(Kernel.branches)
    checkpoint_async = hop(Kernel.checkpoint_async)
    children = hop(Kernel.children)
    create_manifest = hop(Kernel.create_manifest)
    decide = hop(Kernel.decide)
    decisions = hop(Kernel.decisions)
    diff = hop(Kernel.diff)
    expire = hop(Kernel.expire)
    expire_all = hop(Kernel.expire_all)
    fork = hop(Kernel.fork)
    get_manifest = hop(Kernel.get_manifest)
    get_retention = hop(Kernel.get_retention)
    get_workflow = hop(Kernel.get_workflow)
    history = hop(Kernel.history)
    inject_dynamic_segment = hop(Kernel.inject_dynamic_segment)
    last_safe_manifest = hop(Kernel.last_safe_manifest)
    list_workflows = hop(Kernel.list_workflows)
    load_fields = hop(Kernel.load_fields)
    load_segment_manifest = hop(Kernel.load_segment_manifest)
    load_state_with_consistency = hop(Kernel.load_state_with_consistency)
    load_workflow_config = hop(Kernel.load_workflow_config)
    merge = hop(Kernel.merge)
    pin = hop(Kernel.pin)
    pins = hop(Kernel.pins)
    rollback_to_last_safe = hop(Kernel.rollback_to_last_safe)
    rollback_to_version = hop(Kernel.rollback_to_version)
    save = hop(Kernel.save)
    save_state_delta = hop(Kernel.save_state_delta)
    session = manage(Kernel.session)
    set_retention = hop(Kernel.set_retention)
    set_workflow = hop(Kernel.set_workflow)
    tag = hop(Kernel.tag)
    tags = hop(Kernel.tags)
    ticket = hop(Kernel.ticket)
    unpin = hop(Kernel.unpin)
    untag = hop(Kernel.untag)
    verify = hop(Kernel.verify)
    verify_manifest_integrity = hop(Kernel.verify_manifest_integrity)
    verify_segment_config = hop(Kernel.verify_segment_config)
    wait_for = hop(Kernel.wait_for)
    watch = stream(Kernel.watch)

    if TYPE_CHECKING:

        @overload
        async def load_latest_state(
            self,
            *,
            workflow_id: str,
            owner_id: str,
            execution_id: str | None = None,
            branch: str = "main",
            lazy: Literal[False] = False,
        ) -> dict[str, Any]: ...

        @overload
        async def load_latest_state(
            self,
            *,
            workflow_id: str,
            owner_id: str,
            execution_id: str | None = None,
            branch: str = "main",
            lazy: Literal[True],
        ) -> SmartStateBag: ...

        async def load_latest_state(self, **options: Any) -> dict[str, Any]: ...

        @overload
        async def load_state(
            self, manifest_id: str, *, owner_id: str | None = None, lazy: Literal[False] = False
        ) -> dict[str, Any]: ...

        @overload
        async def load_state(
            self, manifest_id: str, *, owner_id: str | None = None, lazy: Literal[True]
        ) -> SmartStateBag: ...

        async def load_state(self, manifest_id: str, **options: Any) -> dict[str, Any]: ...

    else:
        load_latest_state = hop(Kernel.load_latest_state)
        load_state = hop(Kernel.load_state)


def _add_verbs() -> None:
    for name, verb in inspect.getmembers(Kernel, inspect.isfunction):
        if not name.startswith("_") and not hasattr(AsyncKernel, name):
            returns = str(inspect.signature(verb).return_annotation)
            setattr(AsyncKernel, name, (stream if returns.startswith(("Iterator[", "Generator[")) else hop)(verb))


_add_verbs()


def hop_payload(
    verb: Callable[Concatenate[Payloads, P], T],
) -> Callable[Concatenate[AsyncPayloads, P], Coroutine[Any, Any, T]]:
    """A verb on payloads as a coroutine that waits for a thread."""

    @functools.wraps(verb)
    async def awaited(self: AsyncPayloads, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._threads.run(functools.partial(verb, self._payloads, *args, **kwargs))

    return awaited


class AsyncPayloads:
    """The verbs on payloads as coroutines. What `hydrate` gives reads the store on first access, in whatever thread
    that is: name what will be needed in `load_fields`."""

    def __init__(self, payloads: Payloads, threads: Threads) -> None:
        self._payloads = payloads
        self._threads = threads

    dehydrate = hop_payload(Payloads.dehydrate)
    filter_event_payload = hop_payload(Payloads.filter_event_payload)
    hydrate = hop_payload(Payloads.hydrate)
    leases = hop_payload(Payloads.leases)
    load_fields_selective = hop_payload(Payloads.load_fields_selective)
    release = hop_payload(Payloads.release)


def hop_tenant(
    verb: Callable[Concatenate[Tenant, P], T],
) -> Callable[Concatenate[AsyncTenant, P], Coroutine[Any, Any, T]]:
    """A verb of a tenant as a coroutine that waits for a thread."""

    @functools.wraps(verb)
    async def awaited(self: AsyncTenant, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._threads.run(functools.partial(verb, self._tenant, *args, **kwargs))

    return awaited


class AsyncTenant:
    """One tenant's part of an open store."""

    def __init__(self, tenant: Tenant, threads: Threads) -> None:
        self.name = tenant.name
        self.kernel = AsyncKernel(tenant.kernel, threads)
        self.payloads = AsyncPayloads(tenant.payloads, threads)
        self._tenant = tenant
        self._threads = threads

    ingest = hop_tenant(Tenant.ingest)
    ingest_many = hop_tenant(Tenant.ingest_many)
    deploy = hop_tenant(Tenant.deploy)
    ship = hop_tenant(Tenant.ship)
    delete = hop_tenant(Tenant.delete)
    compile = hop_tenant(Tenant.compile)
    slices = hop_tenant(Tenant.slices)
    state_sources = hop_tenant(Tenant.state_sources)
    source_problems = hop_tenant(Tenant.source_problems)
    backfill_sources = hop_tenant(Tenant.backfill_sources)

    @property
    def deploys(self) -> AsyncDeploys:
        """This tenant's deploys."""
        from analemma.aio_pipeline import AsyncDeploys

        return AsyncDeploys(self._tenant.deploys, self._threads)

    @property
    def archives(self) -> AsyncArchives:
        """This tenant's workspaces, and their archives."""
        from analemma.aio_archives import AsyncArchives

        return AsyncArchives(self._tenant.archives, self._threads)

    @property
    def flows(self) -> AsyncFlows:
        """This tenant's runs of workflows."""
        from analemma.aio_flows import AsyncFlows

        return AsyncFlows(self._tenant.flows, self._threads)

    def view(self, view_id: str, version: str | None = None) -> AsyncView:
        """One view, whose verbs are coroutines; whether there is such a view shows when it is asked."""
        from analemma.aio_pipeline import AsyncView
        from analemma.pipeline.querying import EntityView

        return AsyncView(EntityView(self._tenant.views, view_id, version), self._threads)

    def entity(self, entity_type: str, entity_id: str) -> AsyncEntity:
        """One entity, whose verbs are coroutines."""
        from analemma.aio_pipeline import AsyncEntity

        return AsyncEntity(self._tenant.entity(entity_type, entity_id), self._threads)


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
    threads: int | None = None,
) -> AsyncApp:
    """As `analemma.open`, for `async with` or `await`; at most so many `threads` work at once."""
    options: dict[str, Any] = {"objects": objects, "settings": settings, "migrate": migrate, "create": create}
    return AsyncApp(lambda: open_app(where, **options), threads)


def _close_opened(opening: Future[App]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
