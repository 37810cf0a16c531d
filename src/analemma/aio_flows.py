"""Runs for asyncio: the verbs of `app.flows` as coroutines, each a hop to a thread of `analemma.aio`. Steps run in that
thread, `async def` ones in an event loop of its own there; so does a function that is told of segments."""

from __future__ import annotations

from analemma.aio_pipeline import Hopping, hop
from analemma.flows.flows import Flows
from analemma.flows.runs import Run


class AsyncFlows(Hopping[Flows]):
    """One tenant's runs."""

    register = hop(Flows.register)
    run = hop(Flows.run)
    start = hop(Flows.start)
    resume = hop(Flows.resume)
    approve = hop(Flows.approve)
    cancel = hop(Flows.cancel)
    rerun = hop(Flows.rerun)
    get = hop(Flows.get)
    runs = hop(Flows.runs)
    recorded = hop(Flows.recorded)
    forget = hop(Flows.forget)
    work_on = hop(Flows.work_on)
    close = hop(Flows.close)

    async def read(self, run: Run) -> Run:
        """Read the state and the segments of a run, so that asking it for them does not wait for the store."""

        await self._threads.run(lambda: (run.state, run.segments))
        return run
