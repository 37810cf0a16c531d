"""Runs for asyncio: the verbs of `app.flows` as coroutines, each a hop to a thread of `analemma.aio`. Steps run in that
thread, `async def` ones in an event loop of its own there; so does a function that is told of segments."""

from __future__ import annotations

from analemma.aio_pipeline import Hopping, hop
from analemma.flows.flows import Flows
from analemma.flows.queueing import Queues
from analemma.flows.runs import Run
from analemma.flows.scheduling import Schedules


class AsyncQueues(Hopping[Queues]):
    """One tenant's queues."""

    set = hop(Queues.set)
    list = hop(Queues.list)
    get = hop(Queues.get)
    remove = hop(Queues.remove)


class AsyncSchedules(Hopping[Schedules]):
    """One tenant's schedules."""

    add = hop(Schedules.add)
    get = hop(Schedules.get)
    list = hop(Schedules.list)
    pause = hop(Schedules.pause)
    resume = hop(Schedules.resume)
    remove = hop(Schedules.remove)
    run_now = hop(Schedules.run_now)
    tend = hop(Schedules.tend)
    tend_one = hop(Schedules.tend_one)


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

    @property
    def queues(self) -> AsyncQueues:
        """The queues that runs may wait in."""
        return AsyncQueues(self._target.queues, self._threads)

    @property
    def schedules(self) -> AsyncSchedules:
        """What is run when."""
        return AsyncSchedules(self._target.schedules, self._threads)

    async def read(self, run: Run) -> Run:
        """Read the state and the segments of a run, so that asking it for them does not wait for the store."""

        await self._threads.run(lambda: (run.state, run.segments))
        return run
