"""Dask: calls on a cluster that is there, or on one of processes that is started for the purpose."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from typing import Any, Final

from analemma.errors import AnalemmaError, Unavailable
from analemma.executors.port import CallExecutor, missing_package

CONNECT_S: Final = 30


class DaskCalls(CallExecutor):
    """Calls on a Dask cluster. Dask itself runs a call again whose worker died, a few times."""

    apart = True

    def __init__(self, client: Any, *, name: str, owned: Any = None) -> None:
        """`owned` is closed in the end, client and cluster."""
        self.name = name
        self._client = client
        self._owned = owned
        try:
            client.wait_for_workers(1, timeout=CONNECT_S)
        except Exception as exc:
            self.close()
            raise Unavailable(f"the Dask cluster {name} has no worker: {exc}", hint="start workers for it") from exc
        self.slots = max(1, sum(client.nthreads().values()))
        # Nothing here is a function of its arguments alone: it reads and writes a store.
        self._executor = client.get_executor(pure=False)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        if self._client.status != "running":
            raise Unavailable(f"the Dask cluster {self.name} is gone", hint="start it, then go on")
        future: Future[Any] = self._executor.submit(function, *arguments)
        return future

    def lost(self, error: BaseException) -> bool:
        # Named, not imported: whoever has a client has the class, wherever it came from.
        return any(
            cls.__module__.startswith("distributed.") and cls.__name__ == "KilledWorker" for cls in type(error).__mro__
        )

    def close(self) -> None:
        for each in self._owned or ():
            each.close()
        self._owned = None


def open_dask(where: str) -> CallExecutor:
    """A cluster by its address (`tcp://...`); a number, or nothing, is a cluster of so many processes here."""
    try:
        dask: Any = import_module("distributed")
    except ImportError as exc:
        raise missing_package("dask", exc) from exc
    if where and not where.isdigit():
        try:
            client = dask.Client(where, timeout=CONNECT_S, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as exc:
            raise _unreachable(where, exc) from exc
        return DaskCalls(client, name=f"dask:{where}", owned=[client])
    from analemma.executors.pools import default_processes

    workers = int(where) if where else default_processes()
    # The scheduler always opens an HTTP port, by default 8787; with any free one two clusters can live side by side.
    cluster = dask.LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False},
    )
    client = dask.Client(cluster, set_as_default=False)
    return DaskCalls(client, name=f"dask:{workers}", owned=[client, cluster])


def given_dask(client: Any) -> CallExecutor:
    """A client that belongs to the caller."""
    return DaskCalls(client, name="dask")


def _unreachable(where: str, exc: BaseException) -> AnalemmaError:
    return Unavailable(f"there is no Dask scheduler at {where}: {exc}", hint="give its address, as tcp://host:8786")
