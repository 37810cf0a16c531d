"""Which fields of a payload stay and which leave, so that it fits: pure arithmetic on sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analemma.errors import Limit


@dataclass(frozen=True, slots=True)
class Candidate:
    """A field that may leave. Sizes are what it adds to the payload's JSON, name and separators included."""

    name: str
    inline_bytes: int | None
    """None: it must leave (over the threshold, forced, or in the store already)."""
    pointer_bytes: int | None
    """None: its name cannot stand in a pointer, so it can only leave together with others."""
    first: bool = False
    """A field of the data plane: it leaves before those that are not."""
    weight: float = 1.0
    """Larger ones leave first; this is how much a byte of it counts (see `temperature`)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where each field goes, and an upper bound of what the payload takes."""

    inline: frozenset[str]
    pointed: frozenset[str]
    grouped: frozenset[str]
    size: int


def plan_payload(
    candidates: Sequence[Candidate], *, fixed_bytes: int, group_bytes: int, target_bytes: int, limit_bytes: int
) -> Plan:
    """Let fields leave until the payload is within the target, or nothing is left whose leaving would help; Limit if
    it is over the limit then.

    First fields are replaced by pointers of their own, largest first. When all that are larger than a pointer have
    left and it is still too much, the small ones go together into one group behind one pointer; and when that is not
    enough, pointers follow them there.
    """
    kept = {field.name: field.inline_bytes for field in candidates if field.inline_bytes is not None}
    leaving = [field for field in candidates if field.inline_bytes is None]
    pointed = {field.name: field.pointer_bytes for field in leaving if field.pointer_bytes is not None}
    grouped = {field.name for field in leaving if field.pointer_bytes is None}
    total = fixed_bytes + sum(kept.values()) + sum(pointed.values()) + (group_bytes if grouped else 0)

    for field in _in_order(candidates, kept):
        if total <= target_bytes:
            break
        if field.pointer_bytes is not None and field.pointer_bytes < kept[field.name]:
            total += field.pointer_bytes - kept.pop(field.name)
            pointed[field.name] = field.pointer_bytes

    movable = kept | pointed
    if total > target_bytes and (grouped or sum(movable.values()) > group_bytes):
        if not grouped:
            total += group_bytes
        for field in (*_in_order(candidates, kept), *_in_order(candidates, pointed)):
            if total <= target_bytes:
                break
            total -= movable[field.name]
            grouped.add(field.name)

    if total > limit_bytes:
        raise Limit(
            f"the payload takes {total} bytes when all has left that may, and {limit_bytes} is the limit",
            hint="make the control fields smaller, or give a policy with fewer of them",
            bytes=total,
            limit=limit_bytes,
        )
    return Plan(frozenset(kept) - grouped, frozenset(pointed) - grouped, frozenset(grouped), total)


def _in_order(candidates: Iterable[Candidate], sizes: dict[str, int]) -> list[Candidate]:
    """Those with a size, in the order in which they leave."""
    chosen = [field for field in candidates if field.name in sizes]
    return sorted(chosen, key=lambda field: (not field.first, -sizes[field.name] * field.weight, field.name))
