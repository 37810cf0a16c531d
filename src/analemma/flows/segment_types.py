"""What each type of segment does."""

from __future__ import annotations

from typing import Final

from analemma.errors import Invalid, Limit
from analemma.flows.groups import merge_group, run_for_each, run_parallel
from analemma.flows.nodes import BranchNode, HumanNode, LoopNode
from analemma.flows.runs import HUMAN, Waiting
from analemma.flows.segment_running import Ended, Ending, ReadyNode, SegmentRun, SegmentRunner, Waits
from analemma.flows.subflows import run_subflow
from analemma.flows.texts import fill
from analemma.flows.walking import Again, Took


def run_steps(run: SegmentRun) -> Ending:
    """One node after the other."""
    for ready in run.nodes:
        run.run_node(ready)
    return Ended()


def run_branch(run: SegmentRun) -> Ending:
    """The first way whose condition holds, or the default."""
    ready = _only(run, BranchNode)
    for number, case in enumerate(ready.node.cases):
        if run.holds(ready, case.when, number):
            return Ended(Took(number))
    return Ended(Took(len(ready.node.cases)))


def run_loop(run: SegmentRun) -> Ending:
    """Whether the body runs, or runs again: `until` is asked after each time, `while` before each."""
    ready = _only(run, LoopNode)
    node, count = ready.node, dict(run.position.iterations).get(run.segment.id, 0)
    if count > 0 and node.until is not None and run.holds(ready, node.until):
        return Ended(Again(False))
    if node.times is not None and count >= node.times:
        return Ended(Again(False))
    if node.while_ is not None and not run.holds(ready, node.while_, 1):
        return Ended(Again(False))
    if node.max_iterations is not None and count >= node.max_iterations:
        if node.on_limit == "fail":
            raise Limit(
                f"the loop {node.id} ran {count} times, and would go on",
                hint="raise max_iterations, or let on_limit be continue",
                limit=node.max_iterations,
                node=node.id,
            )
        return Ended(Again(False))
    return Ended(Again(True))


def run_human(run: SegmentRun) -> Ending:
    """Wait for a decision."""
    ready = _only(run, HumanNode)
    node = ready.node
    prompt = None if node.prompt is None else fill(node.prompt, run.view(ready))
    return Waits(
        Waiting(HUMAN, run.segment.id, node.id, node.choices, prompt=prompt, default=node.default), node.timeout_s
    )


def run_merge(run: SegmentRun) -> Ending:
    """What the branches of a group changed, and then what a function of the document does. Where ways of one run meet
    there is one state, so there is nothing to merge."""
    of = run.segment.config.get("merge", {}).get("of")
    if of is not None:
        merge_group(run, of)
    return run_steps(run)


SEGMENT_RUNNERS: Final[dict[str, SegmentRunner]] = {
    "steps": run_steps,
    "llm": run_steps,
    "branch": run_branch,
    "loop": run_loop,
    "human": run_human,
    "merge": run_merge,
    "parallel": run_parallel,
    "for_each": run_for_each,
    "subflow": run_subflow,
}
"""By segment type."""


def _only(run: SegmentRun, kind: type) -> ReadyNode:
    if len(run.nodes) != 1 or not isinstance(run.nodes[0].node, kind):
        raise Invalid(f"segment {run.segment.id} is not what its type says", segment=run.segment.id)
    return run.nodes[0]
