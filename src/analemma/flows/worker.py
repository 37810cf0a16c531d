"""Goes on with runs that somebody has to look at: that nobody has begun, whose worker died, whose time has come; and
begins those of schedules."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from analemma.catalog.leases import database_clock
from analemma.catalog.port import TenantId
from analemma.catalog.runs.queues import claim_next, due_schedules
from analemma.catalog.runs.runs import RunRow
from analemma.context import StoreContext
from analemma.errors import AnalemmaError, Conflict, Internal, Timeout, Unavailable
from analemma.flows.flows import Flows

log = logging.getLogger("analemma.flows")

LONGEST_WAIT_S: Final = 5.0
"""A node that is to be tried again later than this is given back until then."""
TICK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Worked:
    """What a worker did."""

    runs: int = 0
    """How often it went on with one."""
    failed: int = 0
    """How often that ended with an error of its own, not of the run."""
    begun: int = 0
    """How many runs of schedules it began."""


class RunWorker:
    """One worker; any number may work on one store, in threads, processes and machines. A run is with one of them at a
    time, and what one that lost its run still does is refused."""

    def __init__(
        self,
        context: StoreContext,
        flows_of: Callable[[str], Flows],
        *,
        tenant: TenantId | None,
        concurrency: int | None,
    ) -> None:
        """`flows_of` gives the flows of a tenant; `tenant` None is all of them."""
        self._engine = context.engine
        self._flows_of = flows_of
        self._holder = context.new_holder()
        self._settings = context.settings
        self._tenant = tenant
        self._concurrency = self._settings.run_concurrency if concurrency is None else concurrency
        self._stopping = False
        self._names: dict[TenantId, str] = {}
        self._lock = threading.Lock()
        self._gate = threading.Lock()
        self._working: object | None = None
        """Whose call is at work: known by its token, so that an interrupt cannot part the taking from the knowing."""
        self._worked = Worked()
        self._busy = 0

    @property
    def worked(self) -> Worked:
        """What it did so far."""
        return self._worked

    def run(self) -> Worked:
        """Work until `stop()`. A database that is away is waited for."""
        return self._work(drain=False)

    def drain(self) -> Worked:
        """Go on with everything that is due now, and return."""
        return self._work(drain=True)

    def stop(self) -> None:
        """End soon: segments that are being run are finished, and the rest is left to others. May be called from a
        signal handler."""
        self._stopping = True

    def _work(self, *, drain: bool) -> Worked:
        token = object()
        threads: list[threading.Thread] = []
        try:
            with self._gate:
                if self._working is not None:
                    raise Conflict("this worker is running already", hint="make another one")
                self._working = token
            self._worked = Worked()
            if drain:
                self._tend()
            threads = [
                threading.Thread(target=self._thread, args=(drain,), name=f"analemma-runs-{number}", daemon=True)
                for number in range(self._concurrency)
            ]
            if not drain:
                threads.append(threading.Thread(target=self._schedules, name="analemma-schedules", daemon=True))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return self._worked
        finally:
            if self._working is token:
                # Interrupted, too: whoever is at a segment ends it, and lets go of its run.
                self._stopping = True
                for thread in threads:
                    if thread.ident is not None:
                        thread.join()
                self._stopping = False
                self._working = None

    def _thread(self, drain: bool) -> None:
        while not self._stopping:
            try:
                found = self._one()
            except AnalemmaError as exc:
                log.warning("runs are out of reach: %s", exc)
                found = False
                self._note(failed=1)
                if drain:
                    return
            except BaseException:
                # Whatever it is: a worker whose threads die one by one looks alive, and is not.
                log.exception("a run could not be gone on with")
                found = False
                self._note(failed=1)
            if not found:
                if drain and self._busy == 0:
                    return
                self._pause(TICK_S if drain else self._settings.run_poll_s)

    def _schedules(self) -> None:
        """Begin what schedules say, until asked to stop."""
        while not self._stopping:
            self._tend()
            self._pause(self._settings.run_poll_s)

    def _tend(self) -> None:
        try:
            now = database_clock(self._engine)
            for row in due_schedules(self._engine, now_us=now, tenant=self._tenant):
                try:
                    self._note(begun=self._flows_of(self._name(row.tenant)).schedules.tend_one(row, now))
                except Unavailable:
                    raise
                except Exception:
                    # Of this one, or of its tenant: the others have nothing to do with it.
                    log.exception("the schedule %s could not be looked after", row.name)
                    self._note(failed=1)
        except AnalemmaError as exc:
            log.warning("schedules are out of reach: %s", exc)
            self._note(failed=1)
        except BaseException:
            # As for runs: whatever it is, the next look may do better.
            log.exception("schedules could not be looked after")
            self._note(failed=1)

    def _one(self) -> bool:
        """Take one run and go on with it; whether there was one."""
        with self._lock:
            # Counted before it is claimed, so that a drain does not end between the two.
            self._busy += 1
        try:
            claimed = claim_next(
                self._engine, holder=self._holder, lease_s=self._settings.run_lease_s, tenant=self._tenant
            )
            for tenant, row in claimed:
                self._go_on(tenant, row)
            return bool(claimed)
        finally:
            with self._lock:
                self._busy -= 1

    def _go_on(self, tenant: TenantId, row: RunRow) -> None:
        try:
            flows = self._flows_of(self._name(tenant))
            flows.work_on(row, longest_wait_s=LONGEST_WAIT_S, stop=lambda: self._stopping)
            self._note(runs=1)
        except Unavailable:
            raise
        except Timeout as exc:
            # Of the store: the run is let go for a while, and others need not wait for what it waits for.
            log.warning("run %s waits for the store: %s", row.execution, exc)
            self._note(failed=1)
        except BaseException:
            # A defect of ours: the lease runs out, and somebody tries again, later and not at once.
            log.exception("run %s could not be gone on with", row.execution)
            self._note(failed=1)

    def _name(self, tenant: TenantId) -> str:
        if tenant not in self._names:
            self._names = {TenantId(row[0]): row[1] for row in self._engine.all("tenant_names")}
        if tenant not in self._names:
            raise Internal(f"there is a run of tenant {tenant}, which there is not")
        return self._names[tenant]

    def _note(self, *, runs: int = 0, failed: int = 0, begun: int = 0) -> None:
        with self._lock:
            worked = self._worked
            self._worked = Worked(worked.runs + runs, worked.failed + failed, worked.begun + begun)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        # Not an event: a signal handler that set it could meet its lock in the hands of what it interrupted.
        while not self._stopping and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, TICK_S))
