"""One pass of a collection: what is done, or in a plan would be done, to one tenant's blocks; and a run through all of
them, from lease to report.

Steps come one by one, so that something can be done between any two transactions: keep the lease, stop, or, in tests,
everything else that could happen there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from analemma.blocks.store import BlockStore
from analemma.canon.identity import ID_BYTES, BlockId
from analemma.catalog.collecting.marks import SECOND_US, Collecting, LeaseLost, Pass, Snapshot
from analemma.catalog.collecting.uploads import CollectingUploads
from analemma.catalog.port import TenantId
from analemma.clock import Clock
from analemma.errors import AnalemmaError, Conflict, Corrupt, Invalid
from analemma.failpoints import declare, hit
from analemma.gc.mark import Marks, Survey, batches
from analemma.gc.reports import UPLOAD_BYTES, GcPlan, GcReport, TenantReport, pieces
from analemma.gc.roots import MANIFESTS, ROOTS
from analemma.gc.uploads import Deleted, UploadCollector
from analemma.settings import Settings
from analemma.state.object_ownership import ObjectOwnership
from analemma.state.retention import BranchExpiry, ExpiryPlan

BEFORE_FINISH = declare("gc.before_finish", "a pass is done, and nothing says so")

BATCH = 2500
"""Blocks in the first transaction. The fewer there are, the more often the same pages of a table are written: ids are
random."""
SMALLEST_BATCH = 100
LARGEST_BATCH = 10_000
LONGEST_S = 0.03
"""How long a transaction should take, about."""
RELEASED_LEASE_S = 30 * 86_400
"""So long a pointer whose lease was released is told so; after that it names no lease."""
MOST_PROBLEMS = 100
"""A report of more is read by nobody."""

Progress = Callable[[str, int], None]
"""Hears what is being done, and how far."""
Step = tuple[str, int]
"""What was just done, and how far it is."""


class Expiring(Protocol):
    """What a collection asks of a tenant's kernel."""

    def expire_all(self, *, dry_run: bool = False, now_us: int | None = None) -> list[BranchExpiry]: ...

    def expire(
        self,
        *,
        workflow_id: str,
        owner_id: str,
        branch: str = ...,
        dry_run: bool = False,
        now_us: int | None = None,
    ) -> ExpiryPlan: ...


class TenantPart(Protocol):
    """What a collection asks of a tenant."""

    @property
    def blocks(self) -> BlockStore: ...

    @property
    def kernel(self) -> Expiring: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """One store, as its collector sees it."""

    store_id: str
    catalog: Collecting
    upload_rows: CollectingUploads
    uploads: UploadCollector
    has_objects: bool
    ownership: ObjectOwnership | None
    """Whose the objects are; None if nobody else can have them."""
    open_tenant: Callable[[str], TenantPart]
    settings: Settings
    clock: Clock


