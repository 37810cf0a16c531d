"""pgqueuer, a queue of jobs on PostgreSQL, with its fastest driver and its drain mode."""

from __future__ import annotations

import asyncio
import time
from typing import Any

PACKAGES = ("pgqueuer", "asyncpg")
NAME = "pgqueuer"
BATCH = 1000
"""Tried: 10 (its default), 100, 500 and 1,000; the last is the fastest."""
ENTRYPOINT = "nothing"


class PgqueuerJobs:
    """Jobs that do nothing, in a database of their own."""

    def __init__(self, url: str) -> None:
        self._url = url
        asyncio.run(self._install())

    def drain(self, payloads: list[bytes]) -> float:
        """Put jobs there, then run them all; the seconds of the second."""
        return asyncio.run(self._drain(payloads))

    async def _install(self) -> None:
        import asyncpg
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.queries import Queries

        connection = await asyncpg.connect(self._url)
        try:
            await Queries(AsyncpgDriver(connection)).install()
        finally:
            await connection.close()

    async def _drain(self, payloads: list[bytes]) -> float:
        import asyncpg
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.qm import QueueManager
        from pgqueuer.queries import Queries
        from pgqueuer.types import QueueExecutionMode

        connection = await asyncpg.connect(self._url)
        manager = QueueManager(Queries(AsyncpgDriver(connection)))
        done = 0

        async def nothing(job: Any) -> None:
            nonlocal done
            done += 1

        manager.entrypoint(ENTRYPOINT)(nothing)
        for start in range(0, len(payloads), 1000):
            batch: list[bytes | None] = list(payloads[start : start + 1000])
            await manager.queries.enqueue([ENTRYPOINT] * len(batch), batch, [0] * len(batch))
        started = time.perf_counter()
        await manager.run(batch_size=BATCH, mode=QueueExecutionMode.drain)
        took = time.perf_counter() - started
        assert done == len(payloads), f"pgqueuer ran {done} of {len(payloads)} jobs"
        return took
