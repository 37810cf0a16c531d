"""Runs calls in threads, in processes or on a cluster: a few at a time, results as they come, again when a worker died.
One port over all of them, and what a user may name instead."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from multiprocessing import get_context, parent_process
from typing import Any, Final, TypeVar

from analemma.errors import Internal, Invalid, Unavailable

ATTEMPTS: Final = 5
"""So often a call may end with its worker before it is given up: it may be what kills them."""
AHEAD: Final = 2
"""Calls that are handed out, for each that can run at a time: nobody waits for the next, and few are lost with one."""
POLL_S: Final = 0.1
LEAVE_S: Final = 60.0
"""So long a run that is left waits for what is running."""
ASK_S: Final = 5.0
"""So often a run asks whether there are workers, while nothing ends."""
WORKERLESS_S: Final = 120.0
"""So long it waits for workers that are not there. A busy machine takes half a minute to start one."""

_DIED: Final = 'see what the workers said: memory, or a program without `if __name__ == "__main__":`'

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Call:
    """A function and what it is called with. Where calls run in other processes, all of it is pickled: the function by
    its name, and plain data."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    tag: Any = None
    """What the caller knows it by; stays here."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended."""

    call: Call
    result: Any = None
    error: BaseException | None = None
    """What the function raised; Unavailable if its workers died too often."""
    attempts: int = 1

    def get(self) -> Any:
        """The result, or the error raised."""
        if self.error is not None:
            raise self.error
        return self.result


class Next(Enum):
    """What a source answers that has no call."""

    LATER = "later"
    """None now: to be asked again soon."""
    OVER = "over"
    """None, unless an outcome brings about more."""


Source = Callable[[], Call | Next]
"""Asked for one call at a time, whenever there is room, and by one thread."""


