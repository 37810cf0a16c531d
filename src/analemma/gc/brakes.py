"""What stops a collection whose numbers look wrong. Pure: numbers in, a reason out."""

from __future__ import annotations

from analemma.settings import Settings


def judge(
    *,
    roots: int,
    total: int,
    referenced: int,
    emptiness_is_unexplained: bool,
    last: tuple[int, int] | None,
    limits: Settings,
) -> str | None:
    """Why nothing of a tenant should be collected, or None. `last`: blocks, and needed ones, in the pass before."""
    if total and not roots and emptiness_is_unexplained:
        return f"there are {total} blocks and nothing that leads to any of them"
    unmarked = total - referenced
    if unmarked >= limits.gc_brake_blocks and unmarked > limits.gc_brake_unmarked * total:
        return f"nothing leads to {unmarked} of {total} blocks, more than {limits.gc_brake_unmarked:.0%}"
    if last is not None:
        fewer = last[1] - referenced
        if fewer >= limits.gc_brake_blocks and fewer > limits.gc_brake_drop * last[1]:
            return f"only {referenced} blocks are needed, and {last[1]} were in the pass before"
    return None
