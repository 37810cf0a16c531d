"""A plan as text, one line per segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from analemma.flows.conditions import Condition
from analemma.flows.document import Workflow
from analemma.flows.naming import field_of
from analemma.flows.nodes import BranchNode, LoopNode
from analemma.flows.segments import Plan, Segment

END = "end"
SHOWN_NODES = 6


def draw(workflow: Workflow, plan: Plan) -> str:
    """The segments with what is in each and where each leads; what stands in a loop is set in."""
    rows = [_row(workflow, plan, number, segment) for number, segment in enumerate(plan.segments)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        f"{workflow.workflow}: {_count(len(workflow.nodes), 'node')} in {_count(plan.total_segments, 'segment')}, "
        f"at most {plan.iteration_limit} executions",
        f"document {workflow.hash}",
        *(
            f"{one:>{widths[0]}}  {two:<{widths[1]}}  {three:<{widths[2]}}  {four}".rstrip()
            for one, two, three, four in rows
        ),
    ]
    return "\n".join(lines)


def inputs_of(workflow: Workflow) -> tuple[str, ...]:
    """Fields that nodes read and none writes: a run has to bring them."""
    written = {field_of(path) for node in workflow.nodes for path in node.all_writes()}
    items = {name for node in workflow.nodes if node.type == "for_each" for name in (node.item, node.index)}
    read = {field_of(path) for node in workflow.nodes for path in node.all_reads()}
    return tuple(sorted(read - written - items))


def described(condition: Condition) -> str:
    """A condition in words."""
    if condition.function is not None:
        return f"{condition.function}()"
    if condition.not_ is not None:
        return f"not ({described(condition.not_)})"
    if condition.all is not None:
        return " and ".join(f"({described(each)})" for each in condition.all)
    if condition.any is not None:
        return " or ".join(f"({described(each)})" for each in condition.any)
    words = str(condition.comparison).replace("_", " ")
    return f"{condition.path} {words}" + (
        "" if condition.comparison in ("exists", "missing") else f" {_short(condition.value)}"
    )


def _row(workflow: Workflow, plan: Plan, number: int, segment: Segment) -> tuple[str, str, str, str]:
    indent = "  " * len(plan.loops_around(segment.id))
    return str(number), segment.type, f"{indent}{_nodes(segment.nodes)}", "; ".join(_ways(workflow, segment))


def _ways(workflow: Workflow, segment: Segment) -> Iterator[str]:
    node = workflow.by_id.get(segment.id)
    if isinstance(node, BranchNode):
        conditions = [*(described(case.when) for case in node.cases), "else"]
        for condition, arm in zip(conditions, segment.arms, strict=True):
            yield f"{condition} -> {_targets(arm)}"
    elif isinstance(node, LoopNode):
        asked = node.while_ or node.until
        word = "while" if node.while_ is not None else "until"
        yield f"{node.times} times" if asked is None else f"{word} {described(asked)}"
        yield f"then -> {_targets(segment.next)}"
    else:
        yield f"-> {_targets(segment.next)}"


def _targets(ids: Sequence[str]) -> str:
    return ", ".join(ids) or END


def _nodes(ids: Sequence[str]) -> str:
    more = len(ids) - SHOWN_NODES
    return ", ".join(ids[:SHOWN_NODES]) + (f" and {more} more" if more > 0 else "")


def _count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
