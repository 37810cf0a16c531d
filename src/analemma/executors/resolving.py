"""From what a user says to what runs calls."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, Final

from analemma.errors import Invalid
from analemma.executors.pools import GivenCalls, ProcessCalls, ThreadCalls, default_processes
from analemma.executors.port import CallExecutor

DEFAULT: Final = "threads"
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
        return GivenCalls(given)
    if _is_dask_client(given):
        from analemma.executors.dask_cluster import given_dask

        return given_dask(given)
    if given is None:
        given = DEFAULT
    if not isinstance(given, str):
        raise Invalid(f"{type(given).__name__} runs no calls", hint=_HINT)
    kind, colon, rest = given.partition(":")
    if kind == "threads":
        return ThreadCalls(_count(given, rest, colon, THREADS))
    if kind == "processes":
        return ProcessCalls(_count(given, rest, colon, default_processes()))
    if kind == "dask" and (rest or not colon):
        from analemma.executors.dask_cluster import open_dask

        _count(given, rest, rest if rest.isdigit() else "", 1)
        return open_dask(rest)
    if kind == "ray" and (rest or not colon):
        from analemma.executors.ray_cluster import open_ray

        _count(given, rest, rest if rest.isdigit() else "", 1)
        return open_ray(rest)
    raise Invalid(f"there is no executor {given!r}", hint=_HINT)


def _count(given: str, rest: str, named: str, otherwise: int) -> int:
    if not named:
        return otherwise
    if not (rest.isascii() and rest.isdigit()) or not 1 <= int(rest) <= MOST:
        raise Invalid(f"{given!r} does not say how many", hint=f"from 1 to {MOST}, as in {given.partition(':')[0]}:4")
    return int(rest)


def _is_dask_client(given: Any) -> bool:
    # By name: asking Dask itself would import it.
    return any(cls.__module__ == "distributed.client" and cls.__name__ == "Client" for cls in type(given).__mro__)
