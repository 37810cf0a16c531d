"""Ray: calls as tasks on a cluster that is there, or on one that is started here for the purpose."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from typing import Any

from analemma.errors import Unavailable
from analemma.executors.port import CallExecutor, missing_package


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
    try:
        ray: Any = import_module("ray")
    except ImportError as exc:
        raise missing_package("ray", exc) from exc
    if ray.is_initialized():
        return RayCalls(ray, name="ray", owned=False)
    folder = None
    try:
        if where and not where.isdigit():
            ray.init(address=where, log_to_driver=False, configure_logging=False)
        else:
            from analemma.executors.pools import default_processes

            processes = int(where) if where else default_processes()
            # Its logs, which it never deletes.
            folder = tempfile.mkdtemp(prefix="analemma-ray-")
            ray.init(
                address="local",
                _temp_dir=folder,
                num_cpus=processes,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
            )
    except (ConnectionError, RuntimeError, ValueError, OSError) as exc:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise Unavailable(f"Ray does not start, or is not at {where or 'this machine'}: {exc}") from exc
    return RayCalls(ray, name=f"ray:{where}" if where else "ray", owned=True, folder=folder)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)
