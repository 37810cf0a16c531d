"""Tasks: one item of a `for_each`, or one branch of a `parallel_group`. Each is walked by the plan of its own, on the
state that its group began with, and recorded when it is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from analemma.canon.nodes import Block, BlockId
from analemma.canon.pointer import Operation
from analemma.catalog.port import BranchKey, OutboxEvent
from analemma.catalog.runs.effects import RunRecords, TaskRow
from analemma.catalog.runs.runs import FencedOut, RunRow
from analemma.errors import Denied, Timeout, Unavailable
from analemma.flows.branch_merging import BranchChange
from analemma.flows.calling import Caller
from analemma.flows.context import Cancelled, Facts
from analemma.flows.effects import AskHuman, SegmentEffects
from analemma.flows.handlers import Handlers
from analemma.flows.naming import path_tokens
from analemma.flows.nodes import ForEachNode
from analemma.flows.partitioning import task_plans
from analemma.flows.run_kernel import ReadyPlan
from analemma.flows.runs import error_of
from analemma.flows.segment_running import Ended, NodeFailed, ReadyNode, SegmentRun, SegmentRunner, ready_nodes
from analemma.flows.segments import Segment
from analemma.flows.store_errors import StoreAway, is_time_over
from analemma.flows.task_results import TaskResult, recorded
from analemma.flows.walking import Position, advance, begin, iterations_at
from analemma.flows.working_state import WorkingState

if TYPE_CHECKING:
    from analemma.flows.held_runs import RunnerParts

RECORD_S: Final = 0.2
"""Tasks of a batch are recorded together, but none waits longer than this for those behind it."""


class Group:
    """The node of a group, what its members may see, and the plans of its tasks."""

    def __init__(self, segment: Segment) -> None:
        self.nodes = nodes = ready_nodes(segment)
        """Its own, and those of all members."""
        self.id = segment.id
        self.config = segment.config
        self.ready: ReadyNode = nodes[0]
        self.node: Any = nodes[0].node
        self.ring = segment.ring
        self.visible = frozenset[str]().union(*(each.fields for each in nodes))
        self.plans = tuple((name, ReadyPlan(plan)) for name, plan in task_plans(segment.config).items())

    @property
    def branches(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(name for name, _ in self.plans)


@dataclass(frozen=True, slots=True)
class Failure:
    """A task failed, and its run with it."""

    item: int
    error: Exception
    node: str | None = None
    attempts: int = 1
    effect: str | None = None
    """What was begun, and nobody knows whether it happened."""

    def throw(self) -> None:
        """Raise it, as the node's own failure where there is one."""
        if self.node is None:
            raise self.error
        raise NodeFailed(self.node, self.attempts, self.effect) from self.error


@dataclass(frozen=True, slots=True)
class Question:
    """A task cannot go on before somebody has said whether an effect happened."""

    key: str
    name: str
    node: str

    def throw(self) -> None:
        """Ask."""
        raise AskHuman(self.key, self.name, self.node)


@dataclass(frozen=True, slots=True)
class Away:
    """The store did not answer a task. Nothing of the run is known to be wrong."""

    message: str
    late: bool = False
    """Whether it answered, but not in time."""
    at_once: bool = True
    """Whether whoever looks next may go on with the run."""

    def throw(self) -> None:
        """Raise it, as if the run itself had not been answered."""
        kind = Timeout if self.late else Unavailable
        error = kind(self.message, hint="the run goes on where it stands, when the store is there again")
        raise StoreAway(error, at_once=self.at_once)


def away(error: StoreAway | Unavailable | Timeout) -> Away:
    """What a task hands on of what the store did not answer."""
    if not isinstance(error, StoreAway):
        error = StoreAway(error, at_once=not isinstance(error, Timeout))
    return Away(error.error.message, isinstance(error.error, Timeout), error.at_once)


Problem = Failure | Question | Away


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """How a batch ended. Results are in the store, and not here: they may be of any size."""

    problem: Problem | None = None


