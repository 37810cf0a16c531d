"""What `for_each` and `parallel` segments do, and the merge behind the latter.

Tasks are handed out, recorded wherever they run, and put together in the order of items or branches, never in that of
their ends."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from math import ceil
from typing import Any, Final

from analemma.canon.nodes import BlockId, wire_link
from analemma.canon.pointer import Operation
from analemma.canon.read import MISSING, container_kind
from analemma.catalog.runs.runs import FencedOut
from analemma.errors import Internal, Invalid, Limit, Unavailable
from analemma.executors.port import AHEAD, THREADS, Call, CallExecutor, Next, resolve_executor
from analemma.flows.branch_merging import BranchChange, merge_branches, strategies_of
from analemma.flows.context import Cancelled
from analemma.flows.naming import path_tokens
from analemma.flows.nodes import ForEachNode
from analemma.flows.remote_tasks import batch_call
from analemma.flows.segment_running import Ended, Ending, NodeFailed, SegmentRun
from analemma.flows.segments import Segment
from analemma.flows.task_results import TaskResult, events_of, read_results
from analemma.flows.tasks import Away, BatchAnswer, Failure, Group, GroupRun, Problem
from analemma.flows.working_state import WorkingState, check_writes

FEW: Final = 10
"""So many tasks are handed out one by one; more, in batches."""
LARGEST_BATCH: Final = 100
ROUNDS: Final = 4
"""Batches for each that runs at a time: the last of them do not keep all others waiting."""

log = logging.getLogger("analemma.flows")


def run_for_each(run: SegmentRun) -> Ending:
    """The body for each item, and the list of what they came to."""
    group = _group(run, run.segment)
    node = group.node
    if not isinstance(node, ForEachNode):
        raise Invalid(f"segment {run.segment.id} is not what its type says", segment=run.segment.id)
    results = _results(run, group, _item_count(run, group, node), run.position.executed)
    operations = [Operation("put", (node.target,), [result.value for result in results])]
    check_writes(group.ready.config, run.segment.ring, operations)
    run.state.apply(operations)
    run.events += events_of(results)
    return Ended()


def run_parallel(run: SegmentRun) -> Ending:
    """All branches. What they changed is the merge's, which follows."""
    group = _group(run, run.segment)
    results = _results(run, group, len(group.plans), run.position.executed)
    if run.within is not None:
        run.within.branches[group.id] = list(zip(_changes(run, group, results), results, strict=True))
    return Ended()


def merge_group(run: SegmentRun, of: str) -> None:
    """Merge what the branches of a group changed, by the strategies of the merge segment."""
    if run.within is not None:
        known = run.within.branches.pop(of)
        changes, results = [change for change, _ in known], [result for _, result in known]
    else:
        group = _group(run, run.plan.segment(of))
        work = _work(run, group, run.position.executed)
        seq = work.rows.group_seq(of, run.position.executed)
        # Recorded already, unless the run begins again with the merge: then the branches run again.
        results = _results(run, group, len(group.plans), run.position.executed if seq is None else seq)
        changes = _changes(run, group, results)
    merge_branches(run.state, changes, strategies_of(run.segment.config["merge"]))
    run.events += events_of(results)


def batches_of(items: Sequence[int], slots: int) -> list[tuple[int, ...]]:
    """Items, as they are handed out.

    >>> batches_of(range(3), 4), [len(batch) for batch in batches_of(range(60), 4)][:3]
    ([(0,), (1,), (2,)], [4, 4, 4])
    """
    size = 1 if len(items) <= FEW else min(LARGEST_BATCH, ceil(len(items) / (slots * ROUNDS)))
    return [tuple(items[start : start + size]) for start in range(0, len(items), size)]


def _group(run: SegmentRun, segment: Segment) -> Group:
    return Group(segment) if run.within is None else run.within.group_in(segment)


def _work(run: SegmentRun, group: Group, seq: int, *, fresh: bool = False) -> GroupRun:
    if run.parts is None or run.row is None:
        raise Internal(f"the group {group.id} is run without a store")
    # A copy: what the segment does later is not what its tasks began with.
    return GroupRun(
        run.parts, run.row, group, run.facts, seq, run.state.copy(), run.handlers, run.stopping, run.deadline, fresh
    )


def _results(run: SegmentRun, group: Group, count: int, seq: int) -> list[TaskResult]:
    """What all tasks of a group came to: those that were recorded before, and those that are run now."""
    if run.within is not None:
        path = f"{run.path}@{run.facts.item_index}"
        return [run.within.task(group, run.facts, path, run.state, item) for item in range(count)]
    fresh = run.fresh and seq == run.position.executed
    work = _work(run, group, seq, fresh=fresh)
    known = {} if fresh else work.rows.tasks(seq)
    left = [item for item in range(count) if item not in known or known[item].status != "DONE"]
    if left:
        _run_tasks(run, work, left)
        known = work.rows.tasks(seq)
    roots: list[BlockId] = []
    for item in range(count):
        row = known.get(item)
        if row is None or row.root is None:
            raise Internal(f"task {item} of {group.id} ended, and is not recorded", segment=group.id, item=item)
        roots.append(row.root)
    return read_results(work.parts.kernel.trees, roots)


