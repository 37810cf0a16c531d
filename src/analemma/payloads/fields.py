"""Which fields of a state travel inside a payload and which are left in the store: policies, as data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from analemma.errors import Invalid
from analemma.payloads.pointers import PAYLOAD_KEY
from analemma.state.arguments import RESERVED_FIELDS

DATA_PLANE_FIELDS = frozenset(
    {
        "workflow_config",
        "partition_map",
        "segment_manifest",
        "current_state",
        "final_state",
        "state_history",
        "parallel_results",
        "branch_results",
        "callback_result",
        "llm_response",
        "query_results",
        "step_history",
        "messages",
        "thought_signature",
        "thinking_process",
        "thought_steps",
    }
)
"""What only segments read: the first to leave when a payload is over its target."""

KIB = 1024


@dataclass(frozen=True)
class FieldPolicy:
    """Field sets and thresholds. A field is in one of three classes: control (stays), data (leaves first), other.

    >>> FieldPolicy(control_fields=frozenset({"ticket"})).is_control("ticket")
    True
    """

    control_fields: frozenset[str] = RESERVED_FIELDS
    """What an orchestrator needs in its hands between two segments, and no merge overwrites: never replaced by a
    pointer."""
    data_fields: frozenset[str] = DATA_PLANE_FIELDS
    field_bytes: int = 10 * KIB
    """A field that takes more than this in JSON becomes a pointer."""
    target_bytes: int = 10 * KIB
    """Fields leave for as long as the payload is larger than this and something is left that may leave."""
    limit_bytes: int = 256 * KIB
    """A payload that is larger than this when nothing more can leave is refused."""

    def __post_init__(self) -> None:
        both = self.control_fields & self.data_fields
        if both:
            raise Invalid(f"{sorted(both)[0]!r} is both a control and a data field", hint="choose one of the two")
        if PAYLOAD_KEY in self.control_fields:
            raise Invalid(f"{PAYLOAD_KEY} cannot be a control field", hint="it is the payload's own")
        if not 0 <= self.target_bytes <= self.limit_bytes or self.field_bytes < 0:
            raise Invalid(
                f"a target of {self.target_bytes} bytes with a limit of {self.limit_bytes}",
                hint="the target is at most the limit, and nothing is negative",
            )

    def is_control(self, name: str) -> bool:
        """Whether the field must stay in the payload."""
        return name in self.control_fields

    @cached_property
    def names(self) -> frozenset[str]:
        """Every field that the policy knows by name."""
        return self.control_fields | self.data_fields
