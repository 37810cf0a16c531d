"""`app.gc`: plan a collection, run it, and see what came of it.

A run is one pass of the protocol in docs/design/garbage-collection.md, for each tenant in turn, and then uploads. It
may stop anywhere, by itself or by dying; the next one begins anew."""

from __future__ import annotations

import threading
from collections.abc import Callable

from analemma.blocks.port import ObjectStore
from analemma.catalog.collecting import SECOND_US, Collecting, DatabaseClock, database_clock
from analemma.catalog.collecting_sessions import Sessions
from analemma.catalog.collecting_uploads import Audit, CollectingUploads, Failure
from analemma.catalog.engine import Engine
from analemma.catalog.port import TenantId
from analemma.clock import Clock
from analemma.errors import Conflict, Invalid, NotFound
from analemma.gc.parts import Parts, Progress, TenantPart, silent
from analemma.gc.planning import Planner, as_report
from analemma.gc.reports import GcPlan, GcReport, GcStatus
from analemma.gc.running import Run
from analemma.gc.uploads import UploadCollector
from analemma.settings import Settings
from analemma.state.object_ownership import ObjectOwnership

LONGEST_GRACE_S = 1e10
"""Some 300 years, of which the database's clock can still be told the beginning."""


class Collector:
    """Collects garbage in one store, all tenants. One run at a time, whichever process it is in."""

    def __init__(
        self,
        engine: Engine,
        *,
        store_id: str,
        objects: ObjectStore | None,
        ownership: ObjectOwnership | None = None,
        open_tenant: Callable[[str], TenantPart],
        holder: str,
        settings: Settings,
        clock: Clock,
        database_clock: DatabaseClock = database_clock,
    ) -> None:
        upload_rows = CollectingUploads(engine, clock=database_clock)
        self._parts = Parts(
            store_id=store_id,
            catalog=Collecting(engine, clock=database_clock),
            upload_rows=upload_rows,
            uploads=UploadCollector(
                upload_rows, objects, age_s=settings.gc_upload_age_s, delay_s=settings.gc_object_delay_s
            ),
            has_objects=objects is not None,
            ownership=ownership,
            open_tenant=open_tenant,
            settings=settings,
            clock=clock,
        )
        self._holder = holder
        self._ran_at: dict[str | None, float] = {}
        self._gate = threading.Lock()
        self._running: object | None = None
        """The token of whoever runs: the lease is this program's, and would not keep its other threads apart."""
        self.sessions = Sessions(engine, clock=database_clock)

    def plan(
        self,
        tenant: str | None = None,
        grace_s: float | None = None,
        *,
        expire: bool = True,
        progress: Progress | None = None,
    ) -> GcPlan:
        """What a run would do now, in one tenant or in all. Changes nothing, and may be made while others collect."""
        planner = Planner(self._parts, grace_s=self._grace(grace_s), expire=expire, progress=progress or silent)
        return planner.plan(self._tenants(tenant))

    def run(
        self,
        plan: GcPlan | None = None,
        dry_run: bool = False,
        grace_s: float | None = None,
        *,
        tenant: str | None = None,
        expire: bool = True,
        force: bool = False,
        progress: Progress | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> GcReport:
        """In one tenant or in all: let versions expire, mark, doom, and delete what was doomed before and is still
        needed by nothing; then the objects in which no block lies any more.

        With a plan, nothing is deleted that the plan does not name, and all of it is looked at again. `force` goes on
        where the numbers of a tenant look wrong. Conflict while another collects; Denied, before anything is changed,
        if the objects are another catalog's."""
        if plan is not None and plan.store_id != self._parts.store_id:
            raise Invalid("the plan is for another store", hint="make one for this store", store_id=plan.store_id)
        if dry_run:
            return as_report(plan or self.plan(tenant, grace_s, expire=expire, progress=progress))
        if plan is not None and grace_s is None:
            grace_s = plan.grace_s
        grace_s = self._grace(grace_s)
        tenants = self._tenants(tenant)
        if plan is not None:
            planned = {each.tenant for each in plan.tenants}
            tenants = [each for each in tenants if each[1] in planned]
        token = object()
        try:
            with self._gate:
                if self._running is not None:
                    raise Conflict(f"{self._holder} is collecting", hint="wait until it is done", holder=self._holder)
                self._running = token
            self.sessions.abandon(self._parts.settings.gc_session_idle_s)
            begun = self._parts.catalog.begin(
                self._holder, self._parts.settings.gc_lease_s, store_id=self._parts.store_id
            )
            self._ran_at[tenant] = self._parts.clock.monotonic()
            run = Run(self._parts, begun, plan, grace_s, expire, force, progress or silent, stop or (lambda: False))
            return run.go(tenants)
        finally:
            if self._running is token:
                self._running = None

    def status(self, runs: int = 10) -> GcStatus:
        """Who collects now, what the last runs did, and what failed."""
        lease = self._parts.catalog.lease()
        waiting, dead = self._parts.upload_rows.failure_counts()
        return GcStatus(
            newest=lease.number,
            holder=lease.holder,
            lease_left_s=max(0, lease.until_us - lease.now_us) / SECOND_US if lease.holder else 0.0,
            runs=tuple(self._parts.catalog.runs(runs)),
            sessions=self.sessions.count(),
            waiting_failures=waiting,
            dead_failures=dead,
        )

    def failures(self, limit: int = 100) -> list[Failure]:
        """Uploads that could not be collected: those that will be tried again, and those that will not."""
        return self._parts.upload_rows.failures(limit)

    def retry(self, failure: int | None = None) -> int:
        """Have a dead failure tried again, or all; how many."""
        count = self._parts.upload_rows.retry(failure)
        if failure is not None and not count:
            raise NotFound(f"there is no dead failure {failure}", hint="`analemma gc failures` lists them")
        return count

    def work_failures(self) -> int:
        """Try what failed and may be tried again now; how many are done with."""
        if self._parts.ownership is not None and self._parts.upload_rows.failure_counts()[0]:
            self._parts.ownership.check()
        return self._parts.uploads.work_failures()

    def audit(self, limit: int = 100) -> list[Audit]:
        """The objects that were deleted, newest first."""
        return self._parts.upload_rows.audit(limit)

    def is_due(self, interval_s: float, tenant: str | None = None) -> bool:
        """Whether no run has come to a tenant for so long, or to any one of all tenants."""
        runs = self._parts.catalog.runs(1)
        since_us = self._parts.upload_rows.now_us() - int(interval_s * SECOND_US)
        if not runs or runs[0].started_at_us <= since_us:
            return True
        ran_at = self._ran_at.get(tenant)
        if ran_at is not None and self._parts.clock.monotonic() - ran_at < interval_s:
            # What stopped this run in a tenant, so that it does not count as a visit, need not be met every minute.
            return False
        number = None if tenant is None else self._tenants(tenant)[0][0]
        return self._parts.catalog.oldest_visit(number) <= since_us

    def _grace(self, grace_s: float | None) -> float:
        chosen = self._parts.settings.gc_grace_s if grace_s is None else grace_s
        if not 0 <= chosen <= LONGEST_GRACE_S:
            raise Invalid(f"a grace period of {chosen} s is none", hint="0 is the shortest")
        return chosen

    def tenants(self) -> list[str]:
        """The names of all tenants, oldest first."""
        return [name for _, name in self._tenants(None)]

    def _tenants(self, name: str | None) -> list[tuple[TenantId, str]]:
        tenants = self._parts.catalog.tenants()
        if name is None:
            return tenants
        chosen = [each for each in tenants if each[1] == name]
        if not chosen:
            raise NotFound(f"there is no tenant {name!r}", hint="saving something begins a tenant", tenant=name)
        return chosen
