"""The workflow document: what it holds, its one canonical form, and the hash of that."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from analemma.canon.trees import Trees, no_blocks
from analemma.canon.types import standard_registry
from analemma.flows.nodes import AnyNode, Count
from analemma.flows.parts import (
    Description,
    FieldName,
    FieldTypeText,
    MergeStrategy,
    NodeId,
    Part,
    Seconds,
    StatePath,
    Tuple,
    WorkflowName,
)

FORMAT: Final = 1
MAXIMUM_NODES: Final = 500
MAXIMUM_GROUP_DEPTH: Final = 50


class Edge(Part):
    """`to` runs some time after `from`."""

    from_: Annotated[NodeId, Field(alias="from")]
    to: NodeId


class StateField(Part):
    """One field of the state."""

    type: FieldTypeText
    required: bool = False
    description: Description = None


class StateSchema(Part):
    """What the state looks like; `required` is asked of the input."""

    fields: dict[FieldName, StateField]
    additional: Literal["keep", "reject"] = "keep"


class Limits(Part):
    """What a run may take. Without `max_iterations`, that follows from the plan."""

    max_iterations: Count | None = None
    max_branch_iterations: Count | None = None
    max_parallel: Count | None = None
    timeout_s: Seconds | None = None


class Merge(Part):
    """How automatic aggregators merge: one strategy, and others for some paths."""

    strategy: MergeStrategy = "refuse"
    strategies: dict[StatePath, MergeStrategy] = Field(default={})


class Workflow(Part):
    """A workflow document whose shape is right; `flows.reading` makes it, and checks the rest."""

    workflow: WorkflowName
    format: Literal[1] = 1
    description: Description = None
    state: StateSchema | None = None
    limits: Limits = Limits()
    checkpoints: Literal["segment", "node"] = "segment"
    merge: Merge = Merge()
    nodes: Annotated[
        Tuple[Annotated[AnyNode, Field(discriminator="type")]], Field(min_length=1, max_length=MAXIMUM_NODES)
    ]
    edges: Tuple[Edge] | None = None

    def to_document(self) -> dict[str, Any]:
        """The canonical form: plain data, without what need not be said, members behind their groups."""
        document: dict[str, Any] = plain(self)
        nodes = {node["id"]: node for node in document["nodes"]}
        document["nodes"] = [nodes[each] for each in self._canonical_order()]
        edges = self.explicit_edges
        if edges is None:
            document.pop("edges", None)
        else:
            document["edges"] = [{"from": one, "to": other} for one, other in edges]
        return document

    @cached_property
    def hash(self) -> str:
        """Names the canonical form; a manifest made of that has it as its `config_hash`."""
        return hash_of(self.to_document())

    @cached_property
    def by_id(self) -> dict[str, AnyNode]:
        """Nodes by their ids."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def top_level(self) -> tuple[str, ...]:
        """The nodes that stand in no group, in the document's order."""
        inside = {member for node in self.nodes for member in node.members()}
        return tuple(node.id for node in self.nodes if node.id not in inside)

    @cached_property
    def explicit_edges(self) -> tuple[tuple[str, str], ...] | None:
        """The edges, each once and sorted by the nodes' order; None if they only say what the order of the document
        says."""
        if self.edges is None:
            return None
        places = {node.id: place for place, node in enumerate(self.nodes)}
        pairs = {(edge.from_, edge.to) for edge in self.edges}
        in_order = tuple(sorted(pairs, key=lambda pair: (places.get(pair[0], -1), places.get(pair[1], -1), pair)))
        return None if in_order == self.order_edges else in_order

    def _canonical_order(self) -> list[str]:
        """Where a member is written says nothing: its group says where it stands."""
        done: list[str] = []
        left = list(self.top_level)
        while left:
            done.append(left.pop(0))
            left[:0] = self.by_id[done[-1]].members()
        return done

    @property
    def order_edges(self) -> tuple[tuple[str, str], ...]:
        """The edges of a document that gives none: each node of the top level leads to the next."""
        return tuple(pairwise(self.top_level))


def plain(part: Part) -> Any:
    """A part of a document as data: lists, dicts and scalars, defaults left out."""
    return _listed(part.model_dump(by_alias=True, exclude_defaults=True))


def hash_of(value: Any) -> str:
    """The hash under which the kernel keeps this data, in hexadecimal."""
    return Trees(no_blocks, standard_registry()).build(value).root.id.hex()


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(each) for key, each in value.items()}
    return [_listed(each) for each in value] if isinstance(value, list | tuple) else value
