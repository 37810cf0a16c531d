"""Threads and processes of this machine, and whatever executor a program has already."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

from analemma.errors import Unavailable
from analemma.executors.port import CallExecutor


def default_processes() -> int:
    """One for each processor that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ThreadCalls(CallExecutor):
    """Threads of this process: the right thing while the database does most of the work."""

    apart = False

    def __init__(self, slots: int) -> None:
        self.name, self.slots = f"threads:{slots}", slots
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="analemma-call")

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return self._pool.submit(function, *arguments)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


class ProcessCalls(CallExecutor):
    """Processes of this machine. When one dies the pool is broken; another takes its place."""

    apart = True

    def __init__(self, slots: int) -> None:
        self.name, self.slots = f"processes:{slots}", slots
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        if self._pool is None:
            # A fork would copy open databases and locks that threads hold.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.slots, mp_context=context, initializer=_begin_process)
        return self._pool.submit(function, *arguments)

    def lost(self, error: BaseException) -> bool:
        return isinstance(error, BrokenExecutor)

    def revive(self) -> None:
        # Everything that was handed to a broken pool has failed, so nothing is taken from anybody.
        self.close()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


class GivenCalls(CallExecutor):
    """An executor that belongs to the caller, and is left open. Only a ThreadPoolExecutor is known to run calls here;
    of all others it is assumed that they do not."""

    def __init__(self, executor: Executor, slots: int | None = None) -> None:
        found = getattr(executor, "_max_workers", None) if slots is None else slots
        self.slots = found if isinstance(found, int) and found > 0 else default_processes()
        self.name = type(executor).__name__
        self.apart = not isinstance(executor, ThreadPoolExecutor)
        self._executor = executor

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return self._executor.submit(function, *arguments)

    def lost(self, error: BaseException) -> bool:
        return isinstance(error, BrokenExecutor)

    def revive(self) -> None:
        raise Unavailable(
            f"the {self.name} that was given is broken: one of its workers died",
            hint="give `processes:N` instead: a pool that we make, we can make again",
        )


def _begin_process() -> None:
    """Ctrl-C is for the one who waits; and a worker whose parent is gone has nobody to work for, though nothing else
    would tell it so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), name="analemma-parent", daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)
