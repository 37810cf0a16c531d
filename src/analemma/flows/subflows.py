"""Subflows: a segment that begins a run of another workflow, waits for its end without anybody holding it, and takes
over what it came to.

The child is found by its key, made of the parent, its incarnation, the segment and the iteration, so that a segment
which is run again finds the child that it began. Whoever ends a child wakes its parent in the same transaction; whoever
cancels a parent cancels its children in the same one. In every transaction the parent's row comes first."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final

from analemma.canon.pointer import Operation
from analemma.catalog.port import RowChange
from analemma.catalog.runs.runs import ENDED, SECOND_US, FencedOut, RunRow, SegmentRow
from analemma.errors import AnalemmaError, Conflict, Denied, Invalid, Limit, NotFound, Timeout, Unavailable
from analemma.failpoints import declare, hit
from analemma.flows.beginning import Asked, Beginning
from analemma.flows.calling import NEVER_AGAIN, wait_before
from analemma.flows.context import Cancelled
from analemma.flows.continuing import beginning_again, changed, moved, workflow_status
from analemma.flows.held_runs import RunnerParts
from analemma.flows.naming import path_tokens
from analemma.flows.nodes import SubflowNode
from analemma.flows.runs import SUBFLOW, RunError, Waiting, read_error
from analemma.flows.segment_running import Ended, Ending, Follows, NodeFailed, ReadyNode, SegmentRun
from analemma.flows.texts import MISSING, plain_data, value_at
from analemma.flows.working_state import check_writes
from analemma.state.arguments import MAIN

BEFORE_BEGIN = declare("subflow.before_begin", "a segment is about to begin a subflow, and nothing of it is there")
AFTER_BEGIN = declare("subflow.after_begin", "a subflow is begun, and its parent does not wait for it yet")
BEFORE_RESUME = declare("subflow.before_resume", "a subflow that failed is to be tried again, and nothing says so")

DEEPEST: Final = 10
"""So many runs may stand below each other."""
LONGEST_ITERATIONS: Final = 128


def child_key(row: RunRow, segment: str, iterations: tuple[int, ...]) -> str:
    """What names the child that a segment begins: its idempotency key and its workflow.

    The first incarnation of a run has no mark; each that follows has its number behind the run's."""
    parent = row.execution if row.incarnation == 1 else f"{row.execution}.{row.incarnation}"
    counted = ".".join(map(str, iterations)) or "0"
    if len(counted) > LONGEST_ITERATIONS:
        counted = sha256(counted.encode()).hexdigest()
    return f"{parent}/{segment}/{counted}"


def end_strays(parts: RunnerParts, row: RunRow) -> None:
    """End what earlier incarnations of a run began, if it goes on: what it comes to is nobody's any more.

    Whoever runs a run again does so behind the rollback, and may die between the two; then whoever takes up the run
    does. None of them is begun once the run has moved, so that those of its own incarnation are newer."""
    if row.incarnation == 1:
        return
    begun = parts.engine.all("run_children", run=row.number)
    strays = [number for number, key in begun if _incarnation(row, key) < row.incarnation]
    if strays:
        parts.rows.cancel_children(row.number, lambda key: workflow_status(parts, key, "IDLE"), last=strays[-1])


def _hold(row: RunRow) -> RowChange:
    """Beside what begins or ends another run: whoever does that still has this one."""
    return RowChange("hold_parent", {"run": row.number, "fence": row.fence})


def _incarnation(row: RunRow, key: str) -> int:
    """Which incarnation of a run began the child of a key."""
    return int(key.removeprefix(row.execution).partition("/")[0].removeprefix(".") or 1)


def run_subflow(run: SegmentRun) -> Ending:
    """Begin the child, wait for it, or take over what it came to."""
    if len(run.nodes) != 1 or not isinstance(run.nodes[0].node, SubflowNode):
        raise Invalid(f"segment {run.segment.id} is not what its type says", segment=run.segment.id)
    ready = run.nodes[0]
    try:
        if run.within is not None or run.row is None or run.parts is None:
            raise Denied(
                f"the subflow {ready.node.id} stands inside of a group, where nothing can wait",
                hint="run it before or behind the group",
                node=ready.node.id,
            )
        return _Subflow(run, ready, run.row, run.parts).go_on()
    except (Cancelled, FencedOut, Unavailable, Timeout, NodeFailed):
        # Unavailable and Timeout: of our own store. Those of the child are NodeFailed.
        raise
    except AnalemmaError as exc:
        raise NodeFailed(ready.node.id, run.attempts) from exc


