"""Which fields of the state nodes may read and write, and which nobody provides."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from analemma.contracts.reporting import Place
from analemma.flows.naming import field_of, path_tokens
from analemma.flows.nodes import AggregatorNode, AnyNode, ForEachNode, ParallelGroupNode
from analemma.flows.problems import WorkflowReporter
from analemma.flows.structure import Structure
from analemma.payloads.rings import (
    ALWAYS_EXCLUDED,
    BASE_FIELDS,
    CAPABILITY_FIELDS,
    RESERVED_PREFIXES,
    RING_RESTRICTIONS,
)
from analemma.state.arguments import is_reserved


class FieldRules:
    """Looks at every field that a document names."""

    def __init__(self, structure: Structure, reporter: WorkflowReporter) -> None:
        self._structure = structure
        self._workflow = structure.workflow
        self._reporter = reporter
        state = self._workflow.state
        self._declared = frozenset[str]() if state is None else frozenset(state.fields)
        self._is_declared = state is not None
        self._closed = state is not None and state.additional == "reject"
        self._provided = frozenset(_provided(self._workflow.nodes)) | self._declared

    def check(self) -> None:
        """Report what may not be read or written, and warn of what nobody writes."""
        for name in self._declared:
            if is_of_the_system(name):
                self._reporter.at_key(("state", "fields", name), f"the field {name} is the system's own")
        for number, node in enumerate(self._workflow.nodes):
            at: Place = ("nodes", number)
            self._check_reads(node, at)
            self._check_writes(node, at)
            if isinstance(node, ParallelGroupNode):
                self._check_branches(node, at)

    def _check_reads(self, node: AnyNode, at: Place) -> None:
        granted = BASE_FIELDS.get(node.type, frozenset()).union(
            *(CAPABILITY_FIELDS[each] for each in node.capabilities)
        )
        for path in node.all_reads():
            name, where = field_of(path), self._place(node, "reads", path, at)
            if name in ALWAYS_EXCLUDED or name.startswith(RESERVED_PREFIXES):
                self._reporter.at(where, f"reads {path}, which no node sees")
            elif name in RING_RESTRICTIONS[f"ring_{node.ring}"]:
                least = max(ring for ring in range(4) if name not in RING_RESTRICTIONS[f"ring_{ring}"])
                self._reporter.at(where, f"reads {path}, which ring {node.ring} does not see", f"ring {least} does")
            elif (
                self._is_declared
                and name not in self._provided | granted
                and name not in self._item_fields(node)
                and not is_reserved(name)
            ):
                self._reporter.warn(
                    where, f"reads {path}, which nobody writes", "declare it in the state, if it is input"
                )

    def _check_writes(self, node: AnyNode, at: Place) -> None:
        names = [(path, field_of(path), "writes") for path in node.all_writes()]
        if isinstance(node, ForEachNode):
            names += [(node.item, node.item, "item"), (node.index, node.index, "index")]
        for path, name, key in names:
            where = self._place(node, key, path, at)
            if is_of_the_system(name):
                self._reporter.at(where, f"writes {path}, which is the system's own", "choose another name")
            elif name in RING_RESTRICTIONS[f"ring_{node.ring}"]:
                self._reporter.at(where, f"writes {path}, which ring {node.ring} may not")
            elif key == "writes" and self._closed and name not in self._declared | self._item_fields(node):
                self._reporter.at(where, f"writes {path}, which the state does not have", "declare it in the state")

    def _check_branches(self, group: ParallelGroupNode, at: Place) -> None:
        """Branches that write one field, where no strategy says what then."""
        if self._workflow.merge.strategy != "refuse" or self._has_strategy(group):
            return
        written = {name: self._written_by(group.branches[name]) for name in sorted(group.branches)}
        for one, other in combinations(written, 2):
            for path in sorted(written[one]):
                if any(_overlap(path, theirs) for theirs in written[other]):
                    self._reporter.warn(
                        (*at, "branches", other),
                        f"{one} and {other} both write {path}",
                        "give a strategy: in `merge`, or with an aggregator behind the group",
                    )

    def _has_strategy(self, group: ParallelGroupNode) -> bool:
        return bool(self._workflow.merge.strategies) or any(
            isinstance(node, AggregatorNode) and node.of == group.id for node in self._workflow.nodes
        )

    def _written_by(self, ids: tuple[str, ...]) -> set[str]:
        known = self._workflow.by_id
        return {
            path
            for node in self._workflow.nodes
            if node.id in ids or any(each.id in ids for each in self._structure.groups_around(node.id))
            for path in known[node.id].all_writes()
        }

    def _item_fields(self, node: AnyNode) -> set[str]:
        around = [each for each in self._structure.groups_around(node.id) if isinstance(each, ForEachNode)]
        return {name for each in around for name in (each.item, each.index)}

    def _place(self, node: AnyNode, key: str, path: str, at: Place) -> Place:
        declared: tuple[str, ...] = getattr(node, key)
        return (*at, key, declared.index(path)) if isinstance(declared, tuple) and path in declared else at


def is_of_the_system(name: str) -> bool:
    """Whether no node may write a field, in no ring."""
    return is_reserved(name) or name in ALWAYS_EXCLUDED or name.startswith(RESERVED_PREFIXES)


def _provided(nodes: tuple[AnyNode, ...]) -> Iterator[str]:
    for node in nodes:
        yield from map(field_of, node.all_writes())


def _overlap(one: str, other: str) -> bool:
    ours, theirs = path_tokens(one), path_tokens(other)
    shorter = min(len(ours), len(theirs))
    return ours[:shorter] == theirs[:shorter]
