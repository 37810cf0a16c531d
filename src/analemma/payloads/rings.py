"""Least privilege: which fields of an event the nodes of a segment may see. What nothing grants is not seen.
`Payloads.filter_event_payload` leaves the rest out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from analemma.canon.pointer import parse_pointer
from analemma.contracts.private_fields import ALWAYS_EXCLUDED as ALWAYS_EXCLUDED
from analemma.contracts.private_fields import OUTERMOST_RESTRICTIONS
from analemma.contracts.private_fields import RESERVED_PREFIXES as RESERVED_PREFIXES
from analemma.errors import Invalid

BASE_FIELDS: Mapping[str, frozenset[str]] = {
    "llm_chat": frozenset({"node", "config"}),
    "parallel_group": frozenset({"branches", "node"}),
    "aggregator": frozenset({"branch_results"}),
    "trigger": frozenset({"event_config"}),
    "code_interpreter": frozenset({"code", "node"}),
    "http_request": frozenset({"request_config", "node"}),
}
"""What a node of each type sees without asking."""

CAPABILITY_FIELDS: Mapping[str, frozenset[str]] = {
    "tool_use": frozenset({"tools", "tool_schemas"}),
    "memory_access": frozenset({"memory_context"}),
    "state_mutation": frozenset({"state_schema"}),
}
"""What each capability of a node adds."""

RING_RESTRICTIONS: Mapping[str, frozenset[str]] = {
    "ring_0": frozenset(),
    "ring_1": frozenset({"internal_state"}),
    "ring_2": frozenset({"internal_state", "credentials"}),
    "ring_3": OUTERMOST_RESTRICTIONS,
}
"""What a ring takes away again, whoever granted it. Ring 0 is trusted code, ring 3 the least privileged."""

DEFAULT_RING = "ring_3"


@dataclass(frozen=True, slots=True)
class RingPolicy:
    """The tables above, to be replaced in part or whole."""

    base_fields: Mapping[str, frozenset[str]] = field(default_factory=lambda: BASE_FIELDS)
    capability_fields: Mapping[str, frozenset[str]] = field(default_factory=lambda: CAPABILITY_FIELDS)
    ring_restrictions: Mapping[str, frozenset[str]] = field(default_factory=lambda: RING_RESTRICTIONS)
    always_excluded: frozenset[str] = ALWAYS_EXCLUDED
    reserved_prefixes: tuple[str, ...] = RESERVED_PREFIXES


@dataclass(frozen=True, slots=True)
class FilterReport:
    """What a filter did to an event."""

    ring: str
    bytes_before: int
    bytes_after: int
    fields_removed: tuple[str, ...]

    @property
    def reduction(self) -> float:
        """The part of the bytes that went, from 0 to 1."""
        return 1 - self.bytes_after / self.bytes_before if self.bytes_before else 0.0


class FilteredEvent(dict[str, Any]):
    """An event with only the fields that a segment may see, and a report of what was taken out."""

    __slots__ = ("report",)

    def __init__(self, fields: Mapping[str, Any], report: FilterReport) -> None:
        super().__init__(fields)
        self.report = report


def visible_fields(
    segment_config: Mapping[str, Any], security_ring: str = DEFAULT_RING, policy: RingPolicy | None = None
) -> frozenset[str]:
    """The fields that a segment's nodes may see together; none if it has no nodes.

    >>> sorted(visible_fields({"nodes": [{"type": "llm_chat", "reads": ["plan", "credentials"]}]}))
    ['config', 'node', 'plan']
    """
    policy = policy or RingPolicy()
    if not isinstance(security_ring, str) or security_ring not in policy.ring_restrictions:
        rings = ", ".join(sorted(policy.ring_restrictions))
        raise Invalid(f"there is no ring {security_ring!r}", hint=f"rings are {rings}")
    granted: set[str] = set()
    for node in _nodes(segment_config):
        kind = node.get("type")
        if isinstance(kind, str):
            granted |= policy.base_fields.get(kind, frozenset())
        for capability in _texts(node, "capabilities"):
            granted |= policy.capability_fields.get(capability, frozenset())
        granted.update(_field(name) for name in (*_texts(node, "reads"), *_texts(node, "writes")))
    granted -= policy.always_excluded
    granted -= policy.ring_restrictions[security_ring]
    return frozenset(name for name in granted if not name.startswith(policy.reserved_prefixes))


def _nodes(segment_config: Any) -> list[Mapping[str, Any]]:
    if not isinstance(segment_config, Mapping):
        raise Invalid(f"a segment's configuration is a mapping, not a {type(segment_config).__name__}")
    # An entry of a segment list may wrap the configuration.
    if "nodes" not in segment_config and isinstance(segment_config.get("segment_config"), Mapping):
        segment_config = segment_config["segment_config"]
    nodes = segment_config.get("nodes")
    if nodes is None:
        return []
    if not isinstance(nodes, list | tuple) or not all(isinstance(node, Mapping) for node in nodes):
        raise Invalid("the nodes of a segment are no list of mappings", pointer="/nodes")
    return list(nodes)


def _texts(node: Mapping[str, Any], key: str) -> Iterable[str]:
    texts = node.get(key)
    if texts is None:
        return ()
    if not isinstance(texts, list | tuple | set | frozenset) or not all(isinstance(text, str) for text in texts):
        raise Invalid(f"`{key}` of a node is no list of names", hint="write names, or JSON pointers")
    return texts


def _field(name: str) -> str:
    """The top-level field that a name, or a JSON pointer, is in."""
    if not name.startswith("/"):
        return name
    return parse_pointer(name)[0]
