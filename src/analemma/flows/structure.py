"""How the nodes of a document stand to one another: which are inside which, and in which order the top level runs.

Everything here also works on documents that are wrong: it says what is so, and `checking` what may not be so.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from analemma.flows.document import Workflow
from analemma.flows.nodes import AnyNode, TriggerNode


@dataclass(frozen=True, slots=True)
class Structure:
    """A document seen as groups and edges."""

    workflow: Workflow
    parents: Mapping[str, str]
    """The group that each member stands in."""
    successors: Mapping[str, tuple[str, ...]]
    """Of the top level, in the document's order."""
    predecessors: Mapping[str, tuple[str, ...]]
    starts: tuple[str, ...]
    """Where a run begins: the triggers, or the first node."""

    def groups_around(self, node: str) -> list[AnyNode]:
        """From the innermost outwards; each once, also where a group stands inside itself."""
        around: dict[str, None] = {}
        inside = self.parents.get(node)
        while inside is not None and inside not in around:
            around[inside] = None
            inside = self.parents.get(inside)
        return [self.workflow.by_id[each] for each in around]

    def is_rooted(self, node: str) -> bool:
        """Whether the groups around a node end at the top level."""
        around = self.groups_around(node)
        outermost = around[-1].id if around else node
        return outermost not in self.parents

    def order(self) -> tuple[str, ...]:
        """The top level so that every edge leads on; of those that could come next, the first of the document does.
        Nodes on a cycle, or behind one, are left out."""
        places = {node: place for place, node in enumerate(self.workflow.top_level)}
        waiting = {node: len(self.predecessors[node]) for node in places}
        ready = [places[node] for node, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        done: list[str] = []
        while ready:
            node = self.workflow.top_level[heapq.heappop(ready)]
            done.append(node)
            for following in self.successors[node]:
                waiting[following] -= 1
                if waiting[following] == 0:
                    heapq.heappush(ready, places[following])
        return tuple(done)

    def reachable(self) -> frozenset[str]:
        """The nodes of the top level that a run can come to."""
        seen = set(self.starts)
        level = list(self.starts)
        while level:
            for following in self.successors[level.pop()]:
                if following not in seen:
                    seen.add(following)
                    level.append(following)
        return frozenset(seen)

    def cycle(self) -> tuple[str, ...]:
        """Some way from a node back to itself, or nothing; the first of the document that is on one begins it."""
        left = set(self.workflow.top_level) - set(self.order())
        # What only stands behind a cycle goes, until every node that is left leads to another.
        while dead := {node for node in left if not any(each in left for each in self.successors[node])}:
            left -= dead
        if not left:
            return ()
        node = next(each for each in self.workflow.top_level if each in left)
        way: list[str] = []
        while node not in way:
            way.append(node)
            node = next(each for each in self.successors[node] if each in left)
        return (*way[way.index(node) :], node)


def structure_of(workflow: Workflow) -> Structure:
    """See a document as groups and edges. Members, and ends of edges, that do not exist are left out."""
    known = workflow.by_id
    parents: dict[str, str] = {}
    for node in workflow.nodes:
        for member in node.members():
            if member in known:
                parents.setdefault(member, node.id)
    top = workflow.top_level
    edges = workflow.explicit_edges
    pairs = workflow.order_edges if edges is None else _within(edges, top)
    successors: dict[str, list[str]] = {node: [] for node in top}
    predecessors: dict[str, list[str]] = {node: [] for node in top}
    for one, other in pairs:
        successors[one].append(other)
        predecessors[other].append(one)
    triggers = tuple(node for node in top if isinstance(known[node], TriggerNode))
    return Structure(
        workflow,
        parents,
        {node: tuple(each) for node, each in successors.items()},
        {node: tuple(each) for node, each in predecessors.items()},
        # A sequence begins with its first node, whatever that is.
        top[:1] if edges is None else triggers or top[:1],
    )


def _within(pairs: Iterable[tuple[str, str]], nodes: Sequence[str]) -> list[tuple[str, str]]:
    known = set(nodes)
    return [(one, other) for one, other in pairs if one in known and other in known and one != other]
