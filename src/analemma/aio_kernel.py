"""The kernel for asyncio: its verbs as coroutines, its iterators as async iterators, its sessions as async context
managers. Each waits for a thread of `analemma.aio`; an iterator, which may wait for hours, has one of its own."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import inspect
import itertools
import queue
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from analemma.aio_threads import Hopping, Threads, hop
from analemma.bag.kernel import BagKernel as Kernel
from analemma.bag.state_bag import SmartStateBag
from analemma.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")


def stream(
    verb: Callable[Concatenate[Kernel, P], Iterator[T]],
) -> Callable[Concatenate[AsyncKernel, P], AsyncIterator[T]]:
    """The verb as an async iterator, which begins when it is first asked for something. It has a thread of its own:
    whoever waits for hours must not keep others from saving."""

    @functools.wraps(verb)
    async def iterated(self: AsyncKernel, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        wanted: queue.SimpleQueue[Future[list[T]] | None] = queue.SimpleQueue()
        stopped = threading.Event()
        kernel = copy.copy(self._target)
        kernel._clock = StoppableClock(self._target._clock, stopped)
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


class AsyncKernel(Hopping[Kernel]):
    """The kernel's verbs as coroutines, and its iterators as async iterators, with the same parameters.

    Those listed here are known to type checkers; any other that the kernel has is added below."""

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
    update = hop(Kernel.update)
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
