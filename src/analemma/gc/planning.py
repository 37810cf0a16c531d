"""What a run would do now, found out without changing anything."""

from __future__ import annotations

from typing import Any

from analemma.canon.identity import ID_BYTES, BlockId
from analemma.catalog.port import TenantId
from analemma.errors import Corrupt, Denied
from analemma.gc.parts import Expiring, Parts, Progress
from analemma.gc.reports import SAMPLE, GcPlan, GcReport, TenantPlan, TenantReport
from analemma.gc.roots import ROOTS
from analemma.gc.surveying import batches
from analemma.gc.sweeping import BATCH, finish, look

PLAN_TRIES = 3


class Planner:
    """Makes one plan."""

    def __init__(self, parts: Parts, *, grace_s: float, expire: bool, progress: Progress) -> None:
        self._parts = parts
        self._grace_s = grace_s
        self._expire = expire
        self._progress = progress
        self._claims = _Claims()

    def plan(self, tenants: list[tuple[TenantId, str]]) -> GcPlan:
        """What a run would do in these tenants."""
        parts, claims = self._parts, self._claims
        plans = []
        for number, name in tenants:
            plans.append(self._plan_tenant(number, name))
            if parts.has_objects and plans[-1].problem is None:
                for page in parts.uploads.unreferenced(number):
                    claims.add([(each.id, each.size) for each in page])
        if parts.has_objects:
            chosen = {number for number, _ in tenants}
            for page in parts.uploads.abandoned():
                claims.add([(each.id, each.size) for each in page if each.tenant in chosen], abandoned=True)
        return GcPlan(
            store_id=parts.store_id,
            made_at_us=parts.upload_rows.now_us(),
            grace_s=self._grace_s,
            tenants=tuple(plans),
            uploads=len(claims.sizes),
            upload_bytes=sum(claims.sizes.values()),
            abandoned=claims.abandoned,
            claims=b"".join(sorted(claims.sizes)),
            object_delay_s=parts.settings.gc_object_delay_s,
            refused=self._refused(),
        )

    def _refused(self) -> str | None:
        owner = None if self._parts.ownership is None else self._parts.ownership.owner()
        return owner.detail if owner is not None and owner.state == "other" else None

    def _plan_tenant(self, tenant: TenantId, name: str) -> TenantPlan:
        catalog = self._parts.catalog
        part = self._parts.open_tenant(name)
        expiring = _expiring(part.kernel, self._parts.upload_rows.now_us()) if self._expire else set()
        for attempt in range(PLAN_TRIES):
            number = catalog.lease().number + 1
            seen = catalog.look(tenant, ROOTS)
            try:
                looking = look(
                    catalog,
                    tenant,
                    seen,
                    part.blocks.read_uncached,
                    number=number,
                    grace_s=self._grace_s,
                    settings=self._parts.settings,
                    expiring=expiring,
                )
                finding = finish(looking, self._progress)
                break
            except Corrupt as exc:
                # Without the lease, others may collect what is below a version that expired since we looked.
                if attempt == PLAN_TRIES - 1 or not exc.facts.get("missing"):
                    return TenantPlan(name, 0, 0, len(expiring), 0, 0, 0, 0, (), str(exc), exc.kind)
        found = finding.survey
        if finding.problem is not None:
            counts = (found.total, found.referenced, len(expiring))
            return TenantPlan(name, *counts, 0, 0, 0, 0, (), finding.problem, "limit")
        freed = 0
        emptied: dict[bytes, int] = {}
        for batch in batches(found.delete, BATCH):
            for upload, count, size in catalog.deletion_facts(tenant, batch):
                freed += size
                if upload is not None:
                    emptied[upload] = emptied.get(upload, 0) + count
        for upload, count in emptied.items():
            if self._parts.has_objects and catalog.blocks_in_upload(tenant, upload) == count:
                self._claims.add([(upload, self._parts.upload_rows.size(tenant, upload))])
        return TenantPlan(
            tenant=name,
            total=found.total,
            referenced=found.referenced,
            to_expire=len(expiring),
            to_doom=len(found.doom) // ID_BYTES,
            to_delete=len(found.delete) // ID_BYTES,
            delete_bytes=freed,
            waiting=found.waiting,
            sample=tuple(block.hex() for block in next(batches(found.delete, SAMPLE), [])),
            deletions=bytes(found.delete),
        )


class _Claims:
    """Uploads that a plan would claim, each once."""

    def __init__(self) -> None:
        self.sizes: dict[bytes, int] = {}
        self.abandoned = 0

    def add(self, uploads: list[tuple[Any, int]], *, abandoned: bool = False) -> None:
        self.sizes.update(uploads)
        self.abandoned += len(uploads) if abandoned else 0


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


def as_report(plan: GcPlan) -> GcReport:
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