@dataclass(slots=True)
class GroupRun:
    """One execution of a group: what its tasks need, in whatever process they run. Safe to share between threads."""

    parts: RunnerParts
    row: RunRow
    group: Group
    facts: Facts
    seq: int
    state: WorkingState
    """What all tasks begin with; unchanged."""
    handlers: Handlers
    stopping: Callable[[], bool]
    deadline: float | None = None
    fresh: bool = False
    inner: dict[str, Group] = field(default_factory=dict)
    """Groups inside of tasks."""
    given_up: bool = False
    """Whether another task failed: batches end with the task at hand."""

    @property
    def rows(self) -> RunRecords:
        """Where its tasks are recorded."""
        return RunRecords(self.parts.engine, self.parts.tenant, self.row)

    def run_batch(self, items: Sequence[int]) -> BatchAnswer:
        """Run tasks one after the other, and record each; the first problem ends the batch."""
        clock = self.parts.clock
        done: list[tuple[int, TaskResult, int]] = []
        problem: Problem | None = None
        since = clock.monotonic()
        with Caller(clock) as caller:
            for item in items:
                walk = TaskWalk(self, caller)
                try:
                    result = walk.task(self.group, self.facts, self.group.id, self.state, item)
                except (Cancelled, FencedOut):
                    raise
                except AskHuman as asked:
                    problem = Question(asked.key, asked.name, asked.node)
                except NodeFailed as exc:
                    cause = exc.__cause__ if isinstance(exc.__cause__, Exception) else exc
                    problem = Failure(item, cause, exc.node, exc.attempts, exc.effect)
                except (StoreAway, Unavailable, Timeout) as exc:
                    # Not from a node, whose errors are NodeFailed.
                    problem = Failure(item, exc) if is_time_over(exc) else away(exc)
                except Exception as exc:
                    problem = Failure(item, exc)
                else:
                    done.append((item, result, walk.attempts))
                if problem is not None or self.given_up:
                    break
                if clock.monotonic() - since > RECORD_S:
                    problem = self._record(done, None)
                    if problem is not None:
                        return BatchAnswer(problem)
                    done, since = [], clock.monotonic()
        return BatchAnswer(self._record(done, problem))

    def group_in(self, segment: Segment) -> Group:
        """A group inside of a task, read once."""
        found = self.inner.get(segment.id)
        if found is None:
            found = self.inner[segment.id] = Group(segment)
        return found

    def _record(self, done: Sequence[tuple[int, TaskResult, int]], problem: Problem | None) -> Problem | None:
        """Record what tasks came to; the problem with them, which may be that they could not be recorded."""
        try:
            self._write(done, problem)
            return problem
        except (Unavailable, Timeout) as exc:
            return away(exc)

    def _write(self, done: Sequence[tuple[int, TaskResult, int]], problem: Problem | None) -> None:
        parts, row = self.parts, self.row
        blocks: dict[BlockId, Block] = {}
        rows: list[TaskRow] = []
        for item, result, attempts in done:
            made = recorded(parts.kernel.trees, result)
            blocks.update({block.id: block for block in made.blocks})
            rows.append(TaskRow(item, "DONE", made.root.id, attempts=attempts))
        if isinstance(problem, Failure):
            told = error_of(problem.error, self.group.id, problem.node, problem.attempts, problem.effect)
            rows.append(TaskRow(problem.item, "FAILED", None, told.to_text(), problem.attempts))
        if not rows:
            return
        prepared = parts.blocks.prepare(tuple(blocks.values()), BranchKey(row.owner, row.workflow), row.execution)
        self.rows.put_tasks(self.seq, rows, prepared)