class TenantPass:
    """What a pass does to one tenant's blocks. The counts say what was done so far, however it ends."""

    def __init__(
        self,
        parts: Parts,
        tenant: TenantId,
        name: str,
        *,
        begun: Pass | None,
        grace_s: float,
        force: bool = False,
        only: Collection[bytes] | None = None,
        expiring: Collection[BlockId] = frozenset(),
    ) -> None:
        """`begun`: the pass; without one, everything is looked at and nothing is changed. `force`: whatever the brakes
        say. `only`: delete no other blocks than these. `expiring`: versions that count as gone."""
        self._parts = parts
        self._tenant = tenant
        self._read = parts.open_tenant(name).blocks.read_uncached
        self._pass = begun
        self._grace_s = grace_s
        self._force = force
        self._only = only
        self._expiring = expiring
        self._batch = BATCH
        self.survey = Survey()
        self.cleared = self.doomed = self.deleted = self.bytes = 0
        self.problem: str | None = None
        """Why nothing is collected, if there is a reason."""

    def steps(self) -> Iterator[Step]:
        """Mark from a snapshot, sort all blocks, and act on them. Between any two steps no transaction is open."""
        catalog, tenant, begun = self._parts.catalog, self._tenant, self._pass
        number = catalog.lease().number + 1 if begun is None else begun.number
        seen = catalog.look(tenant, ROOTS) if begun is None else begun.snapshot(tenant, ROOTS)
        yield "snapshot", sum(map(len, seen.roots.values()))
        # A version that another table names is kept by that, whether or not it expires.
        gone: dict[str, Collection[BlockId]] = {MANIFESTS.table: self._expiring}
        roots = [root for table in ROOTS for root in seen.roots[table.table] if root not in gone.get(table.table, ())]
        marks = Marks()
        for count in marks.follow(roots, self._read):
            yield "marking", count
        limit = self._deletion_limit(number, seen)
        found = Survey()
        for count in found.sort(catalog.scan_pages(tenant), catalog.scan_doomed_pages(tenant), marks, limit):
            yield "scanning", count
        self.survey = found
        yield "scanned", found.total
        if not self._force:
            self.problem = self._judge(len(roots))
        if begun is None or self.problem is not None:
            return
        for batch in self._batches(found.clear):
            self.cleared += begun.clear(tenant, batch)
            yield "sparing", self.cleared
        for batch in self._batches(found.doom):
            self.doomed += begun.doom(tenant, batch)
            yield "marking to go", self.doomed
        for batch in self._batches(found.delete):
            chosen = batch if self._only is None else [block for block in batch if block in self._only]
            if chosen:
                count, freed = begun.delete(tenant, chosen, limit)
                self.deleted += count
                self.bytes += freed
            yield "deleting", self.deleted
        begun.count(tenant, found.total - self.deleted, found.referenced)

    def _deletion_limit(self, number: int, seen: Snapshot) -> int:
        """Which dooms are old enough, in the pass of this number: those of earlier passes, before the oldest open
        session began, and with a grace period those that are at least that old."""
        limit = number if self._grace_s == 0 else min(number, self._parts.catalog.grace_limit(self._grace_s))
        return limit if seen.oldest_session is None else min(limit, seen.oldest_session)  # guard: gc.session

    def _judge(self, roots: int) -> str | None:
        """Why nothing should be collected, because the numbers look wrong, or None."""
        total, referenced, limits = self.survey.total, self.survey.referenced, self._parts.settings
        if total and not roots and self._parts.catalog.unexplained_emptiness(self._tenant):
            return f"there are {total} blocks and nothing that leads to any of them"
        unmarked = total - referenced
        if unmarked >= limits.gc_brake_blocks and unmarked > limits.gc_brake_unmarked * total:
            return f"nothing leads to {unmarked} of {total} blocks, more than {limits.gc_brake_unmarked:.0%}"
        last = self._parts.catalog.last_count(self._tenant)
        if last is not None:
            fewer = last[1] - referenced
            if fewer >= limits.gc_brake_blocks and fewer > limits.gc_brake_drop * last[1]:
                return f"only {referenced} blocks are needed, and {last[1]} were in the pass before"
        return None

    def _batches(self, ids: bytearray) -> Iterator[list[BlockId]]:
        """As many at a time as take about `LONGEST_S`: on SQLite all other writers wait for the transaction."""
        place, monotonic = 0, self._parts.clock.monotonic
        while place < len(ids):
            end = place + self._batch * ID_BYTES
            started = monotonic()
            yield from batches(ids[place:end], self._batch)
            place = end
            wanted = int(self._batch * min(2.0, LONGEST_S / max(monotonic() - started, 1e-6)))
            self._batch = max(SMALLEST_BATCH, min(LARGEST_BATCH, wanted))


class Stopped(Exception):
    """Somebody asked the run to end early."""


