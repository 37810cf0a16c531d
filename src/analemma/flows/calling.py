"""Calling what a node does: def or async def, within a time, and again where that may help."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import queue
import threading
from collections.abc import Callable, Coroutine
from random import Random
from types import TracebackType
from typing import Any, Final

from analemma.catalog.runs.runs import FencedOut
from analemma.clock import Clock
from analemma.errors import Corrupt, Denied, Invalid, Timeout
from analemma.flows.context import Cancelled
from analemma.flows.effects import NobodyKnows
from analemma.flows.nodes import Retries
from analemma.flows.runs import said

NEVER_AGAIN: Final = (Invalid, Denied, Corrupt, Cancelled, FencedOut, NobodyKnows)
"""What would be the same the next time."""
ENDS: Final = (SystemExit, asyncio.CancelledError, GeneratorExit)
"""What ends a program, a task or a generator, and is no Exception. From a handler it ends the node and nothing else."""


class HandlerEnded(Exception):
    """A handler raised what is meant to end more than itself, as `sys.exit` does."""


class Caller:
    """Calls handlers, one at a time. Close it, or use it as a context manager."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._runner: asyncio.Runner | None = None

    def __enter__(self) -> Caller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back what coroutines needed."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float | None = None) -> Any:
        """The function's answer, awaited if it is to be; Timeout if it takes too long.

        A coroutine is cancelled then. A function that is not one cannot be stopped: it goes on in a thread of its own,
        and what it answers is not heard. Whatever it raises but KeyboardInterrupt is an Exception here."""
        try:
            return self._called(function, arguments, timeout_s)
        except ENDS as exc:
            raise HandlerEnded(f"it raised {type(exc).__name__}: {said(exc)}") from exc

    def _called(self, function: Callable[..., Any], arguments: tuple[Any, ...], timeout_s: float | None) -> Any:
        if timeout_s is not None and not inspect.iscoroutinefunction(function):
            return self._apart(lambda: _finish(function(*arguments)), timeout_s)
        return self._settled(function(*arguments), timeout_s)

    def _settled(self, answer: Any, timeout_s: float | None) -> Any:
        if not inspect.isawaitable(answer):
            return answer
        waiting = _awaited(answer, timeout_s)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._run(waiting)
        # Called from inside of a loop, which cannot wait for a coroutine itself.
        return self._apart(lambda: asyncio.run(waiting), None)

    def _run(self, waiting: Coroutine[Any, Any, Any]) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(waiting)

    def _apart(self, work: Callable[[], Any], timeout_s: float | None) -> Any:
        answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        context = contextvars.copy_context()

        def run() -> None:
            try:
                answers.put((context.run(work), None))
            except BaseException as exc:
                answers.put((None, exc))

        threading.Thread(target=run, name="analemma-node", daemon=True).start()
        try:
            value, error = answers.get(timeout=timeout_s)
        except queue.Empty:
            raise _took_too_long(timeout_s) from None
        if error is not None:
            raise error
        return value


def _finish(answer: Any) -> Any:
    """In a thread of its own, which has no loop."""
    return asyncio.run(_awaited(answer, None)) if inspect.isawaitable(answer) else answer


def may_help(error: BaseException) -> bool:
    """Whether to try again after an error."""
    return isinstance(error, Exception) and not isinstance(error, NEVER_AGAIN)


def wait_before(retries: Retries, attempt: int, chance: Random) -> float:
    """How long to wait after an attempt that failed, in seconds: anything up to `delay_s * factor ** n`, so that those
    who failed together do not try together."""
    longest = min(retries.maximum_delay_s, retries.delay_s * retries.factor ** min(attempt - 1, 64))
    return chance.uniform(0, longest)


async def _awaited(answer: Any, timeout_s: float | None) -> Any:
    if timeout_s is None:
        return await answer
    try:
        async with asyncio.timeout(timeout_s) as watch:
            return await answer
    except TimeoutError:
        if watch.expired():
            raise _took_too_long(timeout_s) from None
        raise


def _took_too_long(timeout_s: float | None) -> Timeout:
    return Timeout(f"it took longer than {timeout_s:g} s", hint="raise timeout_s, or do less", timeout_s=timeout_s)