class TaskWalk:
    """Walks one task, and whatever groups stand inside of it, in the thread that calls it."""

    def __init__(self, group: GroupRun, caller: Caller) -> None:
        self._run = group
        self._caller = caller
        self._chance = Random(int.from_bytes(group.parts.entropy.random_bytes(8), "big"))
        self.attempts = 1
        """Of the node that was tried the most."""
        self.branches: dict[str, list[tuple[BranchChange, TaskResult]]] = {}
        """What branches of groups inside came to, until they are merged."""

    def task(self, group: Group, facts: Facts, path: str, state: WorkingState, item: int) -> TaskResult:
        """Run one item, or one branch by its number."""
        facts = replace(facts, item_index=item)
        working = state.copy()
        if isinstance(group.node, ForEachNode):
            return self._item(group, group.node, facts, path, working, item)
        name, plan = group.plans[item]
        events = self._walk(plan, f"{path}/{name}", facts, working)
        return TaskResult(tuple(events), operations=tuple(working.changes()), base=state.manifest.hex())

    def group_in(self, segment: Segment) -> Group:
        """A group inside of the task."""
        return self._run.group_in(segment)

    def _item(
        self, group: Group, node: ForEachNode, facts: Facts, path: str, state: WorkingState, item: int
    ) -> TaskResult:
        value = state.trees.get(state.root.id, (*path_tokens(node.over), str(item)))
        own = (node.item, node.index)
        state.apply([Operation("put", (node.item,), value), Operation("put", (node.index,), item)])
        begun = state.root.id
        events = self._walk(group.plans[0][1], f"{path}/body", facts, state)
        trees, root = state.trees, state.root.id
        changed = {each.path[0] for each in trees.diff(begun, root)}
        wanted: list[tuple[str, ...]]
        if node.result is None:
            wanted = [(name,) for name in sorted(changed - set(own))]
            found = trees.get_many(root, wanted)
            return TaskResult(tuple(events), {name: found[name,] for (name,) in wanted if (name,) in found})
        tokens = path_tokens(node.result)
        # What nobody in the group may see does not get out of it either.
        allowed = tokens[0] in changed | group.visible | set(own)
        found = trees.get_many(root, [tokens]) if allowed else {}
        return TaskResult(tuple(events), found.get(tokens))

    def _walk(self, ready: ReadyPlan, path: str, facts: Facts, state: WorkingState) -> list[OutboxEvent]:
        plan, events = ready.plan, list[OutboxEvent]()
        position = begin(plan)
        while position.at is not None:
            segment = plan.segment(position.at)
            run = self._segment_run(ready, segment, position, f"{path}/{segment.id}", facts, state)
            run.check()
            ending = self._runner_of(segment)(run)
            if not isinstance(ending, Ended):
                raise Denied(
                    f"{segment.id} stands inside of {self._run.group.id}, where nothing can wait",
                    hint="wait before or behind the group",
                )
            events += run.events
            self.attempts = max(self.attempts, run.attempts)
            position = advance(plan, position, ending.outcome)
        return events

    def _segment_run(
        self, ready: ReadyPlan, segment: Segment, position: Position, path: str, facts: Facts, state: WorkingState
    ) -> SegmentRun:
        work, parts, row = self._run, self._run.parts, self._run.row
        facts = replace(facts, iterations=(*facts.iterations, *iterations_at(ready.plan, position)))
        effects = SegmentEffects(
            work.rows,
            facts,
            path=path,
            tenant=parts.tenant_name,
            trees=parts.kernel.trees,
            blocks=parts.blocks,
            clock=parts.clock,
            entropy=parts.entropy,
            fresh=work.fresh,
        )
        return SegmentRun(
            ready.plan,
            segment,
            position,
            ready.nodes_of(segment),
            facts,
            state,
            effects,
            work.handlers,
            self._caller,
            parts.clock,
            self._chance,
            work.stopping,
            deadline=work.deadline,
            row=row,
            parts=parts,
            within=self,
            path=path,
        )

    def _runner_of(self, segment: Segment) -> SegmentRunner:
        found = self._run.parts.segment_runners.get(segment.type)
        if found is None:
            raise Denied(
                f"segment {segment.id} is of the type {segment.type}, which nothing here runs",
                hint="run it with a version of the program that knows it",
                segment=segment.id,
            )
        return found
