"""`app.gc`: plan a collection, run it, and see what came of it.

A run is one pass of the protocol in docs/design/garbage-collection.md, for each tenant in turn, and then uploads, whose
objects `gc.objects` deletes; a plan is the pass that did not act. It may stop anywhere, by itself or by dying; the next
one begins anew."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Collection as Many
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

from analemma.blocks.ownership import ObjectOwnership
from analemma.blocks.packs import UPLOAD_ID_BYTES
from analemma.blocks.port import ObjectStore
from analemma.canon.nodes import ID_BYTES, BlockId
from analemma.catalog.engine.db import Statements, Transaction
from analemma.catalog.leases import SECOND_US, DatabaseClock, Lease, LeaseLost
from analemma.catalog.port import TenantId
from analemma.context import StoreContext, no_tenant
from analemma.errors import AnalemmaError, Conflict, Corrupt, Invalid, NotFound, Unavailable
from analemma.failpoints import declare, hit
from analemma.gc.mark import VERSIONS, Marks, Roots, Survey, read_roots
from analemma.gc.objects import Audit, Failure, UploadCollector, UploadRow
from analemma.gc.reports import SUMS, Collection, GcStatus, Run, TenantCollection, pieces
from analemma.state.kernel import Kernel
from analemma.state.removal import ExpiryPlan, expire_branches, remove_due

AFTER_LEASE = declare("gc.after_lease", "a pass has its number, and nothing is marked")
AFTER_SNAPSHOT = declare("gc.after_snapshot", "the roots are read, and nothing is marked")
BEFORE_DOOM = declare("gc.before_doom", "blocks are doomed inside a transaction of a pass")
AFTER_DOOM = declare("gc.after_doom", "a batch of blocks is doomed")
BEFORE_DELETE = declare("gc.before_delete", "blocks are deleted inside a transaction of a pass")
BEFORE_FORGET = declare("gc.before_forget", "a pass has found idempotency keys that count no more, and none is gone")
AFTER_DELETE = declare("gc.after_delete", "a batch of blocks is deleted")
BEFORE_HOLD = declare(
    "payload.before_hold", "an execution that nobody released is found to be over, and still has leases"
)
BEFORE_END = declare("payload.before_end", "leases that nobody released are ended inside the transaction")
BEFORE_FINISH = declare("gc.before_finish", "a pass is done, and nothing says so")

SCAN_PAGE = 5000
FORGET_BATCH = 1000
PLAN_TRIES = 3
LONGEST_GRACE_S = 1e10
"""Some 300 years, of which the database's clock can still be told the beginning."""
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


