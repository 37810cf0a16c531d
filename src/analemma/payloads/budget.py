"""Which fields of a payload stay and which leave, so that it fits: by their sizes, and by how often each changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Set
from typing import NamedTuple

from analemma.errors import Limit


class Plan(NamedTuple):
    """Where each field goes, and an upper bound of what the payload takes."""

    inline: Set[str]
    pointed: Set[str]
    grouped: Set[str]
    size: int


def plan_payload(
    inline_bytes: Mapping[str, int | None],
    pointer_bytes: Mapping[str, int | None],
    in_order: Callable[[Mapping[str, int]], Iterable[str]],
    *,
    fixed_bytes: int,
    group_bytes: int,
    target_bytes: int,
    limit_bytes: int,
) -> Plan:
    """Let fields leave until the payload is within the target, or nothing is left whose leaving would help; Limit if
    it is over the limit then.

    Given is what each field adds to the payload's JSON, name and separators included: as it is (None: it must leave),
    and as a pointer (None: its name cannot stand in one, so it can only leave together with others). First fields are
    replaced by pointers of their own, `in_order`. When all that are larger than a pointer have left and it is still too
    much, the small ones go together into one group behind one pointer; and when that is not enough, pointers follow
    them there.
    """
    kept = {name: size for name, size in inline_bytes.items() if size is not None}
    leaving = {name: pointer_bytes[name] for name in inline_bytes if name not in kept}
    pointed = {name: size for name, size in leaving.items() if size is not None}
    grouped = leaving.keys() - pointed
    total = fixed_bytes + sum(kept.values()) + sum(pointed.values()) + (group_bytes if grouped else 0)

    for name in in_order(kept):
        if total <= target_bytes:
            break
        size = pointer_bytes[name]
        if size is not None and size < kept[name]:
            total += size - kept.pop(name)
            pointed[name] = size

    movable = kept | pointed
    if total > target_bytes and (grouped or sum(movable.values()) > group_bytes):
        if not grouped:
            total += group_bytes
        for name in (*in_order(kept), *in_order(pointed)):
            if total <= target_bytes:
                break
            total -= movable[name]
            grouped.add(name)

    if total > limit_bytes:
        raise Limit(
            f"the payload takes {total} bytes when all has left that may, and {limit_bytes} is the limit",
            hint="make the control fields smaller, or give a policy with fewer of them",
            bytes=total,
            limit=limit_bytes,
        )
    return Plan(kept.keys() - grouped, pointed.keys() - grouped, grouped, total)


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