class CallExecutor(ABC):
    """Runs calls. An adapter says how one is handed over, and how to tell that a worker died."""

    name: str
    slots: int
    """How many calls run at a time."""
    apart: bool
    """Whether calls run in other processes, which have nothing of this one's."""

    @abstractmethod
    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Hand a call over."""

    def lost(self, error: BaseException) -> bool:
        """Whether an error says that a worker died, and nothing of the call itself."""
        return False

    def revive(self) -> None:  # noqa: B027
        """After a loss and before the next call: make whole what can be made whole, or raise Unavailable."""

    def missing(self) -> str | None:
        """Why no call can run now, as a sentence that can be followed by "for 120 s"; None if calls can. Asked now and
        then while nothing ends. Does not wait long for an answer, and mends what it can."""
        return None

    def abandon(self, future: Future[Any]) -> None:
        """Nobody wants the answer any more: a call that has not begun need not begin."""
        future.cancel()

    def close(self) -> None:  # noqa: B027
        """Give back what was started here; safe to call twice."""

    def __enter__(self) -> CallExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def map(self, function: Callable[..., Any], items: Iterable[Item], **options: Any) -> Iterator[tuple[Item, Any]]:
        """Each item with the function's answer for it, as they come; the first error is raised."""
        calls = (Call(function, (item,), item) for item in items)
        for outcome in self.run(lambda: next(calls, Next.OVER), **options):
            yield outcome.call.tag, outcome.get()

    def run(
        self,
        source: Source,
        *,
        ahead: int | None = None,
        attempts: int = ATTEMPTS,
        poll_s: float = POLL_S,
        ask_s: float = ASK_S,
        workerless_s: float = WORKERLESS_S,
    ) -> Iterator[Outcome]:
        """Run what a source gives, until it has no more, and tell how each call ended, as they end. At most `ahead`
        calls are handed out at a time, and those that a worker died with are handed out again. A call may take as long
        as it likes; with nobody there to run it, it is waited for `workerless_s`, then Unavailable is raised. Left
        early, it waits for what is running."""
        most = self.slots * AHEAD if ahead is None else ahead
        if most < 1 or attempts < 1:
            raise Invalid(f"{most} calls at a time, {attempts} attempts", hint="give 1 or more of each")
        running: dict[Future[Any], Outcome] = {}
        again: deque[Outcome] = deque()
        asked: float = time.monotonic()
        workerless_since: float | None = None
        try:
            while True:
                found: Call | Next = Next.LATER
                while len(running) < most:
                    if not again:
                        found = source()
                        if isinstance(found, Next):
                            break
                        again.append(Outcome(found))
                    self._hand_out(running, again)
                if not running:
                    if found is Next.OVER:
                        return
                    time.sleep(poll_s)
                    continue
                done, _ = wait(running, timeout=poll_s, return_when=FIRST_COMPLETED)
                now = time.monotonic()
                if done:
                    workerless_since = None
                elif now - asked >= min(ask_s, workerless_s):
                    # A call that takes long and one that nobody runs look alike, until one asks.
                    missing, asked = self.missing(), time.monotonic()
                    workerless_since = None if missing is None else workerless_since or now
                    if workerless_since is not None and asked - workerless_since >= workerless_s:
                        hint = "see why its workers end, or start others; then go on: what has ended is not done again"
                        raise Unavailable(f"{missing} for {workerless_s:g} s", hint=hint)
                some_died = False
                for future in done:
                    outcome, died = self._settled(future, running.pop(future))
                    some_died |= died
                    if died and outcome.attempts < attempts:
                        again.append(Outcome(outcome.call, attempts=outcome.attempts + 1))
                    elif died:
                        said = f"{type(outcome.error).__name__}: {outcome.error}"
                        error = Unavailable(f"its worker died {outcome.attempts} times: {said}", hint=_DIED)
                        yield replace(outcome, error=error)
                    else:
                        yield outcome
                if some_died:
                    self.revive()
        finally:
            for future in running:
                self.abandon(future)
            wait([future for future in running if not future.cancelled()], timeout=LEAVE_S)

    def _hand_out(self, running: dict[Future[Any], Outcome], waiting: deque[Outcome]) -> None:
        """Hand the first that waits over, or revive who refuses it."""
        call = waiting[0].call
        guard = (guarded,) if self.apart else ()
        try:
            future = self.submit(*guard, call.function, *call.arguments)
            running[future] = waiting.popleft()
        except Exception as exc:
            if not self.lost(exc):
                raise
            # Nobody has it: it did not cost an attempt, and reviving either helps or raises.
            self.revive()

    def _settled(self, future: Future[Any], begun: Outcome) -> tuple[Outcome, bool]:
        """How a call ended, and whether that was its worker's death."""
        if future.cancelled():
            # By somebody else: it is as lost as one whose worker died.
            return replace(begun, error=CancelledError("the call was cancelled where it was to run")), True
        error = future.exception()
        if error is not None:
            return replace(begun, error=error), self.lost(error)
        result, error = future.result() if self.apart else (future.result(), None)
        return replace(begun, result=result, error=error), False


def guarded(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None]:
    """The function's answer, or what it raised, in a form that travels: frameworks wrap errors in classes of their own,
    and leave a value alone."""
    try:
        return function(*arguments), None
    except Exception as exc:
        return None, portable(exc)


