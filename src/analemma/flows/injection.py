"""Segments that are injected into what a run runs: what they have to be, and where a run may still come to them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from analemma.canon.nodes import BlockId
from analemma.catalog.port import RowChange
from analemma.catalog.runs.runs import RunRow
from analemma.context import Context
from analemma.errors import Conflict, Invalid, Limit
from analemma.flows.document import Workflow, plain
from analemma.flows.naming import NODE_ID
from analemma.flows.nodes import NODE_TYPES
from analemma.flows.partitioning import partition
from analemma.flows.reading import check_data
from analemma.flows.segments import Plan, Segment, plan_of
from analemma.flows.walking import DONE, Again, Outcome, Position, Took, advance, entered, position_from
from analemma.state.segments import WRAPPED, Injection, Placed

FOLLOWS: Final = frozenset({"next", "loop", "start", "injected"})
"""Keys that follow from where a segment stands."""
CHECKED: Final = frozenset({"format", "type", "ring", "merge_defaults", "max_branch_iterations"})
"""Keys that follow from its nodes and from the document."""
ALONE: Final = "inject nodes that run one after the other, or a subflow that has the rest"
_ID: Final = re.compile(rf"{NODE_ID}(\.[0-9]+)?")


def place_segment(injection: Injection, context: Context) -> Placed | None:
    """The segments with a new one among them, as runs take them; None if runs do not take these at all, but somebody
    else who has made them. Invalid if nothing could run the new one."""
    if injection.document is None:
        return None
    try:
        workflow = Workflow.model_validate(injection.document)
        plan = plan_of(injection.read_entries(), 1, injection.hash_version)
    except (Invalid, ValueError):
        return None
    configs = [segment.config for segment in plan.segments]
    made = injected_config(workflow, plan, injection.given, injection.position)
    grown = plan_of([*configs[: injection.position], made, *configs[injection.position :]], 1)
    document = injection.config

    def hold(head: BlockId) -> list[RowChange]:
        branch = {"tenant": context.tenant, **injection.key._asdict()}
        run = context.engine.row(RunRow, "newest_run_on", **branch, document=document)
        if run is None:
            return []
        _check_reach(run, plan, injection.position, head)
        # It still stands where it was seen.
        place = {"run": run.number, "fence": run.fence, "status": run.status, "position": run.position}
        return [RowChange("hold_place", place)]

    return Placed(grown.segment_manifest(), hold)


def injected_config(workflow: Workflow, plan: Plan, given: Mapping[str, Any], position: int) -> dict[str, Any]:
    """The configuration of a segment that stands at a position of a plan from now on: of an entry as manifests have
    them, of its configuration, of nodes, or of one node."""
    config, at = _unwrapped(given)
    for key in sorted(map(str, config.keys() - FOLLOWS - CHECKED - {"id", "nodes"})):
        raise Invalid(f"a segment that is injected has no {key}", hint=ALONE, pointer=f"{at}/{key}")
    segment = _only_segment(workflow, config, at)
    made = dict(segment.config)
    for key in sorted(CHECKED & config.keys()):
        if config[key] != made.get(key):
            said = "nothing" if key not in made else repr(made[key])
            raise Invalid(
                f"{key} is not what its nodes and the document say, {said}", hint="leave it out", pointer=f"{at}/{key}"
            )
    following = plan.segments[position] if position < plan.total_segments else None
    made.pop("start", None)
    made["id"] = _free_id(config.get("id", segment.id), plan, at)
    made["next"] = [] if following is None else [following.id]
    made["injected"] = plan.hash_version + 1
    if following is not None and following.loop is not None:
        made["loop"] = following.loop
    return made


def _unwrapped(given: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """A configuration with nodes, and the pointer to where it stands in what was given."""
    config, at = given, ""
    if WRAPPED in given:
        config, at = given[WRAPPED], f"/{WRAPPED}"
    if not isinstance(config, Mapping):
        raise Invalid(f"the segment is of type {type(config).__name__}", hint="pass a dict", pointer=at)
    if "nodes" in config:
        return config, at
    if config.get("type") not in NODE_TYPES:
        raise Invalid(
            "the segment has no nodes, and is no node itself",
            hint="pass what load_segment_manifest shows, {'nodes': [...]}, or one node of a workflow document",
            pointer=f"{at}/nodes",
        )
    return {"nodes": [config]}, at


def _only_segment(workflow: Workflow, config: Mapping[str, Any], at: str) -> Segment:
    """The one segment that nodes are, cut as those of the document were."""
    document = {**plain(workflow), "nodes": config["nodes"]}
    document.pop("edges", None)
    document.pop("checkpoints", None)
    checked = check_data(document, "segment")
    if checked.workflow is None:
        first = checked.problems[0]
        raise Invalid(
            f"the segment cannot be run: {'; '.join(str(each) for each in checked.problems[:3])}",
            hint=ALONE,
            pointer=f"{at}/nodes{_number_of(first.node, config['nodes'])}",
        )
    segments = partition(checked.workflow).segments
    if len(segments) > 1:
        names = ", ".join(each.id for each in segments[:5])
        raise Invalid(f"the nodes are more than one segment: {names}", hint=ALONE, pointer=f"{at}/nodes")
    return segments[0]


def _number_of(node: str | None, nodes: Any) -> str:
    """The end of the pointer to a node that a problem names."""
    for number, each in enumerate(nodes if isinstance(nodes, list) else ()):
        if node in (f"number {number + 1}", each.get("id") if isinstance(each, Mapping) else None):
            return f"/{number}"
    return ""


def _free_id(wanted: Any, plan: Plan, at: str) -> str:
    """The id that was asked for, with a number behind it if a segment has it already: nodes have no dot in theirs."""
    if type(wanted) is not str or not _ID.fullmatch(wanted):
        raise Invalid("the segment's id is none", hint="letters, digits, - and _", pointer=f"{at}/id")
    name, number, known = wanted.partition(".")[0], 1, wanted
    while known in plan.numbers:
        number += 1
        known = f"{name}.{number}"
    return known


def _check_reach(run: RunRow, plan: Plan, position: int, head: BlockId) -> None:
    """Conflict if a run would never come to what stands at a position from now on."""
    if run.status in ("COMPLETED", "CANCELLED"):
        if run.head == head:
            raise Conflict(
                f"the run {run.execution} is {run.status}: nothing would run the segment",
                hint="begin a run of a document that has it, or run this one again from an earlier point",
                execution=run.execution,
            )
        return
    kept = json.loads(run.position)
    at = position_from(kept)
    if at.at not in plan.numbers:
        # Whoever takes it up says what is wrong.
        return
    held = run.holder is not None
    begun = held or run.waiting is not None
    if not begun:
        at = entered(plan, at, kept.get("hash_version", 0))
    first = _first_reached(plan, at, begun)
    if position < first or (held and position == plan.total_segments and _may_end(plan, at)):
        raise Conflict(
            f"the run {run.execution} stands at {at.at}, and would not come to what is injected at {position}",
            hint=f"use a position from {first} on"
            if position < first
            else "its last segment is being run: begin another run",
            execution=run.execution,
            segment=at.at,
        )


def _first_reached(plan: Plan, at: Position, begun: bool) -> int:
    """The first position that a run comes to: behind where it stands, or in the body of a loop that it is in."""
    segment = at.at or ""
    around = plan.loops_around(segment)
    if around:
        return plan.numbers[around[-1]] + 1
    return plan.numbers[segment] + int(begun)


def _may_end(plan: Plan, at: Position) -> bool:
    """Whether the segment at hand can be the last."""
    segment = plan.segment(at.at or "")
    outcomes: list[Outcome] = [DONE]
    if segment.type == "loop":
        outcomes = [Again(True), Again(False)]
    elif segment.type == "branch":
        outcomes = [Took(arm) for arm in range(len(segment.arms))]
    return any(_leads_nowhere(plan, at, each) for each in outcomes)


def _leads_nowhere(plan: Plan, at: Position, outcome: Outcome) -> bool:
    try:
        return advance(plan, at, outcome).complete
    except Limit:
        return False
