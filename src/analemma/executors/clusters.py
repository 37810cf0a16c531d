"""Calls on clusters: on one that is there, or on one that is started here for the purpose and ended with it."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from analemma.errors import Unavailable
from analemma.executors.port import CallExecutor, default_processes

CONNECT_S: Final = 30
START_S: Final = 120
"""So long for the processes of a cluster of our own to come up."""
ANSWER_S: Final = 10
"""So long for a scheduler to say which workers it has."""
CLOSE_S: Final = 60
"""So long for each of client and cluster to end; what processes are left then end with this one."""


class DaskCalls(CallExecutor):
    """Calls on a Dask cluster. Dask itself runs a call again whose worker died, a few times; on a cluster of our own it
    does not, so that attempts are counted alike everywhere."""

    apart = True

    def __init__(
        self, client: Any, *, name: str, owned: Iterable[Any] = (), cluster: Any = None, workers: int = 1
    ) -> None:
        """What is owned is closed in the end; a cluster of our own is kept at so many workers."""
        self.name = name
        self._client = client
        self._owned = [*owned]
        self._cluster = cluster
        self._workers = workers
        try:
            client.wait_for_workers(workers, timeout=CONNECT_S if cluster is None else START_S)
            self.slots = max(1, sum(self._threads().values()))
        except Exception as exc:
            self.close()
            raise Unavailable(
                f"the Dask cluster {name} has no worker: {type(exc).__name__}: {exc}", hint="start workers for it"
            ) from exc
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

    def revive(self) -> None:
        # A worker that is not back fifteen seconds after its death is given up by a Dask cluster, for ever, and a busy
        # machine takes longer. What is there, or on its way, this leaves alone.
        if self._cluster is not None:
            self._cluster.scale(self._workers)

    def missing(self) -> str | None:
        try:
            threads = self._threads()
        except Exception as exc:
            return f"the scheduler of the Dask cluster {self.name} has not answered ({type(exc).__name__}: {exc})"
        if len(threads) < self._workers:
            self.revive()
        return None if threads else f"the Dask cluster {self.name} has had no worker"

    def close(self) -> None:
        while self._owned:
            # The error of one that does not end in time is no news to anybody: the work is done, or has failed.
            with suppress(TimeoutError):
                self._owned.pop(0).close(timeout=CLOSE_S)

    def _threads(self) -> dict[str, int]:
        """Each worker's; what `nthreads` asks, but not for ever."""
        found: dict[str, int] = self._client.sync(
            self._client.scheduler.ncores, workers=None, callback_timeout=ANSWER_S
        )
        return found


def open_dask(where: str) -> CallExecutor:
    """A cluster by its address (`tcp://...`); a number, or nothing, is a cluster of so many processes here."""
    dask = _package("distributed", extra="dask")
    if where and not where.isdigit():
        try:
            client = dask.Client(where, timeout=CONNECT_S, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as exc:
            raise Unavailable(
                f"there is no Dask scheduler at {where}: {exc}", hint="give its address, as tcp://host:8786"
            ) from exc
        return DaskCalls(client, name=f"dask:{where}", owned=[client])
    workers = int(where) if where else default_processes()
    # Without workers at first: it would wait for them without end.
    cluster = dask.LocalCluster(
        n_workers=0,
        threads_per_worker=1,
        processes=True,
        # The scheduler always opens an HTTP port, by default 8787; with any free one clusters can live side by side.
        dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False, "allowed_failures": 0},
    )
    try:
        cluster.scale(workers)
        client = dask.Client(cluster, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as exc:
        with suppress(TimeoutError):
            cluster.close(timeout=CLOSE_S)
        raise Unavailable(f"Dask does not start here: {type(exc).__name__}: {exc}", hint="try again") from exc
    return DaskCalls(client, name=f"dask:{workers}", owned=[client, cluster], cluster=cluster, workers=workers)


class RayCalls(CallExecutor):
    """Calls as Ray tasks. Retries are ours, so that they are counted alike everywhere."""

    apart = True

    def __init__(self, ray: Any, *, name: str, owned: bool, folder: str | None = None) -> None:
        """One that is owned is ended, and its folder removed."""
        self.name = name
        self._folder = folder
        self.slots = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._ray = ray
        self._owned = owned
        self._call = ray.remote(max_retries=0, num_cpus=1)(_call)
        self._references: dict[Future[Any], Any] = {}

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        reference = self._call.remote(function, *arguments)
        future: Future[Any] = reference.future()
        self._references[future] = reference
        future.add_done_callback(lambda done: self._references.pop(done, None))
        return future

    def lost(self, error: BaseException) -> bool:
        found = self._ray.exceptions
        died = (found.WorkerCrashedError, found.NodeDiedError, found.OutOfMemoryError, found.ObjectLostError)
        return isinstance(error, died)

    def missing(self) -> str | None:
        try:
            processors = self._ray.cluster_resources().get("CPU", 0)
        except Exception as exc:
            return f"{self.name} has not said what it has ({type(exc).__name__}: {exc})"
        # guard: ray.nodes
        return None if processors >= 1 else f"{self.name} has had no node with a processor"

    def abandon(self, future: Future[Any]) -> None:
        # Ray sets the future's result when the task ends, and trips over one that was cancelled.
        reference = self._references.get(future)
        if reference is not None:
            self._ray.cancel(reference)

    def close(self) -> None:
        if self._owned:
            self._owned = False
            with warnings.catch_warnings():
                # It forgets the processes that it has told to end, before they have.
                warnings.simplefilter("ignore", ResourceWarning)
                self._ray.shutdown()
                gc.collect()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def open_ray(where: str) -> CallExecutor:
    """The Ray that this program is connected to; otherwise one by its address (`auto`, `ray://...`), or, with a number
    or nothing, one of so many processes that is started here and ended again."""
    # Whoever starts a backfill did not ask for reports to others.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = _package("ray", extra="ray")
    if ray.is_initialized():
        return RayCalls(ray, name="ray", owned=False)
    folder = None
    options: dict[str, Any] = {"address": where, "log_to_driver": False, "configure_logging": False}
    try:
        if not where or where.isdigit():
            # Its logs, which it never deletes.
            folder = tempfile.mkdtemp(prefix="analemma-ray-")
            processes = int(where) if where else default_processes()
            options |= {"address": "local", "_temp_dir": folder, "num_cpus": processes, "include_dashboard": False}
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as exc:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise Unavailable(f"Ray does not start, or is not at {where or 'this machine'}: {exc}") from exc
    return RayCalls(ray, name=f"ray:{where}" if where else "ray", owned=True, folder=folder)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _package(name: str, *, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError as exc:
        hint = f"pip install 'analemma[{extra}]'"
        raise Unavailable(f"{extra} is not installed: {exc}", hint=hint, extra=extra) from exc
