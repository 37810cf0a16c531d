"""The async face: the same verbs, each a hop to a thread.

The library is synchronous, because SQLite is; here an await waits for a thread of our own instead of blocking the event
loop. Cancelling an await abandons the wait, never the transaction: one that has begun runs to its end in its thread.
Hooks, steps, and functions that are told of progress are called in such a thread; `async def` steps in an event loop of
their own there. What a bag or a hydrated state reads later, it reads in the thread that asks it: name in `load_fields`
what will be needed. A backfill that runs has a thread until it is done: pause it from another task.

>>> import asyncio
>>> import analemma.aio
>>> async def main():
...     async with analemma.aio.open("sqlite:///:memory:") as app:
...         trip = app.workflow("trip", owner="ann")
...         await trip.save({"n": 1})
...         return await trip.load()
>>> asyncio.run(main())
{'n': 1}

Every part of a store has a face here that is derived from its class: a verb becomes a coroutine, an iterator an async
iterator, a context manager an async context manager, a part another face. What type checkers are told of them is in
`aio_faces.pyi`, which a test compares.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import itertools
import os
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from analemma.clock import until
from analemma.errors import Invalid, Unavailable
from analemma.settings import Settings
from analemma.store.open import open_app
from analemma.store.store import App, Tenant

if TYPE_CHECKING:
    from analemma.aio_faces import AppFace, AsyncEntity, AsyncView, ContractsFace, DeploysFace, FlowsFace, TenantFace
    from analemma.aio_faces import AsyncKernel as AsyncKernel
    from analemma.aio_faces import AsyncPayloads as AsyncPayloads
    from analemma.aio_faces import AsyncWorkflow as AsyncWorkflow
    from analemma.aio_faces import AsyncWorkflowTicket as AsyncWorkflowTicket
    from analemma.aio_faces import AsyncWorkflowVersion as AsyncWorkflowVersion
    from analemma.contracts.contract_set import ContractSet
    from analemma.flows.runs import Run
    from analemma.pipeline.deploy_records import Deploy

__all__ = [
    *("AsyncApp", "AsyncKernel", "AsyncPayloads", "AsyncTenant"),
    *("AsyncWorkflow", "AsyncWorkflowTicket", "AsyncWorkflowVersion"),
    *("Threads", "default_threads", "open"),
]

P = ParamSpec("P")
T = TypeVar("T")
Target = TypeVar("Target", covariant=True)

PARTS = (
    *("default", "kernel", "payloads", "archives", "flows", "queues", "schedules"),
    *("contracts", "deploys", "sinks", "fanouts", "backfills"),
)
"""Attributes whose values have verbs, and a face of their own."""
HANDLES = ("Workflow", "WorkflowVersion", "WorkflowTicket")
"""Classes of what verbs give that has verbs again."""


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
        try:
            return self._executor.submit(contextvars.copy_context().run, call)
        except RuntimeError as exc:
            # As the verbs themselves say it; or the machine has no thread left.
            raise Unavailable(f"no thread takes this any more: {exc}", hint="open the store again") from exc

    def finish(self) -> None:
        """Wait for everything that was asked for, and take nothing more."""
        self._executor.shutdown(wait=True)


class Async(Generic[Target]):
    """The async face of one part of a store. Its verbs have the parameters of the part's."""

    def __init__(self, target: Target, threads: Threads) -> None:
        self._target = target
        self._threads = threads


if not TYPE_CHECKING:
    AppFace = ContractsFace = DeploysFace = FlowsFace = TenantFace = Async


def hop(verb: Callable[Concatenate[Target, P], T]) -> Callable[Concatenate[Async[Target], P], Coroutine[Any, Any, T]]:
    """The verb as a coroutine that waits for a thread; of what has verbs again, it gives the face."""
    is_handle = gives_handle(verb)

    @functools.wraps(verb)
    async def awaited(self: Async[Target], /, *args: P.args, **kwargs: P.kwargs) -> T:
        found = await self._threads.run(_call(verb, self, args, kwargs))
        return cast(T, face(found, type(found).__name__, self._threads)) if is_handle else found

    return awaited


