"""Which fields of a payload stay and which leave, so that it fits: by a policy, which is data, by their sizes, and by
how often each changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from analemma.errors import Invalid, Limit
from analemma.payloads.pointers import GROUP_BYTES, PAYLOAD_KEY, pointer_bytes
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


class Plan(NamedTuple):
    """Which fields leave, and an upper bound of what the payload takes."""

    pointed: Set[str]
    grouped: Set[str]
    size: int


def plan_payload(
    inline_bytes: Mapping[str, int | None], policy: FieldPolicy, weights: Mapping[str, float], *, fixed_bytes: int
) -> Plan:
    """Let fields leave until the payload is within the target, or nothing is left whose leaving would help; Limit if
    it is over the limit then.

    Given is what each field adds to the payload's JSON as it is, name and separators included (None: it must leave),
    and how much a byte of each counts. First fields are replaced by pointers of their own: those of the data plane,
    then the largest. When all that are larger than a pointer have left and it is still too much, the small ones go
    together into one group behind one pointer; and when that is not enough, pointers follow them there. Fields whose
    names cannot stand in a pointer can only leave together with others.
    """
    kept = {name: size for name, size in inline_bytes.items() if size is not None}
    as_pointer = {name: pointer_bytes(name) for name in inline_bytes}
    leaving = inline_bytes.keys() - kept
    pointed = {name: size for name, size in as_pointer.items() if name in leaving and size is not None}
    grouped = leaving - pointed.keys()
    total = fixed_bytes + sum(kept.values()) + sum(pointed.values()) + (GROUP_BYTES if grouped else 0)

    def in_order(bytes_of: Mapping[str, int]) -> list[str]:
        weighed = {name: -size * weights.get(name, 1.0) for name, size in bytes_of.items()}
        return sorted(weighed, key=lambda name: (name not in policy.data_fields, weighed[name], name))

    for name in in_order(kept):
        if total <= policy.target_bytes:
            break
        size = as_pointer[name]
        if size is not None and size < kept[name]:
            total += size - kept.pop(name)
            pointed[name] = size

    movable = kept | pointed
    if total > policy.target_bytes and (grouped or sum(movable.values()) > GROUP_BYTES):
        if not grouped:
            total += GROUP_BYTES
        for name in (*in_order(kept), *in_order(pointed)):
            if total <= policy.target_bytes:
                break
            total -= movable[name]
            grouped.add(name)

    if total > policy.limit_bytes:
        raise Limit(
            f"the payload takes {total} bytes when all has left that may, and {policy.limit_bytes} is the limit",
            hint="make the control fields smaller, or give a policy with fewer of them",
            bytes=total,
            limit=policy.limit_bytes,
        )
    return Plan(pointed.keys() - grouped, grouped, total)


START_RATE = 0.3
"""How often a field changes of which nothing is known yet: neither often nor seldom."""
MEMORY = 0.75
"""How much of the rate an observation leaves: after four quiet ones a field changes seldom, after two changes often."""
MOST_WORKFLOWS, MOST_FIELDS = 256, 1000


class Temperatures:
    """How often each field of the workflows seen last changes, as this process has seen it. It decides which of two
    fields leaves first, and nothing else: forgetting it all costs a few bytes of writing. Safe to share between
    threads: what two of them observe at once may count once."""

    def __init__(self) -> None:
        self._workflows: OrderedDict[tuple[str, str], dict[str, tuple[int, float]]] = OrderedDict()

    def weights(self, workflow: tuple[str, str], seen: Mapping[str, int]) -> dict[str, float]:
        """Take note of what the fields are now, and tell how much a byte of each counts. A field whose fingerprint is
        another than last time has changed."""
        fields = self._workflows.pop(workflow, {})
        self._workflows[workflow] = fields
        if len(self._workflows) > MOST_WORKFLOWS:
            self._workflows.popitem(last=False)
        for name, fingerprint in seen.items():
            known = fields.get(name)
            if known is not None:
                fields[name] = fingerprint, known[1] * MEMORY + (known[0] != fingerprint) * (1 - MEMORY)
            elif len(fields) < MOST_FIELDS:
                fields[name] = fingerprint, START_RATE
        return {name: weight(rate) for name, (_, rate) in fields.copy().items()}


def weight(rate: float) -> float:
    """What a byte of a field counts when the largest leave first: of a hot one, which would be written to the store
    each time, a quarter, and of a cold one, which is written there once, four.

    >>> [weight(rate) for rate in (0.05, 0.3, 0.5)]
    [4.0, 1.0, 0.25]
    """
    return 0.25 if rate >= 0.5 else 4.0 if rate <= 0.1 else 1.0