class _Subflow:
    """One execution of a subflow's segment."""

    def __init__(self, run: SegmentRun, ready: ReadyNode, row: RunRow, parts: RunnerParts) -> None:
        self._run = run
        self._ready = ready
        self._node: SubflowNode = ready.node
        self._row = row
        self._parts = parts
        waiting = run.waiting
        is_known = waiting is not None and waiting.kind == SUBFLOW
        self._attempt = waiting.attempt if waiting is not None and is_known else 1
        self._counted_us = waiting.counted_us if waiting is not None and is_known else None

    def go_on(self) -> Ending:
        key = child_key(self._row, self._run.segment.id, self._run.facts.iterations)
        child = self._parts.rows.of_key(key)
        if child is None:
            return self._follow(self._begin(key))
        return self._look_at(child, key)

    def _look_at(self, child: RunRow, key: str) -> Ending:
        """What is to be done about a child that there is."""
        if child.parent != self._row.number:
            raise Conflict(
                f"the idempotency key {key} is that of another run",
                hint="keys of this form are for subflows",
                execution=child.execution,
            )
        self._run.attempts = self._attempt
        match child.status:
            case "COMPLETED":
                return self._take_over(child)
            case "CANCELLED":
                raise Conflict(
                    f"the subflow {child.name} ({child.execution}) was cancelled",
                    hint=f"rerun this run from {self._run.segment.id}: that begins another",
                    execution=child.execution,
                )
            case "FAILED":
                return self._after_failure(child)
            case _:
                if self._failed_before():
                    # Its time was up, or that of the run, which somebody has resumed since.
                    self._counted_us = self._row.updated_at_us
                return self._follow(child)

    def _begin(self, key: str) -> RunRow:
        """A run of its own, on a workflow of its own, of the document that the program has now."""
        node, row, parts = self._node, self._row, self._parts
        workflow = self._run.handlers.document(node.workflow, node.id, node.document)
        options = json.loads(row.options)
        depth = options.get("parent", {}).get("depth", 0) + 1
        if depth > DEEPEST:
            raise Limit(
                f"{node.workflow} would stand {depth} runs deep",
                hint="a subflow that runs itself, by way of others, needs an end",
                limit=DEEPEST,
            )
        given = self._given()
        beginning = Beginning(parts)
        asked = beginning.asked(
            workflow,
            given,
            workflow_id=key,
            owner_id=row.owner,
            branch=MAIN,
            idempotency_key=key,
            executor=None,
            mock=False,
            trigger=None,
            queue=row.queue,
            priority=row.priority,
        )
        kept = {name: options[name] for name in ("mock", "executor") if name in options}
        kept["parent"] = {"execution_id": row.execution, "segment_id": self._run.segment.id, "depth": depth}
        hit(BEFORE_BEGIN)
        child = self._born(beginning, replace(asked, options=kept, parent=row.number, beside=(_hold(row),)))
        hit(AFTER_BEGIN)
        return child

    def _born(self, beginning: Beginning, asked: Asked) -> RunRow:
        try:
            child, standing = beginning.begin(asked, here=self._run.here)
        except Conflict as exc:
            if exc.facts.get("statement") == "hold_parent":
                raise FencedOut(
                    "the run is somebody else's by now, or was cancelled", hint="look at where it stands"
                ) from exc
            raise
        if standing is not None and self._run.here:
            self._run.begun = child, standing
        return child

    def _given(self) -> dict[str, Any]:
        """The child's input, of what the node may see."""
        view = self._run.view(self._ready)
        given: dict[str, Any] = {}
        for field, path in self._node.inputs.items():
            value = value_at(view, path)
            if value is MISSING:
                raise NotFound(
                    f"the state has nothing at {path}, which {self._node.workflow} gets as {field}",
                    hint="a node before has to write it",
                    pointer=path,
                )
            given[field] = plain_data(value)
        return given

    def _take_over(self, child: RunRow) -> Ending:
        """Copy what the node wants of the child's last state."""
        node, kernel = self._node, self._parts.kernel
        state = kernel.state_of(child.head)
        wanted = {field: path_tokens(path) for field, path in node.outputs.items()}
        found = state.trees.get_many(state.root.id, list(wanted.values())) if wanted else {}
        for field, tokens in wanted.items():
            if tokens not in found:
                raise NotFound(
                    f"{node.workflow} ended without {node.outputs[field]}, which is to become {field}",
                    hint="mend its document, and rerun this run from the subflow",
                    pointer=node.outputs[field],
                    execution=child.execution,
                )
        operations = [Operation("put", (field,), found[tokens]) for field, tokens in wanted.items()]
        check_writes(self._ready.config, self._run.segment.ring, operations)
        self._run.state.apply(operations)
        return Ended()

    def _after_failure(self, child: RunRow) -> Ending:
        """Fail with it, unless it is to be tried again: because the node has retries left, or because somebody has
        resumed the parent, which failed with it before."""
        error = read_error(child.error) or RunError("error", "Error", "it failed")
        if self._failed_before():
            return self._try_again(child, 0.0, 1)
        may_help = not issubclass(_CLASSES.get(error.kind, AnalemmaError), NEVER_AGAIN)
        if self._attempt <= self._node.retries.times and may_help:
            seconds = wait_before(self._node.retries, self._attempt, self._run.chance)
            return self._try_again(child, seconds, self._attempt + 1)
        where = "" if error.node is None else f" in {error.node}"
        raise NodeFailed(self._node.id, self._attempt) from _CLASSES.get(error.kind, AnalemmaError)(
            f"the subflow {child.name} ({child.execution}) failed{where}: {error.message}",
            hint=_hint(child, error),
        )

    def _failed_before(self) -> bool:
        seq = self._run.position.executed
        place = {"run": self._row.number, "incarnation": self._row.incarnation, "after": seq - 1}
        found = self._parts.engine.rows(SegmentRow, "run_segments", **place, limit=1)
        return bool(found) and found[0].seq == seq and found[0].status == "FAILED"

    def _try_again(self, child: RunRow, seconds: float, attempt: int) -> Ending:
        hit(BEFORE_RESUME)
        try:
            again = moved(child, "RUNNING", from_status="FAILED", due_in_s=seconds)
            # The run that waits first: who of the two is somebody else's, the error says.
            self._parts.rows.move(
                _hold(self._row), *changed(self._parts, child, again), *beginning_again(self._parts, child)
            )
        except FencedOut as exc:
            if exc.facts.get("run") == self._row.number:
                raise
            # Somebody else has resumed it, or is about to.
        self._attempt = attempt
        self._counted_us = self._row.updated_at_us + round(seconds * SECOND_US)
        return self._follow(child)

    def _follow(self, child: RunRow) -> Ending:
        """Wait for its end, or until there is no time left."""
        node, left = self._node, list[float]()
        if node.timeout_s is not None:
            # As of the database, when the run was taken; a child that was begun since has all of its time. So has one
            # that nobody has begun: it is looked at again, no later than its time could be over.
            now_us = self._row.updated_at_us
            begun_us = now_us if child.begun_at_us is None else min(child.begun_at_us, now_us)
            left_s = node.timeout_s - (now_us - max(begun_us, self._counted_us or 0)) / SECOND_US
            if left_s <= 0 and child.status not in ENDED:
                return self._stop(child)
            left.append(left_s)
        if self._run.deadline is not None:
            left.append(max(0.0, self._run.deadline - self._run.clock.monotonic()) + 0.001)
        waiting = Waiting(
            SUBFLOW,
            self._run.segment.id,
            node.id,
            attempt=self._attempt,
            child=child.execution,
            counted_us=self._counted_us,
        )
        return Follows(waiting, child.number, min(left, default=None))

    def _stop(self, child: RunRow) -> Ending:
        """End a child whose time is over, whoever works on it; unless it has ended meanwhile, and then that counts."""
        parts, row = self._parts, self._row
        ended = parts.rows.cancel_children(row.number, lambda key: workflow_status(parts, key, "IDLE"), _hold(row))
        newest = parts.rows.get(child.execution)
        if child.number not in ended and newest is not None:
            return self._look_at(newest, child.idempotency_key or "")
        raise NodeFailed(self._node.id, self._run.attempts) from Timeout(
            f"the subflow {child.name} ({child.execution}) took longer than {self._node.timeout_s:g} s",
            hint="raise its timeout_s",
        )


def _hint(child: RunRow, error: RunError) -> str:
    if error.effect is not None:
        return f"find out, and resume {child.execution} with unknown='happened' or unknown='did not'; then this run"
    return error.hint or "resume this run: the subflow goes on from where it stands"


def _classes(above: type[AnalemmaError]) -> dict[str, type[AnalemmaError]]:
    found = {above.kind: above}
    for each in above.__subclasses__():
        if each.__module__ == AnalemmaError.__module__:
            found |= _classes(each)
    return found


_CLASSES: Final = _classes(AnalemmaError)
"""By the kind that a child's error is kept with."""
