"""Cuts workflows into segments.

First every node becomes a unit, and what leads where a link: bodies and arms are laid out behind their loop or branch,
aggregators are added where ways meet. Then units that simply follow one another become one segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter, ValidationError

from analemma.errors import Invalid
from analemma.flows.document import FORMAT, Merge, Workflow, plain
from analemma.flows.naming import JOIN_SUFFIX, MERGE_SUFFIX
from analemma.flows.nodes import (
    AggregatorNode,
    AnyNode,
    BranchNode,
    ForEachNode,
    LoopNode,
    ParallelGroupNode,
)
from analemma.flows.segments import Plan, Segment, SegmentType
from analemma.flows.structure import structure_of

_TYPES: Final[Mapping[str, SegmentType]] = {
    "llm_chat": "llm",
    "human": "human",
    "branch": "branch",
    "loop": "loop",
    "parallel_group": "parallel",
    "for_each": "for_each",
    "subflow": "subflow",
}
"""Types whose nodes are a segment of their own; others are steps."""
_NODES: Final[TypeAdapter[list[AnyNode]]] = TypeAdapter(list[Annotated[AnyNode, Field(discriminator="type")]])

LEAST_LIMIT: Final = 100
MOST_LIMIT: Final = 2**53


def partition(workflow: Workflow) -> Plan:
    """The plan of a workflow that was checked. The same workflow always has the same plan.

    >>> from analemma.flows.reading import read_workflow
    >>> steps = [{"id": name, "type": "python", "function": f"demo.{name}"} for name in ("read", "write")]
    >>> ask = {"id": "ask", "type": "human", "choices": ["yes", "no"]}
    >>> [each.nodes for each in partition(read_workflow({"workflow": "demo", "nodes": [*steps, ask]})).segments]
    [('read', 'write'), ('ask',)]
    """
    structure = structure_of(workflow)
    layout = _Layout(workflow.by_id)
    ends = {node: layout.add(node) for node in structure.order()}
    for node, after in structure.successors.items():
        for following in after:
            layout.link(ends[node].exits, ends[following].entry)
    settings = _Settings(
        workflow.merge, workflow.checkpoints == "node", workflow.limits.max_branch_iterations, structure.starts
    )
    segments = _cut(layout, settings)
    return Plan(segments, workflow.limits.max_iterations or iteration_limit(segments, workflow.by_id))


def task_plans(config: Mapping[str, Any]) -> dict[str, Plan]:
    """The plans of what runs inside a `parallel` or `for_each` segment: by the branch's name, or `body`.

    Made of the segment's configuration alone, which is what was hashed."""
    known = nodes_of(config)
    group = known.get(config["id"])
    if not isinstance(group, ParallelGroupNode | ForEachNode):
        raise Invalid(f"segment {config['id']} has no tasks")
    merge = Merge.model_validate(config["merge_defaults"]) if "merge_defaults" in config else Merge()
    limit = config.get("max_branch_iterations")
    plans: dict[str, Plan] = {}
    for name, ids in group.sequences():
        layout = _Layout(known)
        layout.add_sequence(ids)
        segments = _cut(layout, _Settings(merge, False, limit, ids[:1]))
        plans[name.removeprefix("branches/")] = Plan(segments, limit or iteration_limit(segments, known))
    return plans


def nodes_of(config: Mapping[str, Any]) -> dict[str, AnyNode]:
    """The nodes of a segment's configuration, by their ids; an automatic aggregator is none."""
    if config.get("automatic") is True:
        return {}
    try:
        found = _NODES.validate_python([dict(each) for each in config["nodes"]])
    except ValidationError as exc:
        raise Invalid(f"segment {config.get('id')} has nodes that are none: {exc.errors()[0]['msg']}") from exc
    return {node.id: node for node in found}


