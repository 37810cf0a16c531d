"""One execution of one segment: its nodes, what they see, what they change, and how often they are tried."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field, TypeAdapter

from analemma.bag.bag import SmartStateBag
from analemma.catalog.port import OutboxEvent
from analemma.catalog.runs.runs import FencedOut, RunRow
from analemma.clock import Clock
from analemma.errors import Denied, Invalid, Timeout, Unavailable
from analemma.flows.calling import Caller, may_help, wait_before
from analemma.flows.conditions import Condition, holds
from analemma.flows.context import Cancelled, Context, Facts
from analemma.flows.effects import AttemptEffects, SegmentEffects
from analemma.flows.handlers import Handlers
from analemma.flows.nodes import AggregatorNode, AnyNode, PythonNode, SubflowNode, TriggerNode
from analemma.flows.runs import Waiting, said
from analemma.flows.segments import Plan, Segment
from analemma.flows.store_errors import StoreErrors, time_is_over
from analemma.flows.walking import DONE, Outcome, Position
from analemma.flows.working_state import WorkingState, check_writes, fields_of, operations_of

if TYPE_CHECKING:
    from analemma.flows.held_runs import RunnerParts
    from analemma.flows.tasks import TaskWalk

_NODES: Final[TypeAdapter[list[Any]]] = TypeAdapter(list[Annotated[AnyNode, Field(discriminator="type")]])

log = logging.getLogger("analemma.flows")

LONGEST_SLEEP_S: Final = 0.5
"""So long a wait for the next attempt takes no notice of anything."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The segment did what it does."""

    outcome: Outcome = DONE


@dataclass(frozen=True, slots=True)
class Waits:
    """Somebody has to decide before it can end."""

    waiting: Waiting
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Sleeps:
    """It is to be run again from its beginning, later."""

    seconds: float
    waiting: Waiting | None = None


@dataclass(frozen=True, slots=True)
class Follows:
    """Another run has to end before it can; nobody holds the run meanwhile."""

    waiting: Waiting
    child: int
    """The number of that run."""
    timeout_s: float | None = None
    """When somebody has to look if it has not ended."""


Ending = Ended | Waits | Sleeps | Follows


class NodeFailed(Exception):
    """A node failed, and is not tried again; the cause says why."""

    def __init__(self, node: str, attempts: int, effect: str | None = None) -> None:
        super().__init__(f"node {node} failed")
        self.node = node
        self.attempts = attempts
        self.effect = effect
        """What it had begun, and nobody knows whether it happened."""


class TryLater(Exception):
    """A node failed, and is tried again after longer than anybody should hold the run."""

    def __init__(self, node: str, attempt: int, seconds: float) -> None:
        super().__init__(f"node {node} is tried again in {seconds:g} s")
        self.node = node
        self.attempt = attempt
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class ReadyNode:
    """A node of a verified configuration, and what it may see."""

    node: Any
    config: Mapping[str, Any]
    fields: frozenset[str]


def ready_nodes(segment: Segment) -> tuple[ReadyNode, ...]:
    """The nodes of a segment; none, if it stands for none."""
    if segment.automatic:
        return ()
    configs = segment.config["nodes"]
    try:
        nodes = _NODES.validate_python([dict(config) for config in configs])
    except ValueError as exc:
        raise Denied(
            f"segment {segment.id} has a node that cannot be run: {exc}",
            hint="run it with a version of the program that knows it",
            segment=segment.id,
        ) from exc
    return tuple(
        ReadyNode(node, config, fields_of(config, segment.ring)) for node, config in zip(nodes, configs, strict=True)
    )