def _call(verb: Callable[..., T], of: Async[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], T]:
    """A call of the part itself, with parts where faces were given."""
    plain = [each._target if isinstance(each, Async) else each for each in (*args, *kwargs.values())]
    return functools.partial(
        verb, of._target, *plain[: len(args)], **dict(zip(kwargs, plain[len(args) :], strict=True))
    )


def stream(
    verb: Callable[Concatenate[Target, P], Iterator[T]],
) -> Callable[Concatenate[Async[Target], P], AsyncIterator[T]]:
    """The verb as an async iterator, which begins when it is first asked for something. It has a thread of its own:
    whoever waits for hours must not keep others from saving."""

    @functools.wraps(verb)
    async def iterated(self: Async[Target], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        wanted: queue.SimpleQueue[Future[list[T]] | None] = queue.SimpleQueue()
        stopped = threading.Event()
        make = functools.partial(verb, self._target, *args, **kwargs)
        serve = functools.partial(contextvars.copy_context().run, _serve, make, wanted, stopped)
        # A daemon: a program that ends must not wait for what it waits for.
        threading.Thread(target=serve, name=f"analemma-{verb.__name__}", daemon=True).start()
        try:
            while items := await _next(wanted):
                yield items[0]
        finally:
            stopped.set()
            wanted.put(None)

    return iterated


async def _next(wanted: queue.SimpleQueue[Future[list[T]] | None]) -> list[T]:
    asked: Future[list[T]] = Future()
    wanted.put(asked)
    return await asyncio.wrap_future(asked)


def _serve(
    make: Callable[[], Iterator[T]], wanted: queue.SimpleQueue[Future[list[T]] | None], stopped: threading.Event
) -> None:
    """Take one step of the iterator for each future; nothing in it means that the iterator has ended."""
    items: Iterator[T] | None = None
    with until(stopped):
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


def manage(
    verb: Callable[Concatenate[Target, P], AbstractContextManager[T]],
) -> Callable[Concatenate[Async[Target], P], AbstractAsyncContextManager[T]]:
    """The verb as an async context manager, whose beginning and end wait for threads."""

    @functools.wraps(verb)
    def managed(self: Async[Target], /, *args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T]:
        return _managed(self._threads, verb(self._target, *args, **kwargs))

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


def member(of: type, name: str) -> Any:
    """What a face has for a public attribute of a class; None for what is no business of coroutines."""
    found = inspect.getattr_static(of, name, None)
    if name in PARTS:
        return property(lambda self: face(getattr(self._target, name), name, self._threads), doc=found.__doc__)
    if name in inspect.get_annotations(of):
        return property(lambda self: getattr(self._target, name))
    return wrapper(found)(found) if inspect.isfunction(found) else None


def wrapper(verb: Callable[..., Any]) -> Callable[..., Any]:
    """What makes a verb one of the async face, by what it says that it gives."""
    gives = _given(verb)
    return stream if gives == "Iterator" else manage if gives == "AbstractContextManager" else hop


def gives_handle(verb: Callable[..., Any]) -> bool:
    """Whether a verb gives something that has verbs again."""
    return verb.__module__ == "analemma.store.workflow" and _given(verb) in HANDLES


def _given(verb: Callable[..., Any]) -> str:
    return str(inspect.signature(verb).return_annotation).partition("[")[0]


@functools.cache
def face_class(of: type, name: str) -> type[Async[Any]]:
    """The face of a class, which is called after the attribute where it is found."""
    cls = OURS.get(name) or type(f"Async{name[0].upper()}{name[1:]}", (Async,), {"__doc__": of.__doc__})
    for each in sorted({*dir(of), *inspect.get_annotations(of)}):
        if each.startswith("_"):
            continue
        if not hasattr(cls, each):
            if (found := member(of, each)) is not None:
                setattr(cls, each, found)
        elif (mine := getattr(cls, each)).__doc__ is None:
            mine.__doc__ = getattr(of, each).__doc__
    return cls


def face(part: Any, name: str, threads: Threads) -> Any:
    """The face of a part."""
    return face_class(part.__class__, name)(part, threads)


class AsyncContracts(ContractsFace):
    """The contracts of an open store."""

    async def current(self) -> ContractSet:
        """What applies now, at most a second behind what other processes load; NotFound if there is nothing."""
        return await self._threads.run(lambda: self._target.current)


class AsyncDeploys(DeploysFace):
    """The deploys of one tenant, or of all."""

    async def await_(self, id: str, *, until: str = "done", timeout_s: float | None = 30.0) -> Deploy:
        # Not a thread that waits: many tasks may wait at a time, and threads are few.
        from analemma.pipeline.deploys import FIRST_PAUSE_S, LONGEST_PAUSE_S, check_waiting, is_reached, late

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


class AsyncFlows(FlowsFace):
    """One tenant's runs."""

    async def read(self, run: Run) -> Run:
        """Read the state and the segments of a run, so that asking it for them does not wait for the store."""
        await self._threads.run(lambda: (run.state, run.segments))
        return run


class AsyncTenant(TenantFace):
    """One tenant's part of an open store."""

    def workflow(self, name: str, *, owner: str | None = None) -> AsyncWorkflow:
        # Not a coroutine: nothing is read.
        handle: AsyncWorkflow = face(self._target.workflow(name, owner=owner), "Workflow", self._threads)
        return handle

    def view(self, view_id: str, version: str | None = None) -> AsyncView:
        """One view, whose verbs are coroutines; whether there is such a view shows when it is asked."""
        from analemma.pipeline.querying import EntityView

        view: AsyncView = face(EntityView(self._target.views, view_id, version), "view", self._threads)
        return view

    def entity(self, entity_type: str, entity_id: str) -> AsyncEntity:
        """One entity, whose verbs are coroutines."""
        entity: AsyncEntity = face(self._target.entity(entity_type, entity_id), "entity", self._threads)
        return entity


class AsyncApp(AppFace):
    """A store, open from `async with` or `await` until it is closed. For one event loop."""

    def __init__(self, opener: Callable[[], App], threads: int | None = None) -> None:
        self._opener = opener
        self._threads = Threads(default_threads() if threads is None else threads)
        self._app: App | None = None

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

    _target = sync

    def workflow(self, name: str, *, owner: str | None = None) -> AsyncWorkflow:
        return self.default.workflow(name, owner=owner)

    async def tenant(self, name: str) -> AsyncTenant:
        """One tenant's part of the store, made if it is new."""
        tenant: AsyncTenant = face(await self._threads.run(lambda: self.sync.tenant(name)), "default", self._threads)
        return tenant

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
    opener = functools.partial(
        open_app,
        where,
        objects=objects,
        settings=settings,
        migrate=migrate,
        create=create,
        objects_moved=objects_moved,
    )
    return AsyncApp(opener, threads)


def _close_opened(opening: Future[App]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


OURS: dict[str, type[Async[Any]]] = {
    "app": AsyncApp,
    "default": AsyncTenant,
    "contracts": AsyncContracts,
    "deploys": AsyncDeploys,
    "flows": AsyncFlows,
}
"""Faces that have something that their part has not, or has in another way."""

for _of, _name in ((App, "app"), (Tenant, "default")):
    face_class(_of, _name)


def __getattr__(name: str) -> Any:
    # Derived when they are first used, as their parts are.
    if name == "AsyncKernel":
        from analemma.bag.bag import BagKernel

        return face_class(BagKernel, "kernel")
    if name == "AsyncPayloads":
        from analemma.payloads.payloads import Payloads

        return face_class(Payloads, "payloads")
    if name.removeprefix("Async") in HANDLES:
        from analemma.store import workflow

        handle = name.removeprefix("Async")
        return face_class(getattr(workflow, handle), handle)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
