"""procrastinate, a queue of tasks on PostgreSQL, with as many concurrent jobs as help it."""

from __future__ import annotations

import asyncio
import logging
import time

PACKAGES = ("procrastinate",)
NAME = "procrastinate"
CONCURRENCY = 30
"""Tried: 1 (its default), 10 and 30; the last two are alike."""


class ProcrastinateJobs:
    """Tasks that do nothing, in a database of their own."""

    def __init__(self, url: str) -> None:
        self._url = url
        # It tells of every job.
        logging.getLogger("procrastinate").setLevel(logging.WARNING)
        asyncio.run(self._install())

    def drain(self, payloads: list[bytes]) -> float:
        """Defer tasks, then run them all; the seconds of the second."""
        return asyncio.run(self._drain(payloads))

    async def _install(self) -> None:
        import procrastinate

        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=self._url))
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def _drain(self, payloads: list[bytes]) -> float:
        import procrastinate

        connector = procrastinate.PsycopgConnector(conninfo=self._url, min_size=2, max_size=CONCURRENCY + 2)
        app = procrastinate.App(connector=connector)
        done = 0

        async def count(payload: str) -> None:
            nonlocal done
            done += 1

        nothing = app.task(name="nothing")(count)
        async with app.open_async():
            for start in range(0, len(payloads), 1000):
                batch = [{"payload": payload.decode()} for payload in payloads[start : start + 1000]]
                await nothing.batch_defer_async(*batch)
            started = time.perf_counter()
            await app.run_worker_async(wait=False, concurrency=CONCURRENCY, install_signal_handlers=False)
            took = time.perf_counter() - started
        assert done == len(payloads), f"procrastinate ran {done} of {len(payloads)} tasks"
        return took
