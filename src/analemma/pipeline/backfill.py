"""Backfills of a store: planned, run, paused and gone on with, by any process; and verifying what was compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeVar

from analemma.catalog.engine.db import Transaction
from analemma.catalog.entities.backfills import BackfillRow, ErrorRow
from analemma.catalog.entities.slices import count_by_rules
from analemma.catalog.leases import SECOND_US, database_clock
from analemma.clock import moment
from analemma.context import StoreContext
from analemma.contracts.contract_set import ContractSet
from analemma.errors import Conflict, Invalid, NotFound
from analemma.executors.port import CallExecutor, Given, using_executor
from analemma.failpoints import declare, hit
from analemma.pipeline.backfill_evaluating import dry_page
from analemma.pipeline.backfill_pages import run_page
from analemma.pipeline.backfill_parts import TenantParts
from analemma.pipeline.backfill_planning import Planned, dry_run, make_plan
from analemma.pipeline.backfill_reports import Backfill as Backfill
from analemma.pipeline.backfill_reports import BackfillPlan as BackfillPlan
from analemma.pipeline.backfill_reports import NeededBackfill as NeededBackfill
from analemma.pipeline.backfill_reports import VerifyMode, VerifyReport, Watch, load_plan
from analemma.pipeline.backfill_running import BackfillRun, Pace
from analemma.pipeline.backfill_scope import (
    BackfillKind,
    BackfillOptions,
    BackfillScope,
    check_scope,
    dump_options,
    dump_scope,
    load_options,
    load_scope,
    read_scope,
)
from analemma.pipeline.backfill_verifying import verify_page, verify_scope
from analemma.slicing.incremental import CompileMode, parse_mode
from analemma.tracing import span

BEFORE_PLAN = declare("backfill.before_plan", "a backfill and its shards are written inside the transaction")
AFTER_PLAN = declare("backfill.after_plan", "a backfill is planned, and nobody runs it")
AFTER_LEASE = declare("backfill.after_lease", "somebody runs a backfill, and nothing is done")

SHOWN_ERRORS: Final = 100
LARGEST_PAGE: Final = 1000
WAIT_S: Final = 0.2

Scope = BackfillScope | Mapping[str, Any] | None
Kind = BackfillKind | Literal["raw_to_slice", "slice_to_sink", "full", "dead_letters"]
Verify = VerifyMode | None
_Call = TypeVar("_Call")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Remote:
    """How the same is done in another process: a function that opens the store there, and what tells it which."""

    place: Callable[[], Any]
    """Plain data; Invalid for a store that only this process has."""
    page: Callable[[Any, str, Callable[[TenantParts, Any], Any], Any], Any]
    """What a function makes of a page, of a tenant of the store at a place."""


class BackfillJobs:
    """The backfills of a store: `plan`, `create`, `run`, `get`, `list`, `pause`, `resume`, `cancel`, `verify`."""

    def __init__(
        self,
        context: StoreContext,
        *,
        open_tenant: Callable[[str], TenantParts],
        contracts: Callable[[], ContractSet],
        remote: Remote,
    ) -> None:
        self._context = context
        self._engine = context.engine
        self._clock = context.clock
        self._settings = context.settings
        self._open_tenant = open_tenant
        self._contracts = contracts
        self._remote = remote

    def plan(
        self,
        scope: Scope = None,
        kind: Kind = "raw_to_slice",
        *,
        mode: str = "full",
        quick: bool = False,
        executor: Given = None,
        watch: Watch | None = None,
    ) -> BackfillPlan:
        """What a backfill would do, with counts and samples; nothing is changed. Unless `quick`, every entity is
        evaluated: `plan.changes` is then what a run would count on this store."""
        chosen, wanted, options = self._asked(scope, kind, mode=mode)
        with span("analemma.backfill.plan", kind=wanted.value):
            parts = self._parts(chosen)
            planned = make_plan(parts, chosen, wanted, options)
            if quick:
                return planned.plan
            pace = Pace(self._clock, planned.plan.total, 0, 0, watch)
            with using_executor(executor) as calls:
                page = self._pages(calls, parts, dry_page)
                made = dry_run(parts, planned, options, calls, page, lambda found: pace.add(found.done, found.failed))
            pace.tell()
            return made

    def create(
        self,
        scope: Scope = None,
        kind: Kind = "raw_to_slice",
        *,
        mode: str = "full",
        rate: float | None = None,
        page: int | None = None,
    ) -> Backfill:
        """Write a backfill down, for whoever runs it."""
        chosen, wanted, options = self._asked(scope, kind, mode=mode, rate=rate, page=page)
        parts = self._parts(chosen)
        return self._create(parts, make_plan(parts, chosen, wanted, options), options)

    def execute(
        self,
        scope: Scope = None,
        kind: Kind = "raw_to_slice",
        *,
        verify: Verify = None,
        executor: Given = None,
        mode: str = "full",
        rate: float | None = None,
        page: int | None = None,
        watch: Watch | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Backfill:
        """Write a backfill down and run it; with `verify`, look afterwards whether all is what it should be."""
        if verify not in (None, "fast", "strict"):
            raise Invalid(f"there is no way to verify {verify!r}", hint="fast or strict")
        made = self.create(scope, kind, mode=mode, rate=rate, page=page)
        done = self.run(made.id, executor=executor, watch=watch, stop=stop)
        if verify is None or done.state != "DONE":
            return done
        return replace(done, verified=self.verify(scope, verify, executor=executor))

    def run(
        self,
        id: str,
        *,
        executor: Given = None,
        watch: Watch | None = None,
        stop: Callable[[], bool] | None = None,
        wait_s: float = 0.0,
    ) -> Backfill:
        """Run one that was written down, or go on where one ended whose process died, or failed. It returns when the
        backfill is done, or was paused or cancelled, by `stop`, by another thread or by another process; what it
        failed with is raised. Conflict while another process has it: one that died has it until its lease is over, for
        which `wait_s` waits."""
        return self._run(id, executor, watch, stop, wait_s, paused=False)

    def resume(
        self,
        id: str,
        *,
        executor: Given = None,
        watch: Watch | None = None,
        stop: Callable[[], bool] | None = None,
        wait_s: float = 0.0,
    ) -> Backfill:
        """The same, also for one that was paused."""
        return self._run(id, executor, watch, stop, wait_s, paused=True)

    def pause(self, id: str, reason: str = "paused by a person") -> Backfill:
        """Have it stop, whoever runs it, after the entities that are being worked on; it can be resumed."""
        row = self._row(id)
        if self._engine.execute("pause_backfill", number=row.number, reason=reason) != 1:
            raise self._refused(self._row(id), "paused", ("PLANNED", "RUNNING"))
        return self.get(id)

    def cancel(self, id: str, reason: str = "cancelled by a person") -> Backfill:
        """Have it stop for ever. What is done stays done."""
        row = self._row(id)
        asked = {"number": row.number, "reason": reason}
        if self._engine.write(lambda tx: tx.execute("cancel_backfill", **asked, now=database_clock(tx))) != 1:
            raise self._refused(self._row(id), "cancelled", ("PLANNED", "RUNNING", "PAUSED", "FAILED"))
        return self.get(id)

    def get(self, id: str) -> Backfill:
        """How one is doing; NotFound if there is none of this id."""
        return self._told(self._row(id))

    def list(self, tenant: str | None = None, *, limit: int = 100) -> tuple[Backfill, ...]:
        """The newest ones of a tenant, or of all, newest first."""
        if not 1 <= limit <= LARGEST_PAGE:
            raise Invalid(f"a list of {limit}", hint=f"from 1 to {LARGEST_PAGE}")
        number = self._context.tenant_number(tenant)
        return tuple(self.get(id) for (id,) in self._engine.all("backfills", tenant=number, limit=limit))

    def needed(self) -> tuple[NeededBackfill, ...]:
        """What new rules leave to be compiled, in all tenants: it costs what there is of that, and not what is compiled
        by the rules of today."""
        found = []
        contracts = self._contracts()
        rulesets = [ruleset for each in contracts.entity_types if (ruleset := contracts.find_ruleset(each))]
        for number, name in self._engine.all("tenant_names"):
            for ruleset in rulesets:
                other = count_by_rules(self._engine, number, ruleset.entity_type, [ruleset.fingerprint])
                if other:
                    lacking = [
                        each.type
                        for each in ruleset.indexes
                        if other.keys() - contracts.rules_with(ruleset.entity_type, each.type)
                    ]
                    found.append(NeededBackfill(name, ruleset.entity_type, sum(other.values()), tuple(lacking)))
        return tuple(found)

    def verify(
        self,
        scope: Scope = None,
        mode: VerifyMode = "strict",
        *,
        executor: Given = None,
        watch: Watch | None = None,
    ) -> VerifyReport:
        """Look whether slices and index entries are what they should be; nothing is changed.

        `fast` holds rows against each other, and bodies against their hashes; `strict` also compiles each entity anew
        from its raw document, and compares."""
        if mode not in ("fast", "strict"):
            raise Invalid(f"there is no way to verify {mode!r}", hint="fast or strict")
        # Which entities, and nothing else: those that are not stale are looked at too.
        which = replace(read_scope(scope, self._settings.tenant), stale=False, versions="newest", sinks=None, events=())
        chosen, wanted, options = self._asked(which, BackfillKind.RAW_TO_SLICE)
        with span("analemma.backfill.verify", mode=mode):
            parts = self._parts(chosen)
            planned = make_plan(parts, chosen, wanted, options)
            pace = Pace(self._clock, planned.plan.total, 0, 0, watch)
            with using_executor(executor) as calls:
                page = self._pages(calls, parts, verify_page)
                report = verify_scope(mode, chosen, planned.shards, options.page, calls, page, pace.add)
            pace.tell()
            return report

    def _run(
        self,
        id: str,
        executor: Given,
        watch: Watch | None,
        stop: Callable[[], bool] | None,
        wait_s: float,
        *,
        paused: bool,
    ) -> Backfill:
        row = self._row(id)
        parts = self._open_tenant(row.tenant_name)
        with using_executor(executor) as calls, span("analemma.backfill.run", kind=row.kind):
            page = self._pages(calls, parts, run_page)
            fence = self._take(id, paused=paused, wait_s=wait_s)
            row = self._row(id)
            plan = load_plan(row.plan, BackfillKind(row.kind), load_scope(row.scope))
            BackfillRun(
                self._engine,
                row,
                fence,
                plan,
                lease_s=self._settings.backfill_lease_s,
                clock=self._clock,
                executor=calls,
                page=page,
                watch=watch,
                stop=stop or (lambda: False),
            ).go()
        return self.get(id)

    def _take(self, id: str, *, paused: bool, wait_s: float) -> int:
        until = self._clock.monotonic() + wait_s
        while True:
            fence = self._lease(self._row(id).number, paused=paused)
            if fence is not None:
                hit(AFTER_LEASE)
                return fence
            row = self._row(id)
            free = ("PLANNED", "RUNNING", "FAILED", "PAUSED") if paused else ("PLANNED", "RUNNING", "FAILED")
            if row.state not in free:
                raise self._refused(row, "run", free)
            if self._clock.monotonic() >= until:
                left_s = max(0.0, ((row.lease_until_us or 0) - database_clock(self._engine)) / SECOND_US)
                raise Conflict(
                    f"{row.holder} runs backfill {id}",
                    hint=f"wait until it is done, or pause it; if it died, its lease ends in {left_s:.0f} s",
                    backfill=id,
                    holder=row.holder,
                )
            self._clock.sleep(WAIT_S)

    def _lease(self, number: int, *, paused: bool) -> int | None:
        """Take it, one that is paused only if that is meant; the fence, or None if it cannot be taken."""
        holder = self._context.new_holder()

        def take(tx: Transaction) -> int | None:
            now = database_clock(tx)
            until = now + int(self._settings.backfill_lease_s * SECOND_US)
            return tx.row(int, "take_backfill", number=number, holder=holder, now=now, until=until, paused=int(paused))

        return self._engine.write(take)

    def _refused(self, row: BackfillRow, what: str, states: tuple[str, ...]) -> Conflict:
        hint = "resume it" if row.state == "PAUSED" else f"only one that is {', '.join(states)} can be"
        return Conflict(
            f"backfill {row.id} cannot be {what}: it is {row.state}", hint=hint, backfill=row.id, state=row.state
        )

    def _create(self, parts: TenantParts, planned: Planned, options: BackfillOptions) -> Backfill:
        id = f"bf-{self._context.entropy.random_bytes(8).hex()}"
        asked = {
            "tenant": parts.tenant,
            "id": id,
            "kind": planned.plan.kind.value,
            "scope": dump_scope(planned.plan.scope),
            "options": dump_options(options),
            "plan": planned.plan.dump(),
        }

        def add(tx: Transaction) -> None:
            number = tx.value("add_backfill", **asked, now=database_clock(tx))
            shards = [(number, place, *shard[1:7]) for place, shard in enumerate(planned.shards)]
            tx.execute_many("add_backfill_shard", shards)
            hit(BEFORE_PLAN)

        self._engine.write(add)
        hit(AFTER_PLAN)
        return self.get(id)

    def _asked(
        self,
        scope: Scope,
        kind: Kind,
        *,
        mode: str = "full",
        rate: float | None = None,
        page: int | None = None,
    ) -> tuple[BackfillScope, BackfillKind, BackfillOptions]:
        try:
            wanted = BackfillKind(kind)
        except ValueError:
            kinds = ", ".join(each.value for each in BackfillKind)
            raise Invalid(f"there is no backfill {kind!r}", hint=f"there are {kinds}") from None
        compiled = parse_mode(mode, (CompileMode.FULL, CompileMode.AUTO))
        chosen = read_scope(scope, self._settings.tenant)
        check_scope(chosen, wanted)
        return chosen, wanted, BackfillOptions(self._settings.backfill_page if page is None else page, rate, compiled)

    def _parts(self, scope: BackfillScope) -> TenantParts:
        assert scope.tenant is not None
        self._context.tenant_number(scope.tenant)
        return self._open_tenant(scope.tenant)

    def _row(self, id: str) -> BackfillRow:
        found = None
        if isinstance(id, str) and id.isascii() and "\0" not in id:
            found = self._engine.row(BackfillRow.of, "backfill", id=id)
        if found is None:
            raise NotFound(f"there is no backfill {id!r}", hint="`backfill list` shows all", backfill=id)
        return found

    def _told(self, row: BackfillRow) -> Backfill:
        kind, scope, errors = BackfillKind(row.kind), load_scope(row.scope), list[ErrorRow]()
        if row.counts.failed:
            errors = self._engine.rows(ErrorRow, "backfill_errors", backfill=row.number, limit=SHOWN_ERRORS)
        return Backfill(
            row.id,
            row.tenant_name,
            kind,
            scope,
            load_options(row.options),
            row.state,  # type: ignore[arg-type]
            row.reason,
            load_plan(row.plan, kind, scope),
            row.total,
            row.counts,
            tuple(errors),
            row.holder,
            moment(row.created_at_us),
            None if row.started_at_us is None else moment(row.started_at_us),
            None if row.finished_at_us is None else moment(row.finished_at_us),
        )

    def _pages(
        self, calls: CallExecutor, parts: TenantParts, work: Callable[[TenantParts, _Call], _Answer]
    ) -> Callable[[_Call], _Answer]:
        """Works on a page here or, where calls run apart, in another process."""
        if calls.apart:
            return functools.partial(self._remote.page, self._remote.place(), parts.tenant_name, work)
        return functools.partial(work, parts)