@dataclass(slots=True)
class SegmentRun:
    """What a segment's type needs to do its work. `state` and `events` are what its commit will hold."""

    plan: Plan
    segment: Segment
    position: Position
    nodes: tuple[ReadyNode, ...]
    facts: Facts
    state: WorkingState
    effects: SegmentEffects
    handlers: Handlers
    caller: Caller
    clock: Clock
    chance: Random
    stopping: Callable[[], bool]
    """Whether the run was cancelled, or is somebody else's by now."""
    deadline: float | None = None
    """When the run has to be over, as the clock's `monotonic` tells time."""
    longest_wait_s: float = float("inf")
    """A node that is to be tried again later than this is left to whoever looks then."""
    first_attempt: Mapping[str, int] = field(default_factory=dict)
    """Of nodes that were tried before somebody let go of the run."""
    trigger: Mapping[str, Any] | None = None
    executor: Any = None
    """What runs parallel tasks, if the caller named it."""
    row: RunRow | None = None
    """The run as it was when it was taken: its number, incarnation and fence, for what is recorded task by task."""
    parts: RunnerParts | None = None
    """The store, for segments whose nodes run elsewhere."""
    fresh: bool = False
    """Whether it has never begun before, so that nothing of it can be recorded."""
    waiting: Waiting | None = None
    """What the run waited for in this segment when it was taken."""
    here: bool = False
    """Whether whoever runs this also runs what it begins."""
    begun: tuple[RunRow, Any] | None = None
    """The run that it has begun, held by us, and where that stands."""
    max_parallel: int | None = None
    """How many tasks of a group may run at a time, if the document says."""
    within: TaskWalk | None = None
    """Inside of a task: what walks it."""
    path: str = ""
    """Inside of a task: where, from the run's own segment on."""
    events: list[OutboxEvent] = field(default_factory=list)
    message: str | None = None
    attempts: int = 1
    """Of the node that was tried the most."""

    def check(self) -> None:
        """Raise Cancelled or Timeout if the run is not to go on."""
        if self.stopping():
            raise Cancelled(f"the run {self.facts.execution_id} does not go on here")
        if self.deadline is not None and self.clock.monotonic() > self.deadline:
            raise time_is_over(self.facts.execution_id)

    def view(self, ready: ReadyNode, store: StoreErrors | None = None) -> SmartStateBag:
        """The state as a node may see it."""
        return self.state.view(ready.fields, store)

    def run_node(self, ready: ReadyNode) -> None:
        """Run a node, again where that may help, and apply what it changes; NodeFailed if nothing helps, StoreAway if
        nothing is known to be wrong with it."""
        node = ready.node
        attempt = self.first_attempt.get(node.id, 1)
        while True:
            self.check()
            self.attempts = max(self.attempts, attempt)
            effects = self.effects.attempt(node.id)
            try:
                self._try(ready, attempt, effects)
                return
            except (Cancelled, FencedOut):
                raise
            except Exception as exc:
                if attempt > node.retries.times or not may_help(exc) or isinstance(exc, _NoHandler):
                    away = effects.store.found(exc)
                    if away is not None:
                        raise away from exc
                    cause = exc.error if isinstance(exc, _NoHandler) else exc
                    raise NodeFailed(node.id, attempt, effects.unknown) from cause
                seconds = wait_before(node.retries, attempt, self.chance)
                log.warning("node %s failed, and is tried again in %.2f s: %s", node.id, seconds, said(exc))
            attempt += 1
            if seconds > self.longest_wait_s:
                raise TryLater(node.id, attempt, seconds)
            self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        """In pieces, so that a run that was cancelled does not wait to the end."""
        while seconds > 0:
            self.clock.sleep(min(seconds, LONGEST_SLEEP_S))
            seconds -= LONGEST_SLEEP_S
            self.check()

    def holds(self, ready: ReadyNode, condition: Condition, number: int = 0) -> bool:
        """Whether the state, as a node may see it, fulfils a condition, which is that of this number among the node's:
        their effects are not each other's."""
        store = StoreErrors()
        asked = 0

        def ask(name: str) -> bool:
            nonlocal asked
            function = self.handlers.function(name, ready.node.id)
            effects = self.effects.attempt(ready.node.id, f"{number}.{asked}", store)
            context = self._context(ready, 1, effects)
            asked += 1
            try:
                answer = self.caller.call(function, bag, context, timeout_s=ready.node.timeout_s)
            except (Cancelled, FencedOut):
                raise
            except Exception as exc:
                if store.found(exc) is not None:
                    raise
                raise NodeFailed(ready.node.id, 1, effects.unknown) from exc
            self._settle(effects)
            if type(answer) is not bool:
                raise Invalid(
                    f"{name} answered a {type(answer).__name__}, and {ready.node.id} asks yes or no",
                    hint="return True or False",
                    node=ready.node.id,
                )
            return answer

        try:
            with store.asking():
                bag = self.view(ready, store)
            return holds(condition, bag, ask)
        except (Unavailable, Timeout) as exc:
            away = store.found(exc)
            if away is None:
                raise
            raise away from exc

    def _try(self, ready: ReadyNode, attempt: int, effects: AttemptEffects) -> None:
        function = self._function(ready.node)
        if function is None:
            return
        with effects.store.asking():
            bag = self.view(ready, effects.store)
        context = self._context(ready, attempt, effects)
        try:
            result = self.caller.call(function, bag, context, timeout_s=ready.node.timeout_s)
        finally:
            context.close()
            if effects.asked is not None:
                raise effects.asked
        operations, message = operations_of(ready.node.id, bag, result)
        check_writes(ready.config, self.segment.ring, operations)
        with effects.store.asking():
            self.state.apply(operations)
        self._settle(effects)
        self.message = message or self.message

    def _function(self, node: AnyNode) -> Callable[..., Any] | None:
        """What a node does; None: nothing."""
        try:
            if isinstance(node, PythonNode):
                return self.handlers.function(node.function, node.id)
            if isinstance(node, TriggerNode):
                return lambda state, ctx: {node.target: {"on": node.on, **(self.trigger or {})}}
            if isinstance(node, AggregatorNode):
                return None if node.function is None else self.handlers.function(node.function, node.id)
            return self.handlers.of_type(node.type, node.id)
        except Exception as exc:
            raise _NoHandler(exc) from exc

    def _context(self, ready: ReadyNode, attempt: int, effects: AttemptEffects) -> Context:
        limit = ready.node.timeout_s
        deadline = None if limit is None else self.clock.monotonic() + limit
        return Context(ready.node, self.facts, effects, attempt=attempt, deadline=deadline, stopping=self.stopping)

    def _settle(self, effects: AttemptEffects) -> None:
        """What an attempt that succeeded leaves behind."""
        if effects.asked is not None:
            raise effects.asked
        self.events += effects.events


class _NoHandler(Exception):
    """What a node does is not there, or not allowed: trying again does not help."""

    def __init__(self, error: Exception) -> None:
        super().__init__(said(error))
        self.error = error


SegmentRunner = Callable[[SegmentRun], Ending]


def missing_functions(handlers: Handlers, nodes: Sequence[ReadyNode]) -> Exception | None:
    """Why nodes cannot be run here, if they cannot: found out before anything of them runs."""
    for ready in nodes:
        try:
            for name in ready.node.functions():
                handlers.function(name, ready.node.id)
            if isinstance(ready.node, SubflowNode):
                handlers.document(ready.node.workflow, ready.node.id, ready.node.document)
        except Exception as exc:
            return exc
    return None
