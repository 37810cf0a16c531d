"""What a worker does again and again, each job when it is due, until it is asked to stop: apply checkpoints that a
process left behind, collect and pack, finish what was interrupted on workspaces, delete what was over long ago."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analemma.catalog.port import TenantId
from analemma.clock import Clock
from analemma.errors import AnalemmaError, Conflict, Unavailable

if TYPE_CHECKING:
    from analemma.store.store import App

Stop = Callable[[], bool]
Tell = Callable[[str, str], None]
"""Hears the name of a job and what came of it."""

LONGEST_WAIT_S = 60.0
APPLY_EVERY_S = 30.0
LONGEST_APPLY_S = 5.0
"""A worker that is asked to stop waits for one tenant's pending checkpoints at most so long; what is left stays."""


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


def jobs_of(app: App, tenant: str | None, *, always: bool) -> list[Job]:
    """Everything that is to be done for a store, in one tenant or in all. With `always`, whether or not it is due."""
    jobs = [checkpoint_job(app, tenant), *collection_jobs(app, tenant, always=always)]
    if app.objects is not None:
        jobs += [packing_job(app, tenant), *archive_jobs(app, tenant, always=always)]
    kept: dict[str, Callable[..., int]]
    kept = {"fanouts": app.fanouts.housekeep, "deploys": app.deploys.housekeep, "outbox": app.outbox.housekeep}
    return [*jobs, *(housekeeping_job(app, name, housekeep) for name, housekeep in kept.items())]


def checkpoint_job(app: App, tenant: str | None) -> Job:
    """Applying what is pending, whoever made it. Where its process lives, that is done at once and nothing is left."""

    def apply(stop: Stop) -> str | None:
        settled = 0
        in_the_way: AnalemmaError | None = None
        for name in pending_checkpoints(app, tenant):
            if stop():
                break
            try:
                settled += app.tenant(name).checkpoints.drain(timeout_s=LONGEST_APPLY_S)
            except AnalemmaError as exc:
                # Tenants share nothing: what is wrong in one keeps no other from being served.
                in_the_way = exc
        if in_the_way is not None:
            raise in_the_way
        # Applied, or failed because they do not fit: their tickets say which.
        return f"{settled} settled that were pending" if settled else None

    return Job("checkpoints", APPLY_EVERY_S, apply)


def pending_checkpoints(app: App, tenant: str | None = None) -> dict[str, int]:
    """How many checkpoints are pending in each tenant that has any, or in one."""
    tenants = [(TenantId(row[0]), str(row[1])) for row in app.catalog.engine.all("tenant_names")]
    counts = {name: app.catalog.pending_count(number) for number, name in tenants if tenant in (None, name)}
    return {name: count for name, count in counts.items() if count}


def collection_jobs(app: App, tenant: str | None, *, always: bool) -> list[Job]:
    """Collecting garbage when the newest run there, whoever's it was, is long enough ago; and what failed meanwhile."""
    interval_s = app.settings.gc_interval_s

    def collect(stop: Stop) -> str | None:
        if not always and not app.gc.is_due(interval_s, tenant):
            return None
        try:
            report = app.gc.run(tenant=tenant, stop=stop)
        except Conflict as exc:
            return f"left to another: {exc}"
        return report.describe()

    def retry(stop: Stop) -> str | None:
        settled = app.gc.work_failures()
        return f"{settled} uploads collected that had failed" if settled else None

    poll_s = min(LONGEST_WAIT_S, interval_s)
    return [Job("gc", poll_s, collect), Job("gc failures", poll_s, retry)]


def packing_job(app: App, tenant: str | None) -> Job:
    """Moving cold blocks into packs, and writing packs anew that are mostly dead, tenant by tenant."""

    def pack(stop: Stop) -> str | None:
        said: list[str] = []
        for name in _tenants(app, tenant):
            packing = app.tenant(name).packing
            for verb in (packing.pack, packing.repack):
                if stop():
                    return "; ".join(said) or None
                report = verb()
                if report.blocks or report.problems:
                    problems = f", {len(report.problems)} problems" if report.problems else ""
                    said.append(f"{report.blocks} blocks of {name} into {report.packs} packs{problems}")
        return "; ".join(said) or None

    return Job("pack", app.settings.gc_interval_s, pack)


def archive_jobs(app: App, tenant: str | None, *, always: bool) -> list[Job]:
    """Finishing operations of volumes that this machine has, every minute or more often; and collecting archives in
    each tenant where nobody has for the interval."""
    interval_s = app.settings.gc_interval_s

    def reconcile(stop: Stop) -> str | None:
        said = []
        for name in _tenants(app, tenant):
            if stop():
                break
            for each in app.tenant(name).archives.reconcile(only_here=True):
                end = f"failed: {each.error}" if each.error else each.status or "purged"
                said.append(f"{each.operation} of {name}/{each.workspace} was interrupted: {end}")
        return "; ".join(said) or None

    def collect(stop: Stop) -> str | None:
        said = []
        failed: AnalemmaError | None = None
        for name in _tenants(app, tenant):
            archives = app.tenant(name).archives
            if stop():
                break
            if not always and not archives.gc_is_due(interval_s):
                continue
            try:
                report = archives.gc_run(stop=stop)
            except Conflict as exc:
                said.append(f"tenant {name}: left to another: {exc}")
            except AnalemmaError as exc:
                # Tenants share nothing: what is wrong in one keeps no other from being collected.
                failed = exc
                said.append(f"tenant {name}: failed: {exc}")
            else:
                if report.counts.units or report.counts.missing or not report.ok:
                    said.append(report.describe())
        if failed is not None:
            raise Unavailable("\n".join(said)) from failed
        return "\n".join(said) or None

    poll_s = min(LONGEST_WAIT_S, interval_s)
    return [Job("workspaces", poll_s, reconcile), Job("archives", poll_s, collect)]


def housekeeping_job(app: App, name: str, housekeep: Callable[..., int]) -> Job:
    """Deleting what was over long ago: events that were delivered, unless told otherwise."""
    what = "events" if name == "outbox" else name

    def work(stop: Stop) -> str | None:
        deleted = housekeep(stop=stop)
        return f"{deleted} old {what} deleted" if deleted else None

    return Job(name, app.settings.gc_interval_s, work)


def _tenants(app: App, tenant: str | None) -> list[str]:
    return app.gc.tenants() if tenant is None else [tenant]