def iteration_limit(segments: Iterable[Segment], nodes: Mapping[str, AnyNode]) -> int:
    """max(1.5 x estimate + 20, 100)."""
    # In integers: loops inside loops may say numbers that no float holds.
    return min(max((3 * estimated_executions(segments, nodes) + 1) // 2 + 20, LEAST_LIMIT), MOST_LIMIT)


def estimated_executions(segments: Iterable[Segment], nodes: Mapping[str, AnyNode]) -> int:
    """How many segments run if every loop runs as often as it says, and one that does not say, once; a loop itself is
    asked once more than its body runs."""
    times: dict[str | None, int] = {None: 1}
    total = 0
    for segment in segments:
        around = times[segment.loop]
        loop = nodes.get(segment.nodes[0])
        inside = loop.static_iterations if isinstance(loop, LoopNode) else 0
        times[segment.id] = around * inside
        total += around * (inside + 1)
    return total


@dataclass(frozen=True, slots=True)
class _Exit:
    """A unit that something follows; of a branch, also which of its arms."""

    unit: str
    arm: int | None = None


@dataclass(frozen=True, slots=True)
class _Ends:
    entry: str
    exits: tuple[_Exit, ...]


@dataclass
class _Unit:
    id: str
    node: AnyNode | None
    """None: an automatic aggregator."""
    loop: str | None
    next: list[str] = field(default_factory=list)
    arms: list[list[str]] = field(default_factory=list)
    body: str | None = None
    sources: list[_Exit] = field(default_factory=list)
    """What leads to it from before; not the ends of its own body."""
    of: str | None = None
    """Of an automatic aggregator: the group that it merges."""


class _Layout:
    """Units in the order of the plan, with their links."""

    def __init__(self, nodes: Mapping[str, AnyNode]) -> None:
        self.nodes = nodes
        self.units: dict[str, _Unit] = {}
        self._merged = {node.of for node in nodes.values() if isinstance(node, AggregatorNode)}

    def add(self, name: str, loop: str | None = None) -> _Ends:
        """Lay out a node and what belongs to it."""
        # Groups nest at most 50 deep, so this recursion is short.
        node = self.nodes[name]
        unit = self.units[name] = _Unit(name, node, loop)
        match node:
            case LoopNode():
                ends = self.add_sequence(node.body, name)
                unit.body = ends.entry
                self.units[ends.entry].sources.append(_Exit(name))
                for each in ends.exits:
                    self._follow(each).append(name)
            case BranchNode():
                return _Ends(name, self._add_arms(unit, node, loop))
            case ParallelGroupNode() if name not in self._merged:
                merge = f"{name}{MERGE_SUFFIX}"
                self.units[merge] = _Unit(merge, None, loop, of=name)
                self.link((_Exit(name),), merge)
                return _Ends(name, (_Exit(merge),))
        return _Ends(name, (_Exit(name),))

    def add_sequence(self, names: Sequence[str], loop: str | None = None) -> _Ends:
        """Lay out nodes that follow one another."""
        ends = [self.add(name, loop) for name in names]
        for one, other in pairwise(ends):
            self.link(one.exits, other.entry)
        return _Ends(ends[0].entry, ends[-1].exits)

    def link(self, exits: Iterable[_Exit], entry: str) -> None:
        """Say that a unit follows others."""
        for each in exits:
            self._follow(each).append(entry)
            self.units[entry].sources.append(each)

    def _add_arms(self, unit: _Unit, node: BranchNode, loop: str | None) -> tuple[_Exit, ...]:
        exits: list[_Exit] = []
        for number, (_, names) in enumerate(node.sequences()):
            unit.arms.append([])
            if not names:
                exits.append(_Exit(unit.id, number))
                continue
            ends = self.add_sequence(names, loop)
            self.link((_Exit(unit.id, number),), ends.entry)
            exits += ends.exits
        return tuple(exits)

    def _follow(self, end: _Exit) -> list[str]:
        unit = self.units[end.unit]
        return unit.next if end.arm is None else unit.arms[end.arm]

    def merge_where_ways_meet(self) -> None:
        """Put an aggregator before every unit that several lead to, unless it is one."""
        in_order: dict[str, _Unit] = {}
        for name, unit in self.units.items():
            if len(set(unit.sources)) > 1 and not isinstance(unit.node, AggregatorNode):
                merge = _Unit(f"{name}{JOIN_SUFFIX}", None, unit.loop, [name], sources=unit.sources)
                for source in set(unit.sources):
                    following = self._follow(source)
                    following[:] = [merge.id if each == name else each for each in following]
                    body = self.units[source.unit]
                    if body.body == name:
                        body.body = merge.id
                unit.sources = [_Exit(merge.id)]
                in_order[merge.id] = merge
            in_order[name] = unit
        self.units = in_order


@dataclass(frozen=True, slots=True)
class _Settings:
    merge: Merge
    each_node: bool
    max_branch_iterations: int | None
    starts: tuple[str, ...]


def _cut(layout: _Layout, settings: _Settings) -> tuple[Segment, ...]:
    layout.merge_where_ways_meet()
    chains: list[list[_Unit]] = []
    for unit in layout.units.values():
        if chains and _continues(chains[-1][-1], unit, settings):
            chains[-1].append(unit)
        else:
            chains.append([unit])
    return tuple(_segment(chain, layout, settings) for chain in chains)


def _continues(before: _Unit, unit: _Unit, settings: _Settings) -> bool:
    """Whether a unit belongs to the segment of the one before it. Nothing else leads to it, or a merge would stand
    between them."""
    if before.node is None or unit.node is None or settings.each_node or before.node.checkpoint:
        return False
    return (
        _type_of(before) == "steps"
        and _type_of(unit) == "steps"
        and before.node.ring == unit.node.ring
        and before.next == [unit.id]
    )


def _type_of(unit: _Unit) -> SegmentType:
    if unit.node is None:
        return "merge"
    if isinstance(unit.node, AggregatorNode) and (unit.node.of is not None or len(set(unit.sources)) > 1):
        return "merge"
    return _TYPES.get(unit.node.type, "steps")


def _segment(chain: Sequence[_Unit], layout: _Layout, settings: _Settings) -> Segment:
    first, last = chain[0], chain[-1]
    kind = _type_of(first)
    nodes = [each for unit in chain for each in _configs(unit, layout.nodes)]
    ring = 3 if first.node is None else first.node.ring
    config: dict[str, Any] = {
        "format": FORMAT,
        "id": first.id,
        "type": kind,
        "ring": f"ring_{ring}",
        "nodes": nodes,
        "next": list(last.next),
    }
    if first.arms:
        config["arms"] = [list(arm) for arm in first.arms]
    if first.body is not None:
        config["body"] = first.body
    if first.loop is not None:
        config["loop"] = first.loop
    if first.id in settings.starts:
        config["start"] = True
    if first.node is None:
        config["automatic"] = True
    if kind == "merge":
        config["merge"] = _merge_of(first, settings.merge)
    if kind in ("parallel", "for_each"):
        defaults = plain(settings.merge)
        if defaults:
            config["merge_defaults"] = defaults
        if settings.max_branch_iterations is not None:
            config["max_branch_iterations"] = settings.max_branch_iterations
    return Segment(
        id=first.id,
        type=kind,
        nodes=tuple(each["id"] for each in nodes),
        next=tuple(last.next),
        arms=tuple(map(tuple, first.arms)),
        body=first.body,
        loop=first.loop,
        start=first.id in settings.starts,
        automatic=first.node is None,
        config=config,
    )


def _merge_of(unit: _Unit, defaults: Merge) -> dict[str, Any]:
    """What a merge segment merges, and how."""
    node = unit.node
    if isinstance(node, AggregatorNode):
        of, function = node.of, node.function
        strategy, strategies = node.strategy or defaults.strategy, defaults.strategies | node.strategies
    else:
        of, function, strategy, strategies = unit.of, None, defaults.strategy, defaults.strategies
    made = {"of": of, "function": function, "strategy": strategy, "strategies": dict(strategies)}
    return {key: value for key, value in made.items() if value not in (None, {})}


def _configs(unit: _Unit, nodes: Mapping[str, AnyNode]) -> list[dict[str, Any]]:
    """The configurations of a unit's nodes: of a group that runs as one, also of everything inside."""
    if unit.node is None:
        return [{"id": unit.id, "type": "aggregator"}]
    made = [_config(unit.node)]
    if isinstance(unit.node, ParallelGroupNode | ForEachNode):
        inside = list(unit.node.members())
        while inside:
            node = nodes[inside.pop(0)]
            made.append(_config(node))
            inside[:0] = node.members()
    return made


def _config(node: AnyNode) -> dict[str, Any]:
    """A node in canonical form, with all that it reads and writes spelled out: what it may see follows from that."""
    made: dict[str, Any] = plain(node)
    for key, paths in (("reads", node.all_reads()), ("writes", node.all_writes())):
        if paths:
            made[key] = list(paths)
    return made
