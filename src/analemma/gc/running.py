"""One pass, from lease to report."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from analemma.canon.identity import ID_BYTES
from analemma.catalog.collecting import SECOND_US, LeaseLost, Pass
from analemma.catalog.port import TenantId
from analemma.errors import AnalemmaError, Conflict, Corrupt, Invalid
from analemma.failpoints import declare, hit
from analemma.gc.parts import Parts, Progress
from analemma.gc.reports import UPLOAD_BYTES, GcPlan, GcReport, TenantReport, pieces
from analemma.gc.sweeping import Sweep
from analemma.gc.uploads import Deleted

RELEASED_LEASE_S = 30 * 86_400
"""So long a pointer whose lease was released is told so; after that it names no lease."""

MOST_PROBLEMS = 100
"""A report of more is read by nobody."""

BEFORE_FINISH = declare("gc.before_finish", "a pass is done, and nothing says so")


class Stopped(Exception):
    """Somebody asked the run to end early."""


class Run:
    """One pass, from lease to report."""

    def __init__(
        self,
        parts: Parts,
        begun: Pass,
        plan: GcPlan | None,
        grace_s: float,
        expire: bool,
        force: bool,
        progress: Progress,
        stop: Callable[[], bool],
    ) -> None:
        self._parts = parts
        self._pass = begun
        self._plan = plan
        self._grace_s = grace_s
        self._expire = expire
        self._force = force
        self._progress = progress
        self._stop = stop
        self._clock = parts.clock
        self._renew_every_s = parts.settings.gc_lease_s / 3
        self._renewed = self._clock.monotonic()
        self._tenants: list[TenantReport] = []
        self._claimed = 0
        self._deleted = Deleted()
        self._failures = 0
        self._problems: list[tuple[str, str]] = []

    def go(self, tenants: list[tuple[TenantId, str]]) -> GcReport:
        """Everything that is to be done, and what came of it."""
        stopped = False
        try:
            if not self._parts.has_objects and self._parts.upload_rows.any():
                raise Invalid(
                    "this store has objects by now, and was opened without them", hint="open it again, and name them"
                )
            if self._parts.ownership is not None:
                # Before anything else: what a copy of the catalog expires or dooms, it would next delete.
                self._parts.ownership.take_turn()
            for number, name in tenants:
                self._collect_tenant(number, name)
            self._collect_uploads([number for number, _ in tenants])
        except Stopped:
            stopped = True
        except LeaseLost as exc:
            self._problems.append((str(exc), exc.kind))
        except BaseException as exc:
            self._finish_quietly(f"{type(exc).__name__}: {exc}")
            raise
        hit(BEFORE_FINISH)
        report = GcReport(
            number=self._pass.number,
            tenants=tuple(self._tenants),
            claimed=self._claimed,
            objects=self._deleted.objects,
            object_bytes=self._deleted.bytes,
            failures=self._failures,
            problems=tuple(message for message, _ in self._problems),
            kinds=tuple(kind for _, kind in self._problems),
            stopped=stopped,
        )
        reason = "; ".join(report.problems) or ("it was asked to stop" if stopped else None)
        self._finish(report, "finished" if reason is None else "aborted", reason)
        return report

    def _collect_tenant(self, tenant: TenantId, name: str) -> None:
        done = TenantReport(name)
        self._tenants.append(done)
        try:
            for step in (self._let_expire, self._end_leases, self._sweep, self._forget_keys):
                done = step(tenant, done)
                self._tenants[-1] = done
        except (LeaseLost, Stopped):
            raise
        except AnalemmaError as exc:
            # What cannot be read ends the pass for this tenant: tenants share nothing, so others are none the worse.
            self._pass.renew()
            self._tenants[-1] = replace(self._tenants[-1], problem=str(exc), kind=exc.kind)
            self._problems.append((f"{name}: {exc}", exc.kind))

    def _let_expire(self, tenant: TenantId, done: TenantReport) -> TenantReport:
        if not self._expire:
            return done
        # By the database's clock: one program whose own is ahead would let everybody's versions expire.
        now_us = self._parts.upload_rows.now_us()
        branches = self._parts.open_tenant(done.tenant).kernel.expire_all(now_us=now_us)
        self._tick("expiring", len(branches))
        for each in branches:
            if each.problem is not None:
                place = f"{each.owner_id}/{each.workflow_id} on {each.branch}"
                self._problems.append((f"{done.tenant}: {place}: {each.problem}", Conflict.kind))
        return replace(done, expired=sum([each.expired for each in branches]))

    def _end_leases(self, tenant: TenantId, done: TenantReport) -> TenantReport:
        if not self._expire:
            return done
        before_us = self._parts.upload_rows.now_us() - round(self._parts.settings.payload_lease_s * SECOND_US)
        for count in self._pass.end_leases(tenant, before_us):
            done = self._tenants[-1] = replace(done, leases=done.leases + count)
            self._tick("ending leases", count)
        return done

    def _sweep(self, tenant: TenantId, done: TenantReport) -> TenantReport:
        parts = self._parts
        sweep = Sweep(
            parts.catalog,
            self._pass,
            tenant,
            parts.open_tenant(done.tenant).blocks.read_uncached,
            grace_s=self._grace_s,
            settings=parts.settings,
            force=self._force,
            only=self._deletions(done.tenant),
            clock=self._clock,
        )
        try:
            for stage, count in sweep.steps():
                self._tick(stage, count)
        finally:
            # A pass that ends early still says what it did.
            done = replace(
                done,
                total=sweep.total,
                referenced=sweep.referenced,
                cleared=sweep.cleared,
                doomed=sweep.doomed,
                deleted=sweep.deleted,
                bytes=sweep.bytes,
            )
            self._tenants[-1] = done
        if sweep.problem is not None:
            self._problems.append((f"{done.tenant}: {sweep.problem} (if that is right, run it with force)", "limit"))
            done = replace(done, problem=sweep.problem, kind="limit")
        elif sweep.referenced or sweep.deleted == sweep.total:
            # Not while they are all that explains why nothing leads to blocks that are still there.
            before_us = parts.upload_rows.now_us() - RELEASED_LEASE_S * SECOND_US
            self._pass.forget_leases(tenant, before_us)
        return done

    def _forget_keys(self, tenant: TenantId, done: TenantReport) -> TenantReport:
        if not self._expire or done.problem is not None:
            return done
        before_us = self._parts.upload_rows.now_us() - round(self._parts.settings.idempotency_keep_s * SECOND_US)
        for count in self._pass.forget_keys(tenant, before_us):
            done = self._tenants[-1] = replace(done, keys=done.keys + count)
            self._tick("forgetting keys", count)
        return done

    def _collect_uploads(self, tenants: list[TenantId]) -> None:
        uploads = self._parts.uploads
        only = None if self._plan is None else pieces(self._plan.claims, UPLOAD_BYTES)
        try:
            # Not where something is wrong: without its block rows, a tenant's every object looks unreferenced.
            sound = [number for number, report in zip(tenants, self._tenants, strict=True) if report.problem is None]
            self._claimed = uploads.claim(sound, only, lambda: self._tick("claiming", 0), self._refuse)
            self._deleted = uploads.delete(self._pass.number, lambda: self._tick("deleting objects", 0), self._refuse)
            self._failures = uploads.work_failures(self._pass.number, lambda: self._tick("retrying", 0))
        except LeaseLost:
            raise
        except AnalemmaError as exc:
            self._problems.append((str(exc), exc.kind))

    def _refuse(self, problem: str) -> None:
        if len(self._problems) < MOST_PROBLEMS:
            self._problems.append((f"{problem}: nothing was deleted by it", Corrupt.kind))

    def _deletions(self, tenant: str) -> Collection[bytes] | None:
        if self._plan is None:
            return None
        return next((pieces(each.deletions, ID_BYTES) for each in self._plan.tenants if each.tenant == tenant), set())

    def _tick(self, stage: str, count: int) -> None:
        """Between any two steps: tell how far it is, keep the lease, and stop when asked to."""
        self._progress(stage, count)
        if self._stop():
            raise Stopped
        now = self._clock.monotonic()
        if now - self._renewed >= self._renew_every_s:
            self._pass.renew()
            self._renewed = now

    def _finish(self, report: GcReport, state: str, reason: str | None) -> None:
        done: dict[str, Any] = {
            name: getattr(report, name)
            for name in (
                "expired",
                "total",
                "referenced",
                "doomed",
                "cleared",
                "deleted",
                "bytes",
                "claimed",
                "objects",
            )
        }
        self._pass.finish(state, reason, done)

    def _finish_quietly(self, reason: str) -> None:
        """Give the lease back on the way out of an error, which matters more than what happens here."""
        report = GcReport(self._pass.number, tuple(self._tenants), self._claimed, 0, 0, 0)
        try:
            self._finish(report, "aborted", reason)
        except AnalemmaError:
            pass
