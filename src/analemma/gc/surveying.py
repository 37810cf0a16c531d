"""Looking at one tenant: which of its blocks are needed, which are not, and what a pass may do with each."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from analemma.canon.identity import ID_BYTES, BlockId
from analemma.gc.marking import Marks


@dataclass(slots=True)
class Survey:
    """A tenant's blocks, sorted by what becomes of them. Lists of ids are 32 bytes each, in order."""

    total: int = 0
    referenced: int = 0
    waiting: int = 0
    """Doomed, and not yet to be deleted."""
    clear: bytearray = field(default_factory=bytearray)
    doom: bytearray = field(default_factory=bytearray)
    delete: bytearray = field(default_factory=bytearray)


def survey(
    blocks: Iterator[BlockId],
    dooms: Iterator[tuple[BlockId, int]],
    marks: Marks,
    limit: int,
) -> Generator[int, None, Survey]:
    """Sort blocks by two streams in the order of ids, of all of them and of those that are doomed. Both were read over
    some time, so this is a proposal: the statements that act look again. Yields, again and again, how
    many it has seen."""
    found = Survey()
    holds = marks.holds
    doomed_id, doomed_at = next(dooms, (None, 0))
    for block in blocks:
        found.total += 1
        if found.total % 10_000 == 0:
            yield found.total
        while doomed_id is not None and doomed_id < block:
            doomed_id, doomed_at = next(dooms, (None, 0))
        is_doomed = doomed_id == block
        if holds(block):
            found.referenced += 1
            if is_doomed:
                found.clear += block
        elif not is_doomed:
            found.doom += block
        elif doomed_at < limit:
            found.delete += block
        else:
            found.waiting += 1
    return found


def batches(ids: bytes | bytearray, size: int) -> Iterator[list[BlockId]]:
    """A list of ids, so many at a time."""
    for start in range(0, len(ids), size * ID_BYTES):
        piece = bytes(ids[start : start + size * ID_BYTES])
        yield [BlockId(piece[place : place + ID_BYTES]) for place in range(0, len(piece), ID_BYTES)]
