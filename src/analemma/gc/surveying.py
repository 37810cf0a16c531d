"""Looking at one tenant: which of its blocks are needed, which are not, and what a pass may do with each."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from analemma.canon.identity import ID_BYTES, BlockId
from analemma.gc.marking import Marks

TELL_EVERY = 10_000


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
    pages: Iterator[list[BlockId]],
    dooms: Iterator[tuple[BlockId, int]],
    marks: Marks,
    limit: int,
) -> Generator[int, None, Survey]:
    """Sort blocks by two streams in the order of ids, of all of them, by the page, and of those that are doomed. Both
    were read over some time, so this is a proposal: the statements that act look again. Yields, again and again, how
    many it has seen."""
    found = Survey()
    doomed = next(dooms, None)
    told = 0
    for page in pages:
        found.total += len(page)
        if found.total >= told + TELL_EVERY:
            told = found.total
            yield told
        doomed_here: dict[BlockId, int] = {}
        while doomed is not None and doomed[0] <= page[-1]:
            doomed_here[doomed[0]] = doomed[1]
            doomed = next(dooms, None)
        unmarked = marks.missing(page)
        found.referenced += len(page) - len(unmarked)
        if not doomed_here:
            found.doom += b"".join(unmarked)
            continue
        for block in unmarked:
            doomed_at = doomed_here.pop(block, None)
            if doomed_at is None:
                found.doom += block
            elif doomed_at < limit:
                found.delete += block
            else:
                found.waiting += 1
        if doomed_here:
            # Marked, or not there any more.
            there = set(page)
            found.clear += b"".join([block for block in doomed_here if block in there])
    return found


def batches(ids: bytes | bytearray, size: int) -> Iterator[list[BlockId]]:
    """A list of ids, so many at a time."""
    for start in range(0, len(ids), size * ID_BYTES):
        piece = bytes(ids[start : start + size * ID_BYTES])
        yield [BlockId(piece[place : place + ID_BYTES]) for place in range(0, len(piece), ID_BYTES)]
