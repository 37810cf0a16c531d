"""The threads in which the verbs of `analemma.aio` run, and how a verb becomes a coroutine that waits for one."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from analemma.errors import Invalid, Unavailable

P = ParamSpec("P")
T = TypeVar("T")
Target = TypeVar("Target", covariant=True)


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
