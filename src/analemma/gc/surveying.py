"""Looking at one tenant: which of its blocks are needed, which are not, and what a pass may do with each."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
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
    dooms: Iterator[Sequence[tuple[BlockId, int]]],
    marks: Marks,
    limit: int,
) -> Generator[int, None, Survey]:
    """Sort blocks by two streams in the order of ids, by the page: of all of them, and of those that are doomed. Both
    were read over some time, so this is a proposal: the statements that act look again. Yields, again and again, how
    many it has seen."""
    found = Survey()
    doomed: dict[BlockId, int] = {}
    """Those that were read, from the page at hand on."""
    read_until = b""
    told = 0
    for page in pages:
        found.total += len(page)
        if found.total >= told + TELL_EVERY:
            told = found.total
            yield told
        while read_until < page[-1] and (more := next(dooms, None)) is not None:
            doomed.update(more)
            read_until = more[-1][0]
        unmarked = marks.missing(page)
        found.referenced += len(page) - len(unmarked)
        if not doomed:
            found.doom += b"".join(unmarked)
            continue
        found.doom += b"".join([block for block in unmarked if block not in doomed])
        unneeded = [block for block in unmarked if block in doomed]
        old = [block for block in unneeded if doomed[block] < limit]
        found.delete += b"".join(old)
        found.waiting += len(unneeded) - len(old)
        doomed_here = [block for block in page if block in doomed]
        if len(doomed_here) > len(unneeded):
            found.clear += b"".join(sorted(set(doomed_here).difference(unneeded)))
        doomed = {block: number for block, number in doomed.items() if block > page[-1]}
    return found


def batches(ids: bytes | bytearray, size: int) -> Iterator[list[BlockId]]:
    """A list of ids, so many at a time."""
    for start in range(0, len(ids), size * ID_BYTES):
        piece = bytes(ids[start : start + size * ID_BYTES])
        yield [BlockId(piece[place : place + ID_BYTES]) for place in range(0, len(piece), ID_BYTES)]
