"""The background runner: does each of its jobs when it is due, until it is asked to stop."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from analemma.clock import Clock
from analemma.errors import AnalemmaError, Conflict
from analemma.gc.collector import Collector
from analemma.gc.packing import Packing

Stop = Callable[[], bool]
Tell = Callable[[str, str], None]
"""Hears the name of a job and what came of it."""

LONGEST_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """Something to be done again and again."""

    name: str
    every_s: float
    """How often it is asked whether there is anything to do."""
    work: Callable[[Stop], str | None]
    """Do it, unless there is nothing to do; what to tell, if anything. To end early when asked to stop."""


class Worker:
    """Runs jobs one after the other, in one thread. A job that fails is tried again when its turn comes."""

    def __init__(self, jobs: Sequence[Job], *, clock: Clock, tell: Tell) -> None:
        self._jobs = jobs
        self._clock = clock
        self._tell = tell
        self._stopping = False
        # Not an event: a signal handler that set it could meet its lock in the hands of what it interrupted.
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()

    def stop(self) -> None:
        """Ask it to stop: what it is at ends at the next safe place. May be called from a signal handler."""
        self._stopping = True
        self._bell.put(None)

    def run(self, *, once: bool = False) -> int:
        """Work until asked to stop; with `once`, do each job and return. How many failed."""
        failed = 0
        due = {job.name: self._clock.monotonic() for job in self._jobs}
        while not self._stopping:
            for job in self._jobs:
                if self._stopping or self._clock.monotonic() < due[job.name]:
                    continue
                failed += self._do(job)
                due[job.name] = self._clock.monotonic() + job.every_s
            if once:
                break
            with contextlib.suppress(queue.Empty):
                self._bell.get(timeout=max(0.0, min(LONGEST_WAIT_S, min(due.values()) - self._clock.monotonic())))
        return failed

    def _do(self, job: Job) -> int:
        try:
            said = job.work(lambda: self._stopping)
        except AnalemmaError as exc:
            self._tell(job.name, f"failed: {exc}")
            return 1
        if said is not None:
            self._tell(job.name, said)
        return 0


def collection_jobs(
    collector: Collector, *, interval_s: float, tenant: str | None = None, always: bool = False
) -> list[Job]:
    """Collecting garbage, in one tenant or in all, when the newest run there, whoever's it was, is long enough ago; and
    what failed meanwhile. With `always`, whether or not it is due."""

    def collect(stop: Stop) -> str | None:
        if not always and not collector.is_due(interval_s, tenant):
            return None
        try:
            report = collector.run(tenant=tenant, stop=stop)
        except Conflict as exc:
            return f"left to another: {exc}"
        return report.describe()

    def retry(stop: Stop) -> str | None:
        settled = collector.work_failures()
        return f"{settled} uploads collected that had failed" if settled else None

    poll_s = min(LONGEST_WAIT_S, interval_s)
    return [Job("gc", poll_s, collect), Job("gc failures", poll_s, retry)]


def packing_jobs(packings: Callable[[], Iterable[tuple[str, Packing]]], *, interval_s: float) -> list[Job]:
    """Moving cold blocks into packs, and writing packs anew that are mostly dead, tenant by tenant."""

    def pack(stop: Stop) -> str | None:
        said: list[str] = []
        for tenant, packing in packings():
            for verb in (packing.pack, packing.repack):
                if stop():
                    return "; ".join(said) or None
                report = verb()
                if report.blocks or report.problems:
                    problems = f", {len(report.problems)} problems" if report.problems else ""
                    said.append(f"{report.blocks} blocks of {tenant} into {report.packs} packs{problems}")
        return "; ".join(said) or None

    return [Job("pack", interval_s, pack)]


def housekeeping_job(
    housekeep: Callable[[Stop], int], *, interval_s: float, name: str = "outbox", what: str = "events"
) -> Job:
    """Deleting what was over long ago: events that were delivered, unless told otherwise."""

    def work(stop: Stop) -> str | None:
        deleted = housekeep(stop)
        return f"{deleted} old {what} deleted" if deleted else None

    return Job(name, interval_s, work)