def portable(error: Exception) -> Exception:
    """An error in a form that travels."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return Internal(f"{type(error).__name__}: {error}")
    return error


def default_processes() -> int:
    """One for each processor that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class PoolCalls(CallExecutor):
    """Calls in an executor of the standard library: one that is made here, or the caller's, which is left open. Only a
    ThreadPoolExecutor is known to run calls here; of all others it is assumed that they do not."""

    def __init__(self, name: str, slots: int, pool: Executor, make: Callable[[], Executor] | None = None) -> None:
        """`make` makes another such pool, when all of a pool's processes are gone with one that died."""
        self.name, self.slots, self._pool, self._make = name, slots, pool, make
        self.apart = not isinstance(pool, ThreadPoolExecutor)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return self._pool.submit(function, *arguments)

    def lost(self, error: BaseException) -> bool:
        return isinstance(error, BrokenExecutor)

    def revive(self) -> None:
        if self._make is None:
            raise Unavailable(
                f"the {self.name} that was given is broken: one of its workers died",
                hint="give `processes:N` instead: a pool that we make, we can make again",
            )
        # Everything that was handed to a broken pool has failed, so nothing is taken from anybody.
        self.close()
        self._pool = self._make()

    def close(self) -> None:
        if self._make is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def _local_calls(kind: str, slots: int) -> CallExecutor:
    """Threads of this process, the right thing while the database does most of the work; or processes of this
    machine."""
    make: Callable[[], Executor] = partial(ThreadPoolExecutor, slots, "analemma-call")
    if kind == "processes":
        # A fork would copy open databases and locks that threads hold.
        make = partial(ProcessPoolExecutor, slots, get_context("spawn"), _begin_process)
    return PoolCalls(f"{kind}:{slots}", slots, make(), make)


def _begin_process() -> None:
    """Ctrl-C is for the one who waits; and a worker whose parent is gone has nobody to work for, though nothing else
    would tell it so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), name="analemma-parent", daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


THREADS: Final = 4
MOST: Final = 1024
_HINT: Final = "threads:8, processes:4, dask, dask:tcp://host:8786, ray, ray:auto, or an Executor"


Given = str | Executor | CallExecutor | Any | None
"""What a user may name: a text, an Executor, a Dask client."""


@contextmanager
def using_executor(given: Given = None) -> Iterator[CallExecutor]:
    """What runs calls, for a while; what was made for it is closed at the end, what was given stays open."""
    executor = resolve_executor(given)
    try:
        yield executor
    finally:
        if executor is not given:
            executor.close()


def resolve_executor(given: Given = None) -> CallExecutor:
    """What runs calls. Close it: what was only given stays open all the same.

    A name is `threads`, `processes`, `dask` or `ray`, each perhaps with `:` and how many; after `dask:` and `ray:` also
    the address of a cluster. An `Executor` of the standard library, a Dask client or a `CallExecutor` is used as it
    is.

    >>> with resolve_executor("threads:2") as executor:
    ...     sorted(executor.map(abs, [-1, -2]))
    [(-2, 2), (-1, 1)]
    """
    if isinstance(given, CallExecutor):
        return given
    if isinstance(given, Executor):
        found = getattr(given, "_max_workers", None)
        slots = found if isinstance(found, int) and found > 0 else default_processes()
        return PoolCalls(type(given).__name__, slots, given)
    # By name: asking Dask itself would import it.
    if any((cls.__module__, cls.__name__) == ("distributed.client", "Client") for cls in type(given).__mro__):
        from analemma.executors.clusters import DaskCalls

        return DaskCalls(given, name="dask")
    given = "threads" if given is None else given
    if not isinstance(given, str):
        raise Invalid(f"{type(given).__name__} runs no calls", hint=_HINT)
    kind, colon, rest = given.partition(":")
    usual = {"threads": THREADS, "processes": default_processes()}
    if kind in usual:
        return _local_calls(kind, _count(given, rest) if colon else usual[kind])
    if kind in ("dask", "ray") and (rest or not colon):
        from analemma.executors.clusters import open_dask, open_ray

        if rest.isdigit():
            _count(given, rest)
        return open_dask(rest) if kind == "dask" else open_ray(rest)
    raise Invalid(f"there is no executor {given!r}", hint=_HINT)


def _count(given: str, rest: str) -> int:
    if not (rest.isascii() and rest.isdigit()) or not 1 <= int(rest) <= MOST:
        raise Invalid(f"{given!r} does not say how many", hint=f"from 1 to {MOST}, as in {given.partition(':')[0]}:4")
    return int(rest)