class Collector:
    """Collects garbage in one store, all tenants. One run at a time, whichever process it is in."""

    def __init__(
        self,
        context: StoreContext,
        *,
        objects: ObjectStore | None,
        ownership: ObjectOwnership | None,
        open_kernel: Callable[[str], Kernel],
        database_clock: DatabaseClock,
    ) -> None:
        """`ownership`: whose the objects are; None if nobody else can have them. `open_kernel`: that of a tenant."""
        self._store_id = context.catalog.store_id()
        self._engine = context.engine
        self._settings = context.settings
        self._clock = context.clock
        self._holder = context.new_holder()
        self._database_clock = database_clock
        self._uploads = UploadCollector(self._engine, database_clock, objects, self._settings)
        self._ownership = ownership
        self._open_kernel = open_kernel
        self._ran_at: dict[str | None, float] = {}
        self._gate = threading.Lock()
        self._running: object | None = None
        """The token of whoever runs: the lease is this program's, and would not keep its other threads apart."""

    def plan(
        self,
        tenant: str | None = None,
        grace_s: float | None = None,
        *,
        expire: bool = True,
        progress: Progress | None = None,
    ) -> Collection:
        """What a run would do now, in one tenant or in all. Changes nothing, and may be made while others collect."""
        tenants = self._tenants(tenant)
        owner = None if self._ownership is None else self._ownership.owner()
        made = Collection(
            planned=True,
            store_id=self._store_id,
            grace_s=self._grace(grace_s),
            object_delay_s=self._settings.gc_object_delay_s,
            refused=owner.detail if owner is not None and owner.state == "other" else None,
        )
        _Pass(self, made, expire=expire, progress=progress).go(tenants)
        made.made_at_us = self._now_us()
        made.complain_of_plan()
        return made

    def run(
        self,
        plan: Collection | None = None,
        dry_run: bool = False,
        grace_s: float | None = None,
        *,
        tenant: str | None = None,
        expire: bool = True,
        force: bool = False,
        progress: Progress | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Collection:
        """In one tenant or in all: let versions expire, mark, doom, and delete what was doomed before and is still
        needed by nothing; then the objects in which no block lies any more.

        With a plan, nothing is deleted that the plan does not name, and all of it is looked at again. `force` goes on
        where the numbers of a tenant look wrong. Conflict while another collects; Denied, before anything is changed,
        if the objects are another catalog's."""
        if plan is not None and plan.store_id != self._store_id:
            raise Invalid("the plan is for another store", hint="make one for this store", store_id=plan.store_id)
        if dry_run:
            return replace(plan or self.plan(tenant, grace_s, expire=expire, progress=progress), planned=False)
        if plan is not None and grace_s is None:
            grace_s = plan.grace_s
        done = Collection(grace_s=self._grace(grace_s))
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
            if self._engine.value("session_count"):
                self._engine.execute("abandon_sessions", before=self._ago_us(self._settings.gc_session_idle_s))
            lease_s, clock = self._settings.gc_lease_s, self._database_clock
            lease = CollectorLease.take(self._engine, self._holder, lease_s, store_id=self._store_id, clock=clock)
            done.number = lease.number
            self._ran_at[tenant] = self._clock.monotonic()
            _Pass(self, done, lease, plan=plan, expire=expire, force=force, progress=progress, stop=stop).act(tenants)
            return done
        finally:
            if self._running is token:
                self._running = None

    def status(self, runs: int = 10) -> GcStatus:
        """Who collects now, what the last runs did, and what failed."""
        with self._engine.snapshot() as tx:
            lease, now_us = CollectorLease.look(tx), self._database_clock(tx)
        waiting, dead = self._uploads.count_failures()
        return GcStatus(
            newest=lease.number,
            holder=lease.holder,
            lease_left_s=max(0, lease.until_us - now_us) / SECOND_US if lease.holder else 0.0,
            runs=tuple(self._engine.rows(Run, "gc_runs", limit=runs)),
            sessions=int(self._engine.value("session_count")),
            waiting_failures=waiting,
            dead_failures=dead,
        )

    def failures(self, limit: int = 100) -> list[Failure]:
        """Uploads that could not be collected: those that will be tried again, and those that will not."""
        return self._engine.rows(Failure.of, "failures", limit=limit)

    def retry(self, failure: int | None = None) -> int:
        """Have a dead failure tried again, or all; how many."""
        found = self._uploads.retry(failure)
        if failure is not None and not found:
            raise NotFound(f"there is no dead failure {failure}", hint="`analemma gc failures` lists them")
        return found

    def work_failures(self) -> int:
        """Try what failed and may be tried again now; how many are done with."""
        if self._ownership is not None and self._uploads.count_failures()[0]:
            self._ownership.check()
        return self._uploads.work_failures()

    def audit(self, limit: int = 100) -> list[Audit]:
        """The objects that were deleted, newest first."""
        return self._engine.rows(Audit, "audit", limit=limit)

    def is_due(self, interval_s: float, tenant: str | None = None) -> bool:
        """Whether no run has come to a tenant for so long, or to any one of all tenants."""
        runs = self._engine.rows(Run, "gc_runs", limit=1)
        since_us = self._ago_us(interval_s)
        if not runs or runs[0].started_at_us <= since_us:
            return True
        ran_at = self._ran_at.get(tenant)
        if ran_at is not None and self._clock.monotonic() - ran_at < interval_s:
            # What stopped this run in a tenant, so that it does not count as a visit, need not be met every minute.
            return False
        # Of all tenants, the one that was left longest.
        number = -1 if tenant is None else self._tenants(tenant)[0][0]
        return bool(self._engine.value("gc_oldest_visit", tenant=number) <= since_us)

    def tenants(self) -> list[str]:
        """The names of all tenants, oldest first."""
        return [name for _, name in self._tenants(None)]

    def _grace(self, grace_s: float | None) -> float:
        chosen = self._settings.gc_grace_s if grace_s is None else grace_s
        if not 0 <= chosen <= LONGEST_GRACE_S:
            raise Invalid(f"a grace period of {chosen} s is none", hint="0 is the shortest")
        return chosen

    def _tenants(self, name: str | None) -> list[tuple[TenantId, str]]:
        tenants = [(TenantId(row[0]), row[1]) for row in self._engine.all("tenant_names")]
        if name is None:
            return tenants
        chosen = [each for each in tenants if each[1] == name]
        if not chosen:
            raise no_tenant(name)
        return chosen

    def _now_us(self) -> int:
        return self._database_clock(self._engine)

    def _ago_us(self, seconds: float) -> int:
        return self._now_us() - round(seconds * SECOND_US)


class CollectorLease(Lease):
    """Whoever has it alone writes to blocks that are stored: in transactions under it."""

    kind = "gc"
    doing = "collecting"
    after_take = AFTER_LEASE

    @classmethod
    def _begin(cls, tx: Transaction, number: int, holder: str, now_us: int) -> None:
        tx.execute("gc_close_dead_runs", number=number, now=now_us)
        tx.execute("gc_begin_run", number=number, holder=holder, now=now_us)

    def read_roots(self, tenant: TenantId) -> Roots:
        """All roots of one tenant, in one snapshot taken after the lease. What it saw is durable when this returns."""
        try:
            with self._engine.snapshot(long=True) as tx:
                # On SQLite whoever dies with the machine cannot act on what was lost: nothing to make durable.
                tx.all("commit_durably")
                found = read_roots(tx, tenant)
                if not self._engine.has_one_writer:
                    # Fails if the lease was taken since the snapshot began: its row is another by then.
                    self._renew(tx)
                elif not self._is_held(tx):
                    raise self._lost()
        except Unavailable as exc:
            if exc.facts.get("retry"):
                raise self._lost() from exc
            raise
        hit(AFTER_SNAPSHOT)
        return found

    def doom(self, tenant: TenantId, ids: Sequence[BlockId]) -> int:
        """Put this pass's number on blocks that are not doomed yet; how many."""

        def move(tx: Transaction) -> int:
            count = tx.execute("gc_doom", tenant=tenant, number=self.number, ids=ids)
            hit(BEFORE_DOOM)
            return count

        count = self.act(move)
        hit(AFTER_DOOM)
        return count

    def delete(self, tenant: TenantId, ids: Sequence[BlockId], limit: int) -> tuple[int, int]:
        """Delete those whose doom is below `limit` when their row is locked; how many, and their stored bytes."""
        limit = min(limit, self.number)

        def move(tx: Transaction) -> tuple[int, int]:
            rows = tx.all("gc_delete", tenant=tenant, limit=limit, ids=ids)
            tx.execute("gc_drop_dooms", tenant=tenant, limit=limit, ids=ids)
            hit(BEFORE_DELETE)
            return len(rows), sum([row[0] for row in rows])

        gone = self.act(move)
        hit(AFTER_DELETE)
        return gone

    def finish(self, reason: str | None, done: Collection, counts: dict[TenantId, tuple[int, int]]) -> None:
        """Write down what was done and, for the next pass to compare with, how many blocks there are in each tenant and
        how many of them are needed; and give the lease back if it is still ours."""
        state = "finished" if reason is None else "aborted"

        def move(tx: Transaction) -> None:
            if self._is_held(tx):
                for tenant, (total, referenced) in sorted(counts.items()):
                    tx.execute("gc_set_count", tenant=tenant, total=total, referenced=referenced, number=self.number)
            sums = {name: sum([getattr(each, name) for each in done.tenants]) for name in SUMS}
            done_by = {"number": self.number, "state": state, "reason": reason, "now": self._clock(tx)}
            tx.execute("gc_finish_run", **done_by, **sums, claimed=done.claimed, objects=done.objects)
            tx.execute("gc_finish", number=self.number)

        self._engine.write(move)


class Stopped(Exception):
    """Somebody asked the run to end early."""


@dataclass
class _Pass:
    """One pass through tenants and then uploads. Between any two transactions it tells how far it is, keeps the lease,
    and stops when asked to."""

    collector: Collector
    done: Collection
    """What was done so far, however the pass ends."""
    lease: CollectorLease | None = None
    """Without one, everything is looked at and nothing is changed."""
    _: KW_ONLY
    plan: Collection | None = None
    expire: bool
    force: bool = False
    """Whatever the brakes say."""
    progress: Progress | None = None
    stop: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        collector = self.collector
        self._engine, self._uploads = collector._engine, collector._uploads
        self._settings, self._clock = collector._settings, collector._clock
        self._renewed = self._clock.monotonic()
        self._batch = BATCH
        self._counts: dict[TenantId, tuple[int, int]] = {}
        """Of each tenant that was gone through, how many blocks it has and how many of them are needed."""
        self._claims: dict[bytes, int] = {}
        """In a plan, the size of each upload that would be claimed."""

    def act(self, tenants: list[tuple[TenantId, str]]) -> None:
        """Do everything that is to be done, note it, and give the lease back."""
        lease, done, ownership = self.lease, self.done, self.collector._ownership
        assert lease is not None
        try:
            if self._uploads.objects is None and self._engine.value("has_uploads"):
                raise Invalid(
                    "this store has objects by now, and was opened without them", hint="open it again, and name them"
                )
            if ownership is not None:
                # Before anything else: what a copy of the catalog expires or dooms, it would next delete.
                ownership.take_turn()
            self.go(tenants)
        except Stopped:
            done.stopped = True
        except LeaseLost as exc:
            done.complain(str(exc), exc.kind)
        except BaseException as exc:
            # Give the lease back on the way out of an error, which matters more than what happens here.
            with suppress(AnalemmaError):
                lease.finish(f"{type(exc).__name__}: {exc}", done, self._counts)
            raise
        hit(BEFORE_FINISH)
        reason = "; ".join([problem for problem, _ in done.complaints]) or (
            "it was asked to stop" if done.stopped else None
        )
        lease.finish(reason, done, self._counts)

    def go(self, tenants: list[tuple[TenantId, str]]) -> None:
        """Look at all tenants and uploads, and in a pass act on what is found."""
        done = self.done
        for tenant, name in tenants:
            self._collect_tenant(tenant, name)
        # Not where something is wrong: without its block rows, a tenant's every object looks unreferenced.
        sound = [tenant for (tenant, _), each in zip(tenants, done.tenants, strict=True) if each.problem is None]
        if self.lease is None:
            self._claim_uploads(sound, None)
            done.claims = b"".join(sorted(self._claims))
            done.claimed = done.objects = len(self._claims)
            done.object_bytes = sum(self._claims.values())
            return
        try:
            only = None if self.plan is None else frozenset(pieces(self.plan.claims, UPLOAD_ID_BYTES))
            self._claim_uploads(sound, only)
            self._uploads.delete(done, lambda: self._tick("deleting objects", 0), self._refuse)
            done.failures = self._uploads.work_failures(self.lease.number, lambda: self._tick("retrying", 0))
        except LeaseLost:
            raise
        except AnalemmaError as exc:
            done.complain(str(exc), exc.kind)

    def _collect_tenant(self, tenant: TenantId, name: str) -> None:
        done = TenantCollection(name)
        self.done.tenants += (done,)
        lease = self.lease
        try:
            kernel = self.collector._open_kernel(name)
            expiring = self._expire_versions(kernel, done) if self.expire else set()
            if self.expire and lease is not None:
                self._end_leases(lease, tenant, done)
            self._collect_blocks(kernel, done, expiring)
            if self.expire and lease is not None and done.problem is None:
                self._forget_keys(lease, tenant, done)
        except (LeaseLost, Stopped):
            raise
        except AnalemmaError as exc:
            # What cannot be read ends the pass for this tenant: tenants share nothing, so others are none the worse.
            if lease is not None:
                lease.renew()
                self.done.complain(f"{name}: {exc}", exc.kind)
            elif not isinstance(exc, Corrupt):
                raise
            done.problem, done.kind = str(exc), exc.kind

    def _expire_versions(self, kernel: Kernel, done: TenantCollection) -> set[BlockId]:
        """Let versions expire that retention lets go; in a plan, those that would."""
        # By the database's clock: one program whose own is ahead would let everybody's versions expire.
        now_us, planned = self.collector._now_us(), self.lease is None
        found: set[BlockId] = set()
        for key, plan in expire_branches(kernel, dry_run=planned, now_us=now_us):
            if isinstance(plan, ExpiryPlan):
                done.expired += len(plan.expired)
                found.update(version.id for version in plan.expired)
            elif not planned:
                place = f"{key.owner}/{key.workflow} on {key.branch}"
                self.done.complain(f"{done.tenant}: {place}: {plan}", Conflict.kind)
            self._tick("expiring", done.expired)
        before_us = now_us - round(self._settings.delete_grace_s * SECOND_US)
        if self._engine.one("deletion_is_due", tenant=kernel._tenant, before=before_us) is not None:
            for versions in remove_due(kernel, before_us=before_us, dry_run=planned):
                done.expired += len(versions)
                found.update(versions)
                self._tick("removing", done.expired)
        return found if planned else set()

    def _end_leases(self, lease: Lease, tenant: TenantId, done: TenantCollection) -> None:
        """End the leases of executions that are over and that nobody released, as runs that have ended or because none
        was used for long. What may still be needed stays."""
        before_us = self.collector._ago_us(self._settings.payload_lease_s)
        first = {"after_owner": "", "after_workflow": "", "after_execution": ""}
        for page in self._engine.pages("leased_executions", first, limit=FORGET_BATCH, tenant=tenant):
            for *whose, used_at_us, is_ended_run in page:
                if is_ended_run or used_at_us <= before_us:
                    names = dict(zip(("owner", "workflow", "execution"), whose, strict=True))
                    done.leases += (count := self._end_execution(lease, before_us, {"tenant": tenant, **names}))
                    self._tick("ending leases", count)

    def _end_execution(self, lease: Lease, before_us: int, whose: dict[str, Any]) -> int:
        """End the leases of an execution, if it is over; how many. It may get new ones: a run may be run again, and
        what that leaves is ended as these are."""

        def is_over(source: Statements) -> bool:
            return source.one("is_execution_over", before=before_us, **whose) is not None

        def move(tx: Transaction) -> int:
            tx.call("hold_execution", SimpleNamespace(**whose))
            # After the locks, in a statement of its own: that sees who used them while we waited.
            if not is_over(tx):
                return 0
            count = tx.execute("release_leases", **whose, now=self.collector._database_clock(tx))
            hit(BEFORE_END)
            return count

        if not is_over(self._engine):
            return 0
        hit(BEFORE_HOLD)
        return lease.act(move)

    def _forget_keys(self, lease: Lease, tenant: TenantId, done: TenantCollection) -> None:
        """Drop idempotency keys that were remembered long ago and whose versions are gone. On the way of a commit they
        count no more already."""
        before_us = self.collector._ago_us(self._settings.idempotency_keep_s)
        first = {"after_time": -1, "after_owner": "", "after_workflow": "", "after_key": ""}
        for page in self._engine.pages("old_keys", first, limit=FORGET_BATCH, tenant=tenant, before=before_us):
            if rows := [(tenant, *row[1:4], before_us) for row in page if row[4]]:
                hit(BEFORE_FORGET)
                done.keys += (count := lease.execute_many("forget_keys", rows))
                self._tick("forgetting keys", count)

    def _collect_blocks(self, kernel: Kernel, done: TenantCollection, expiring: Many[BlockId]) -> None:
        """Mark from a snapshot, sort all blocks, and act on them."""
        for tries_left in reversed(range(PLAN_TRIES)):
            try:
                found, roots, limit = self._survey(kernel, expiring)
                break
            except Corrupt as exc:
                # Without the lease, others may collect what is below a version that expired since we looked.
                if self.lease is not None or not tries_left or not exc.facts.get("missing"):
                    raise
        done.total, done.referenced = found.total, found.referenced
        if not self.force and (problem := self._brake(kernel._tenant, found, roots)) is not None:
            done.problem, done.kind = problem, "limit"
            if self.lease is not None:
                self.done.complain(f"{done.tenant}: {problem} (if that is right, run it with force)", "limit")
        elif self.lease is None:
            self._foresee(kernel._tenant, done, found)
        else:
            self._act_on(self.lease, kernel._tenant, done, found, limit)

    def _survey(self, kernel: Kernel, expiring: Many[BlockId]) -> tuple[Survey, int, int]:
        """All blocks, sorted; how many roots there are, and which dooms are old enough for deletion."""
        engine, tenant = self._engine, kernel._tenant
        if self.lease is None:
            number = CollectorLease.look(engine).number + 1
            with engine.snapshot() as tx:
                seen, session = read_roots(tx, tenant)
        else:
            number = self.lease.number
            seen, session = self.lease.read_roots(tenant)
        self._tick("snapshot", sum(map(len, seen.values())))
        # A version that another column names is kept by that, whether or not it expires.
        seen[VERSIONS] = [root for root in seen[VERSIONS] if root not in expiring]
        roots = list(chain.from_iterable(seen.values()))
        marks = Marks()
        for count in marks.follow(roots, kernel._blocks.read_uncached):
            self._tick("marking", count)
        # Dooms of earlier passes, of before the oldest open session began, and with a grace period at least that old.
        limit, grace_s = number, self.done.grace_s
        if grace_s:
            limit = min(limit, engine.value("gc_grace_limit", since=self.collector._ago_us(grace_s)))
        if session is not None:
            limit = min(limit, session)  # guard: gc.session
        survey = Survey()
        # What is written meanwhile may show or not.
        blocks, dooms = (
            engine.pages(statement, {"after": b""}, limit=SCAN_PAGE, tenant=tenant)
            for statement in ("scan_blocks", "scan_doomed")
        )
        for count in survey.sort(([row[0] for row in page] for page in blocks), dooms, marks, limit):
            self._tick("scanning", count)
        self._tick("scanned", survey.total)
        return survey, len(roots), limit

    def _brake(self, tenant: TenantId, found: Survey, roots: int) -> str | None:
        """Why nothing should be collected, because the numbers look wrong, or None."""
        total, referenced, limits = found.total, found.referenced, self._settings
        if total and not roots and self._engine.one("unexplained_emptiness", tenant=tenant):
            return f"there are {total} blocks and nothing that leads to any of them"
        unmarked = total - referenced
        if unmarked >= limits.gc_brake_blocks and unmarked > limits.gc_brake_unmarked * total:
            return f"nothing leads to {unmarked} of {total} blocks, more than {limits.gc_brake_unmarked:.0%}"
        for _, before in self._engine.all("gc_count", tenant=tenant):
            fewer = before - referenced
            if fewer >= limits.gc_brake_blocks and fewer > limits.gc_brake_drop * before:
                return f"only {referenced} blocks are needed, and {before} were in the pass before"
        return None

    def _foresee(self, tenant: TenantId, done: TenantCollection, found: Survey) -> None:
        """What a pass would do to these blocks, and which uploads would have none left."""
        done.doomed, done.deleted = len(found.doom) // ID_BYTES, len(found.delete) // ID_BYTES
        done.waiting, done.deletions = found.waiting, bytes(found.delete)
        emptied: dict[bytes, int] = {}
        for ids in self._batches(found.delete):
            for upload, count, size in self._engine.all("deletion_facts", tenant=tenant, ids=ids):
                done.bytes += size
                if upload is not None:
                    emptied[upload] = emptied.get(upload, 0) + count
        for upload, count in emptied.items() if self._uploads.objects is not None else ():
            if self._engine.value("pack_contents", tenant=tenant, upload=upload) == count:
                # A pass would claim nothing where the row of an upload is lost.
                for row in self._engine.all("upload", tenant=tenant, id=upload):
                    self._claims[upload] = row[2]

    def _act_on(
        self, lease: CollectorLease, tenant: TenantId, done: TenantCollection, found: Survey, limit: int
    ) -> None:
        only = None
        if self.plan is not None:
            planned = b"".join(each.deletions for each in self.plan.tenants if each.tenant == done.tenant)
            only = frozenset(pieces(planned, ID_BYTES))
        for ids in self._batches(found.clear):
            done.cleared += lease.execute("gc_clear_dooms", tenant=tenant, ids=ids)
            self._tick("sparing", done.cleared)
        for ids in self._batches(found.doom):
            done.doomed += lease.doom(tenant, ids)
            self._tick("marking to go", done.doomed)
        for ids in self._batches(found.delete):
            if chosen := ids if only is None else [block for block in ids if block in only]:
                count, freed = lease.delete(tenant, chosen, limit)
                done.deleted += count
                done.bytes += freed
            self._tick("deleting", done.deleted)
        self._counts[tenant] = (found.total - done.deleted, found.referenced)
        if found.referenced or done.deleted == found.total:
            # Not while they are all that explains why nothing leads to blocks that are still there.
            which = {"tenant": tenant, "before": self.collector._ago_us(RELEASED_LEASE_S)}
            while self._engine.one("old_lease", **which) is not None:
                lease.execute("forget_leases", **which, limit=FORGET_BATCH)
            if self._engine.one("old_end", **which) is not None:
                lease.execute("forget_ends", **which)

    def _batches(self, ids: bytearray) -> Iterator[list[BlockId]]:
        """As many at a time as take about `LONGEST_S`: on SQLite all other writers wait for the transaction."""
        place, monotonic = 0, self._clock.monotonic
        while place < len(ids):
            batch = ids[place : place + self._batch * ID_BYTES]
            place += len(batch)
            started = monotonic()
            yield [BlockId(each) for each in pieces(batch, ID_BYTES)]
            wanted = int(self._batch * min(2.0, LONGEST_S / max(monotonic() - started, 1e-6)))
            self._batch = max(SMALLEST_BATCH, min(LARGEST_BATCH, wanted))

    def _claim_uploads(self, tenants: list[TenantId], only: Many[bytes] | None) -> None:
        for page in self._uploads.candidates(tenants, self._refuse):
            chosen = page if only is None else [each for each in page if each.id in only]
            if self.lease is not None:
                self.done.claimed += self._uploads.claim(chosen)
            else:
                self._claims.update((each.id, each.size) for each in chosen)
                self.done.abandoned += sum([each.abandoned for each in chosen])
            self._tick("claiming", 0)

    def _refuse(self, upload: UploadRow, problem: str) -> None:
        if self.lease is not None and len(self.done.complaints) < MOST_PROBLEMS:
            self.done.complain(f"{problem}: nothing was deleted by it", Corrupt.kind)

    def _tick(self, stage: str, count: int) -> None:
        if self.progress is not None:
            self.progress(stage, count)
        if self.stop is not None and self.stop():
            raise Stopped
        now = self._clock.monotonic()
        if self.lease is not None and now - self._renewed >= self._settings.gc_lease_s / 3:
            self.lease.renew()
            self._renewed = now
