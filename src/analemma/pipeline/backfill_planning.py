"""Plans: which entities a backfill has, counted without reading them; and dry runs, which tell what would change."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from analemma.catalog.entities.backfills import (
    BackfillEntity,
    Counts,
    ScopeCounts,
    ShardRow,
    scope_page,
)
from analemma.contracts.contract_set import ContractSet
from analemma.executors.port import Call, CallExecutor, Next
from analemma.pipeline.backfill_compiling import START
from analemma.pipeline.backfill_evaluating import Changed, DryAnswer, DryCall, DryRunner, joins_within
from analemma.pipeline.backfill_letters import LETTERS_START, letters_after, read_lane
from analemma.pipeline.backfill_parts import TenantParts
from analemma.pipeline.backfill_reports import SAMPLES, BackfillPlan, Sample, TypePlan
from analemma.pipeline.backfill_scope import (
    BackfillKind,
    BackfillOptions,
    BackfillScope,
    choice_of,
    scope_types,
    sinks_of,
)
from analemma.slicing.entity_key import EntityKey

SHARDS: Final = 64
"""So many workers at most can be at one entity type."""
LETTERS_PAGE: Final = 1000
NOTHING: Final = ScopeCounts(0, 0, 0, 0, 0, 0)

DryPage = Callable[[DryCall], DryAnswer]


@dataclass(frozen=True)
class Planned:
    """A plan, and the shards that it is carried out in."""

    plan: BackfillPlan
    shards: tuple[ShardRow, ...]


def make_plan(parts: TenantParts, scope: BackfillScope, kind: BackfillKind, options: BackfillOptions) -> Planned:
    """Count what there is, by rows alone."""
    if kind is BackfillKind.DEAD_LETTERS:
        return _letters_plan(parts, scope)
    contracts = parts.contracts()
    types: list[TypePlan] = []
    shards: list[ShardRow] = []
    samples: list[Sample] = []
    with parts.engine.snapshot() as tx:
        for level, each in enumerate(scope_types(scope, kind, contracts)):
            choice = choice_of(scope, kind, each, contracts)
            # By rows alone: no body is read.
            (counted,) = tx.all("backfill_counts", tenant=parts.tenant, **choice.columns())
            there = ScopeCounts(*map(int, counted))
            wanted = max(1, min(SHARDS, -(-there.entities // options.page)))
            # First and last number of the entities chosen, and how many: about the same count in each.
            rows = tx.all("backfill_ranges", tenant=parts.tenant, ranges=wanted, **choice.conditions())
            ranges = [tuple(map(int, row)) for row in rows]
            shards += [ShardRow(0, level, each, first, last, count, START) for first, last, count in ranges]
            types.append(_type_plan(scope, kind, contracts, each, there, sum(count for _, _, count in ranges)))
            if ranges and len(samples) < SAMPLES:
                first, last = ranges[0][0], ranges[-1][1]
                page = scope_page(tx, parts.tenant, choice, first=first, last=last, limit=SAMPLES)
                samples += [Sample(str(EntityKey(each, parts.tenant_name, one.key)), _why(one, scope)) for one in page]
    plan = BackfillPlan(
        kind,
        scope,
        tuple(types),
        total=sum(each.selected for each in types),
        requested=sum(each.selected * len(each.sinks) for each in types) if kind.ships else 0,
        raw_bytes=sum(each.there.raw_bytes for each in types),
        samples=tuple(samples[:SAMPLES]),
    )
    return Planned(plan, tuple(shards) or (ShardRow(0, 0, "", 0, 0, 0, START),))


def dry_run(
    parts: TenantParts,
    planned: Planned,
    options: BackfillOptions,
    executor: CallExecutor,
    page: DryPage,
    tell: Callable[[Counts], None],
) -> BackfillPlan:
    """The plan, with what a run would change. Where entities join others of the scope, they are gone through one after
    the other, here; otherwise by the executor."""
    plan = planned.plan
    if plan.kind is BackfillKind.DEAD_LETTERS:
        return plan
    changed: Changed | None = None
    if plan.kind.compiles and joins_within([each.type for each in plan.types], parts.contracts()):
        changed = Changed()
    counts, samples = Counts(), list[Sample]()
    answers = (
        _over_executor(planned, options, executor, page)
        if changed is None
        else _one_by_one(planned, options, DryRunner(parts, changed).page)
    )
    for answer in answers:
        counts = counts.plus(answer.counts)
        samples += answer.samples[: SAMPLES - len(samples)]
        tell(answer.counts)
    exact = changed is None or changed.complete
    return replace(plan, changes=counts, requested=counts.requested, samples=tuple(samples), exact=exact)


def _one_by_one(planned: Planned, options: BackfillOptions, page: DryPage) -> Iterator[DryAnswer]:
    for call in _calls(planned, options):
        following: int | None = call.first
        while following is not None:
            answer = page(replace(call, first=following))
            yield answer
            following = answer.next


def _over_executor(
    planned: Planned, options: BackfillOptions, executor: CallExecutor, page: DryPage
) -> Iterator[DryAnswer]:
    waiting = deque(_calls(planned, options))

    def source() -> Call | Next:
        if not waiting:
            return Next.OVER
        call = waiting.popleft()
        return Call(page, (call,), call)

    for outcome in executor.run(source):
        answer: DryAnswer = outcome.get()
        if answer.next is not None:
            waiting.append(replace(outcome.call.tag, first=answer.next))
        yield answer


def _calls(planned: Planned, options: BackfillOptions) -> list[DryCall]:
    plan = planned.plan
    return [
        DryCall(plan.kind, plan.scope, options, shard.type, shard.first, shard.last)
        for shard in planned.shards
        if shard.total
    ]


def _type_plan(
    scope: BackfillScope,
    kind: BackfillKind,
    contracts: ContractSet,
    entity_type: str,
    there: ScopeCounts,
    selected: int,
) -> TypePlan:
    ruleset = contracts.find_ruleset(entity_type)
    return TypePlan(
        entity_type,
        selected,
        there,
        None if ruleset is None else str(ruleset.ref),
        "" if ruleset is None else ruleset.fingerprint,
        sinks_of(scope, entity_type, contracts) if kind.ships else (),
    )


def _why(entity: BackfillEntity, scope: BackfillScope) -> str:
    if entity.newest_compiled is None:
        return "was never compiled"
    if entity.newest_compiled != entity.newest_raw:
        return "has a newer version than was compiled"
    return "was compiled by other rules" if scope.stale else "is compiled"


def _letters_plan(parts: TenantParts, scope: BackfillScope) -> Planned:
    total, samples, more = 0, list[Sample](), True
    after = read_lane(parts.tenant, LETTERS_START)
    while more:
        letters, after, more = letters_after(parts, scope, after, LETTERS_PAGE)
        total += len(letters)
        samples += [
            Sample(each.lane.aggregate_id, f"{each.type}: {each.failure_reason}")
            for each in letters[: SAMPLES - len(samples)]
        ]
    changes = Counts(done=total, changed=total)
    plan = BackfillPlan(BackfillKind.DEAD_LETTERS, scope, (), total, 0, 0, tuple(samples), changes)
    return Planned(plan, (ShardRow(0, 0, "", 0, 0, total, LETTERS_START),))
