"""What stops a collection whose numbers look wrong. Pure: numbers in, a reason out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrakeLimits:
    """From which point on the numbers of a pass look wrong."""

    unmarked: float = 1.0
    """The largest share of blocks that nothing leads to."""
    drop: float = 0.5
    """The largest share of needed blocks by which two passes in a row may differ downwards."""
    blocks: int = 1000
    """Differences of fewer blocks than this are never wrong."""


def judge(
    *,
    roots: int,
    total: int,
    referenced: int,
    emptiness_is_unexplained: bool,
    last: tuple[int, int] | None,
    limits: BrakeLimits,
) -> str | None:
    """Why nothing of a tenant should be collected, or None. `last`: blocks, and needed ones, in the pass before."""
    if total and not roots and emptiness_is_unexplained:
        return f"there are {total} blocks and nothing that leads to any of them"
    unmarked = total - referenced
    if unmarked >= limits.blocks and unmarked > limits.unmarked * total:
        return f"nothing leads to {unmarked} of {total} blocks, more than {limits.unmarked:.0%}"
    if last is not None:
        fewer = last[1] - referenced
        if fewer >= limits.blocks and fewer > limits.drop * last[1]:
            return f"only {referenced} blocks are needed, and {last[1]} were in the pass before"
    return None
