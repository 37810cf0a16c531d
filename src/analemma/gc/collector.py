"""`app.gc`: plan a collection, run it, and see what came of it.

A run is one pass of the protocol in docs/design/garbage-collection.md, for each tenant in turn, and then uploads. It
may stop anywhere, by itself or by dying; the next one begins anew."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from analemma.blocks.port import ObjectStore
from analemma.canon.identity import ID_BYTES, BlockId
from analemma.catalog.collecting.marks import SECOND_US, Collecting, DatabaseClock, database_clock
from analemma.catalog.collecting.sessions import Sessions
from analemma.catalog.collecting.uploads import Audit, CollectingUploads, Failure
from analemma.catalog.engine.db import Engine
from analemma.catalog.port import TenantId
from analemma.clock import Clock
from analemma.errors import Conflict, Corrupt, Denied, Invalid, NotFound
from analemma.gc.mark import batches
from analemma.gc.passes import BATCH, Expiring, Parts, Progress, Run, TenantPart, TenantPass
from analemma.gc.reports import SAMPLE, GcPlan, GcReport, GcStatus, TenantPlan, TenantReport
from analemma.gc.uploads import UploadCollector
from analemma.settings import Settings
from analemma.state.object_ownership import ObjectOwnership

PLAN_TRIES = 3
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
        return self._plan(self._tenants(tenant), self._grace(grace_s), expire, progress or (lambda stage, count: None))

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
            return _as_report(plan or self.plan(tenant, grace_s, expire=expire, progress=progress))
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
            run = Run(
                self._parts,
                begun,
                plan,
                grace_s=grace_s,
                expire=expire,
                force=force,
                progress=progress,
                stop=stop,
            )
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

    def _plan(self, tenants: list[tuple[TenantId, str]], grace_s: float, expire: bool, progress: Progress) -> GcPlan:
        parts = self._parts
        owner = None if parts.ownership is None else parts.ownership.owner()
        claims: dict[bytes, int] = {}
        """The size of each upload that would be claimed."""
        abandoned = 0
        plans = []
        for number, name in tenants:
            plans.append(self._plan_tenant(number, name, grace_s, expire, progress, claims))
            if parts.has_objects and plans[-1].problem is None:
                for page in parts.uploads.unreferenced(number):
                    claims.update((each.id, each.size) for each in page)
        if parts.has_objects:
            chosen = {number for number, _ in tenants}
            for page in parts.uploads.abandoned():
                here = [(each.id, each.size) for each in page if each.tenant in chosen]
                claims.update(here)
                abandoned += len(here)
        return GcPlan(
            store_id=parts.store_id,
            made_at_us=parts.upload_rows.now_us(),
            grace_s=grace_s,
            tenants=tuple(plans),
            uploads=len(claims),
            upload_bytes=sum(claims.values()),
            abandoned=abandoned,
            claims=b"".join(sorted(claims)),
            object_delay_s=parts.settings.gc_object_delay_s,
            refused=owner.detail if owner is not None and owner.state == "other" else None,
        )

    def _plan_tenant(
        self,
        tenant: TenantId,
        name: str,
        grace_s: float,
        expire: bool,
        progress: Progress,
        claims: dict[bytes, int],
    ) -> TenantPlan:
        parts, catalog = self._parts, self._parts.catalog
        now_us = parts.upload_rows.now_us()
        expiring = _expiring(parts.open_tenant(name).kernel, now_us) if expire else set()
        for attempt in range(PLAN_TRIES):
            looked = TenantPass(parts, tenant, name, begun=None, grace_s=grace_s, expiring=expiring)
            try:
                for stage, count in looked.steps():
                    progress(stage, count)
                break
            except Corrupt as exc:
                # Without the lease, others may collect what is below a version that expired since we looked.
                if attempt == PLAN_TRIES - 1 or not exc.facts.get("missing"):
                    return TenantPlan(name, to_expire=len(expiring), problem=str(exc), kind=exc.kind)
        found = looked.survey
        plan = TenantPlan(name, total=found.total, referenced=found.referenced, to_expire=len(expiring))
        if looked.problem is not None:
            return replace(plan, problem=looked.problem, kind="limit")
        freed = 0
        emptied: dict[bytes, int] = {}
        for batch in batches(found.delete, BATCH):
            for upload, count, size in catalog.deletion_facts(tenant, batch):
                freed += size
                if upload is not None:
                    emptied[upload] = emptied.get(upload, 0) + count
        for upload, count in emptied.items():
            if parts.has_objects and catalog.blocks_in_upload(tenant, upload) == count:
                claims[upload] = parts.upload_rows.size(tenant, upload)
        return replace(
            plan,
            to_doom=len(found.doom) // ID_BYTES,
            to_delete=len(found.delete) // ID_BYTES,
            delete_bytes=freed,
            waiting=found.waiting,
            sample=tuple(block.hex() for block in next(batches(found.delete, SAMPLE), [])),
            deletions=bytes(found.delete),
        )


def _expiring(kernel: Expiring, now_us: int) -> set[BlockId]:
    """The versions that would expire now."""
    found: set[BlockId] = set()
    for each in kernel.expire_all(dry_run=True, now_us=now_us):
        if each.problem is None:
            plan = kernel.expire(
                workflow_id=each.workflow_id, owner_id=each.owner_id, branch=each.branch, dry_run=True, now_us=now_us
            )
            found.update(BlockId(bytes.fromhex(version.manifest_id)) for version in plan.expired)
    return found


def _as_report(plan: GcPlan) -> GcReport:
    """The report of a run that would do just this."""
    tenants = tuple(
        TenantReport(
            tenant=each.tenant,
            expired=each.to_expire,
            total=each.total,
            referenced=each.referenced,
            doomed=each.to_doom,
            deleted=each.to_delete,
            bytes=each.delete_bytes,
            problem=each.problem,
            kind=each.kind,
        )
        for each in plan.tenants
    )
    kinds = tuple(each.kind for each in plan.tenants if each.problem and each.kind)
    if plan.refused is not None:
        kinds = (Denied.kind, *kinds)
    return GcReport(0, tenants, plan.uploads, plan.uploads, plan.upload_bytes, 0, plan.problems, kinds)