class Run:
    """One pass through tenants and then uploads, from lease to report."""

    def __init__(
        self,
        parts: Parts,
        begun: Pass,
        plan: GcPlan | None,
        *,
        grace_s: float,
        expire: bool,
        force: bool,
        progress: Progress | None,
        stop: Callable[[], bool] | None,
    ) -> None:
        self._parts = parts
        self._pass = begun
        self._plan = plan
        self._grace_s = grace_s
        self._expire = expire
        self._force = force
        self._progress = progress
        self._stop = stop
        self._renewed = parts.clock.monotonic()
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
            # Give the lease back on the way out of an error, which matters more than what happens here.
            try:
                self._finish(self._report(), f"{type(exc).__name__}: {exc}")
            except AnalemmaError:
                pass
            raise
        hit(BEFORE_FINISH)
        report = self._report(stopped)
        self._finish(report, "; ".join(report.problems) or ("it was asked to stop" if stopped else None))
        return report

    def _report(self, stopped: bool = False) -> GcReport:
        return GcReport(
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

    def _note(self, **facts: Any) -> None:
        """Of the tenant at hand: a run that ends early still says what it did."""
        self._tenants[-1] = replace(self._tenants[-1], **facts)

    def _collect_tenant(self, tenant: TenantId, name: str) -> None:
        settings = self._parts.settings
        self._tenants.append(TenantReport(name))
        try:
            if self._expire:
                self._let_expire(name)
                self._count(
                    "leases", self._pass.end_leases(tenant, self._ago_us(settings.payload_lease_s)), "ending leases"
                )
            self._sweep(tenant, name)
            if self._expire and self._tenants[-1].problem is None:
                forgotten = self._pass.forget_keys(tenant, self._ago_us(settings.idempotency_keep_s))
                self._count("keys", forgotten, "forgetting keys")
        except (LeaseLost, Stopped):
            raise
        except AnalemmaError as exc:
            # What cannot be read ends the pass for this tenant: tenants share nothing, so others are none the worse.
            self._pass.renew()
            self._note(problem=str(exc), kind=exc.kind)
            self._problems.append((f"{name}: {exc}", exc.kind))

    def _let_expire(self, name: str) -> None:
        # By the database's clock: one program whose own is ahead would let everybody's versions expire.
        now_us = self._parts.upload_rows.now_us()
        branches = self._parts.open_tenant(name).kernel.expire_all(now_us=now_us)
        self._tick("expiring", len(branches))
        for each in branches:
            if each.problem is not None:
                place = f"{each.owner_id}/{each.workflow_id} on {each.branch}"
                self._problems.append((f"{name}: {place}: {each.problem}", Conflict.kind))
        self._note(expired=sum([each.expired for each in branches]))

    def _ago_us(self, seconds: float) -> int:
        return self._parts.upload_rows.now_us() - round(seconds * SECOND_US)

    def _count(self, fact: str, counts: Iterator[int], stage: str) -> None:
        for count in counts:
            self._note(**{fact: getattr(self._tenants[-1], fact) + count})
            self._tick(stage, count)

    def _sweep(self, tenant: TenantId, name: str) -> None:
        sweep = TenantPass(
            self._parts,
            tenant,
            name,
            begun=self._pass,
            grace_s=self._grace_s,
            force=self._force,
            only=self._deletions(name),
        )
        try:
            for stage, count in sweep.steps():
                self._tick(stage, count)
        finally:
            self._note(
                total=sweep.survey.total,
                referenced=sweep.survey.referenced,
                cleared=sweep.cleared,
                doomed=sweep.doomed,
                deleted=sweep.deleted,
                bytes=sweep.bytes,
            )
        if sweep.problem is not None:
            self._problems.append((f"{name}: {sweep.problem} (if that is right, run it with force)", "limit"))
            self._note(problem=sweep.problem, kind="limit")
        elif sweep.survey.referenced or sweep.deleted == sweep.survey.total:
            # Not while they are all that explains why nothing leads to blocks that are still there.
            self._pass.forget_leases(tenant, self._ago_us(RELEASED_LEASE_S))

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
        if self._progress is not None:
            self._progress(stage, count)
        if self._stop is not None and self._stop():
            raise Stopped
        now = self._parts.clock.monotonic()
        if now - self._renewed >= self._parts.settings.gc_lease_s / 3:
            self._pass.renew()
            self._renewed = now

    def _finish(self, report: GcReport, reason: str | None) -> None:
        sums = ("expired", "total", "referenced", "doomed", "cleared", "deleted", "bytes", "claimed", "objects")
        state = "finished" if reason is None else "aborted"
        self._pass.finish(state, reason, {name: getattr(report, name) for name in sums})