def _run_tasks(run: SegmentRun, work: GroupRun, left: Sequence[int]) -> None:
    """Run tasks on whatever the caller named, by default threads; raise what one of them could not get over."""
    said = [each for each in (work.group.node.max_parallel, run.max_parallel) if each is not None]
    most = min(said, default=None)
    with ExitStack() as stack:
        executor = _executor(run, work.group, most, len(left))
        if executor is not run.executor:
            stack.callback(executor.close)
        slots = executor.slots if most is None else min(most, executor.slots)
        _hand_out(run, work, executor, batches_of(left, slots), most)


def _executor(run: SegmentRun, group: Group, most: int | None, count: int) -> CallExecutor:
    if run.executor is None:
        return resolve_executor(f"threads:{max(1, min(most or THREADS, count, LARGEST_BATCH))}")
    try:
        return resolve_executor(run.executor)
    except Unavailable as exc:
        # What is to run the tasks, and not the store, which would let go of the run.
        raise NodeFailed(group.id, 1) from exc


def _hand_out(
    run: SegmentRun, work: GroupRun, executor: CallExecutor, batches: Iterable[tuple[int, ...]], most: int | None
) -> None:
    rest = iter(batches)
    problems: list[Problem] = []
    errors: list[BaseException] = []
    call = batch_call(work, executor) if executor.apart else None

    def source() -> Call | Next:
        # After a problem nothing more begins, and what has begun is recorded.
        if problems or errors or run.stopping():
            return Next.OVER
        for batch in rest:
            return Call(work.run_batch, (batch,), batch) if call is None else call(batch)
        return Next.OVER

    ahead = executor.slots * AHEAD
    try:
        for outcome in executor.run(source, ahead=ahead if most is None else min(most, ahead)):
            if outcome.error is not None:
                errors.append(outcome.error)
            elif isinstance(outcome.result, BatchAnswer) and outcome.result.problem is not None:
                problems.append(outcome.result.problem)
            work.given_up = bool(problems or errors)
    except Unavailable as exc:
        errors.append(exc)
    for error in errors:
        if isinstance(error, Cancelled | FencedOut):
            raise error
    run.check()
    for error in errors:
        if isinstance(error, Unavailable):
            # What runs the tasks is away, not the store: that is a problem of theirs.
            raise NodeFailed(work.group.id, 1) from error
        raise error
    for problem in sorted(problems, key=_order):
        if isinstance(problem, Failure):
            log.warning("task %d of %s failed: %s", problem.item, work.group.id, problem.error)
        problem.throw()


def _order(problem: Problem) -> tuple[int, int]:
    """Which of several problems is told: the first failure; else that the store was away; and a question only where
    there is nothing else."""
    if isinstance(problem, Failure):
        return 0, problem.item
    return (1, 0) if isinstance(problem, Away) else (2, 0)


def _changes(run: SegmentRun, group: Group, results: Sequence[TaskResult]) -> list[BranchChange]:
    """What the branches changed, each with what it began with: after a crash they may have begun with different
    versions."""
    bases: dict[str, WorkingState] = {run.state.manifest.hex(): run.state.copy()}
    made = []
    for name, result in zip(group.branches, results, strict=True):
        if result.base is None:
            raise Internal(f"the branch {name} of {group.id} does not say what it began with", segment=group.id)
        if result.base not in bases:
            assert run.parts is not None
            bases[result.base] = run.parts.kernel.state_of(BlockId(bytes.fromhex(result.base)))
        made.append(BranchChange(name, bases[result.base], result.operations))
    return made


def _item_count(run: SegmentRun, group: Group, node: ForEachNode) -> int:
    tokens = path_tokens(node.over)
    found: Any = MISSING
    if tokens[0] in group.ready.fields:
        found = run.state.trees.open().wires([(run.state.root.id, tokens)])[0]
    if found is MISSING or container_kind(found) != "list":
        what = "nothing is there" if found is MISSING else "that is no list"
        raise Invalid(f"{node.id} goes over {node.over}, and {what}", hint="give it a list", node=node.id)
    link = wire_link(found)
    count = len(found) if link is None else link.count
    if count > node.max_items:
        raise Limit(f"{node.id} goes over {count} items", hint="raise max_items", limit=node.max_items, node=node.id)
    return count
