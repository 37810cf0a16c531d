"""Everything that can be wrong with how the nodes of a document fit together."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from itertools import pairwise

from analemma.contracts.reporting import Place
from analemma.flows.document import MAXIMUM_GROUP_DEPTH, Workflow
from analemma.flows.field_rules import FieldRules
from analemma.flows.node_rules import check_node
from analemma.flows.nodes import (
    AggregatorNode,
    AnyNode,
    ForEachNode,
    HumanNode,
    ParallelGroupNode,
    SubflowNode,
    TriggerNode,
)
from analemma.flows.problems import WorkflowReporter
from analemma.flows.structure import Structure, structure_of


def check_workflow(workflow: Workflow, reporter: WorkflowReporter) -> None:
    """Report what is wrong with a document whose shape is right."""
    checker = _Checker(workflow, reporter)
    if checker.ids_are_right():
        if checker.names_are_right():
            checker.check_edges()
        checker.check_groups()
    for number, node in enumerate(workflow.nodes):
        check_node(node, ("nodes", number), reporter)
    FieldRules(structure_of(workflow), reporter).check()


class _Checker:
    def __init__(self, workflow: Workflow, reporter: WorkflowReporter) -> None:
        self._workflow = workflow
        self._reporter = reporter
        self._numbers: dict[str, int] = {}
        for number, node in enumerate(workflow.nodes):
            self._numbers.setdefault(node.id, number)

    def ids_are_right(self) -> bool:
        """Every id is one node's."""
        for number, node in enumerate(self._workflow.nodes):
            first = self._numbers[node.id]
            if first != number:
                self._reporter.at(("nodes", number, "id"), f"the id {node.id} is also that of {self._line_of(first)}")
        return len(self._numbers) == len(self._workflow.nodes)

    def names_are_right(self) -> bool:
        """Every member is a node, and in one group only; edges have nodes at both ends."""
        before = len(self._reporter.found)
        placed: dict[str, str] = {}
        for place, node, member in self._members():
            if member not in self._numbers:
                self._reporter.at(place, f"there is no node {member}", self._close(member))
            elif member in placed:
                self._reporter.at(place, f"{member} stands already in {placed[member]}", "a node has one place")
            else:
                placed[member] = node.id
        for number, edge in enumerate(self._workflow.edges or ()):
            for key, end in (("from", edge.from_), ("to", edge.to)):
                if end not in self._numbers:
                    self._reporter.at(
                        ("edges", number, key), f"an edge {key} {end}, which is no node", self._close(end)
                    )
        return len(self._reporter.found) == before

    def check_groups(self) -> None:
        """What stands inside what."""
        structure = structure_of(self._workflow)
        for number, node in enumerate(self._workflow.nodes):
            at: Place = ("nodes", number)
            if not structure.is_rooted(node.id):
                self._reporter.at(at, "stands inside itself", "a group cannot be its own member's member")
                continue
            if isinstance(node, SubflowNode) and node.workflow == self._workflow.workflow:
                self._reporter.at((*at, "workflow"), f"{node.workflow} would run itself", "repeat with a loop")
            around = structure.groups_around(node.id)
            if len(around) > MAXIMUM_GROUP_DEPTH:
                self._reporter.at(at, f"stands {len(around)} groups deep", f"the limit is {MAXIMUM_GROUP_DEPTH}")
            self._check_surroundings(node, at, around)

    def _check_surroundings(self, node: AnyNode, at: Place, around: list[AnyNode]) -> None:
        apart = next((each for each in around if isinstance(each, ParallelGroupNode | ForEachNode)), None)
        if isinstance(node, TriggerNode) and around:
            self._reporter.at(at, f"a trigger inside {around[0].id}", "a run begins with it: put it at the top level")
        if apart is None:
            return
        if isinstance(node, HumanNode):
            self._reporter.at(
                at, f"a human step inside {apart.id}", "branches and items do not wait: ask before or behind the group"
            )
        if node.ring < apart.ring:
            self._reporter.at(
                (*at, "ring"),
                f"ring {node.ring} inside {apart.id}, which is of ring {apart.ring}",
                f"give {apart.id} ring {node.ring}: a group runs as one segment, and sees what its members see",
            )

    def check_edges(self) -> None:
        """The order of the top level."""
        structure = structure_of(self._workflow)
        for number, edge in enumerate(self._workflow.edges or ()):
            if edge.from_ == edge.to:
                self._reporter.at(("edges", number), f"an edge from {edge.to} to itself", "repeat with a loop")
            for end in (edge.from_, edge.to):
                if end in structure.parents:
                    self._reporter.at(
                        ("edges", number),
                        f"an edge with {end}, which stands in {structure.parents[end]}",
                        "edges are for the top level; inside a group, the order of the list counts",
                    )
        cycle = structure.cycle()
        if cycle:
            self._reporter.at(self._node(cycle[0]), f"a cycle: {_way(cycle)}", "repeat with a loop")
        reachable = structure.reachable()
        for node in self._workflow.top_level:
            known = self._workflow.by_id[node]
            if node not in reachable:
                self._reporter.at(self._node(node), "no way leads here", f"runs begin at {', '.join(structure.starts)}")
            if isinstance(known, TriggerNode) and structure.predecessors[node]:
                before = structure.predecessors[node][0]
                self._reporter.at(self._node(node), f"a trigger behind {before}", "a run begins with it")
        self._check_aggregators(structure)

    def _check_aggregators(self, structure: Structure) -> None:
        following = self._next_in_order(structure)
        merged: dict[str, str] = {}
        for number, node in enumerate(self._workflow.nodes):
            if not isinstance(node, AggregatorNode) or node.of is None:
                continue
            at: Place = ("nodes", number, "of")
            group = self._workflow.by_id.get(node.of)
            if not isinstance(group, ParallelGroupNode):
                self._reporter.at(
                    at, f"{node.of} is no parallel_group", self._close(node.of) if group is None else None
                )
            elif node.of in merged:
                self._reporter.at(at, f"{node.of} is merged by {merged[node.of]}")
            elif following.get(node.of) != node.id:
                self._reporter.at(at, f"does not stand directly behind {node.of}", "nothing may come between them")
            merged.setdefault(node.of, node.id)

    def _next_in_order(self, structure: Structure) -> dict[str, str]:
        """For each node that is followed by exactly one which follows nothing else: that one."""
        only: dict[str, str] = {}
        for node, after in structure.successors.items():
            if len(after) == 1 and structure.predecessors[after[0]] == (node,):
                only[node] = after[0]
        for group in self._workflow.nodes:
            for _, ids in group.sequences():
                only.update(pairwise(ids))
        return only

    def _members(self) -> Iterator[tuple[Place, AnyNode, str]]:
        for number, node in enumerate(self._workflow.nodes):
            for name, ids in node.sequences():
                steps: tuple[str | int, ...] = tuple(int(step) if step.isdigit() else step for step in name.split("/"))
                then = ("then",) if steps[0] == "cases" else ()
                for place, member in enumerate(ids):
                    yield ("nodes", number, *steps, *then, place), node, member

    def _node(self, node: str) -> Place:
        return ("nodes", self._numbers[node])

    def _line_of(self, number: int) -> str:
        line = self._reporter.node.line_of("nodes", number)
        return f"node number {number + 1}" if line is None else f"the node on line {line}"

    def _close(self, name: str) -> str | None:
        close = get_close_matches(name, self._numbers, n=1)
        return f"did you mean {close[0]}?" if close else None


def _way(nodes: tuple[str, ...]) -> str:
    shown = nodes if len(nodes) <= 10 else (*nodes[:8], "...", nodes[-1])
    return " -> ".join(shown)
