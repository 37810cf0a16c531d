"""Where nodes and long texts are cut: a pure left-to-right function of the content, so the same value has the same
cuts.

A chunk ends after an entry once it has the minimum size and the entry's hash falls below a threshold proportional to
the entry's size. A chunk that fills up without such an entry is cut after the smallest hash seen (ties: the last),
which neither runs away on identical items nor shifts every later boundary after an insertion. These numbers are part of
the stored format."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Literal

from pyfastcdc import FastCDC

from analemma.canon.nodes import Entry

INLINE_BYTES = 2048
"""A value encoded in more bytes than this gets a tree of its own."""
MINIMUM_BYTES = 2048
FIRST_LEAF_MINIMUM_BYTES = 8192
"""The first leaf may grow further, so that ordinary small containers are one block and one read."""
MEAN_EXTRA_BYTES = 2048
"""How far beyond the minimum a chunk goes on average."""
MAXIMUM_BYTES = 32768
_REMEMBERED_BYTES = 128
"""Entries up to this size, such as those of index nodes, are hashed once for many edits."""

TEXT_AVERAGE_BYTES = 131072
TEXT_MINIMUM_BYTES = 65536
TEXT_MAXIMUM_BYTES = 393216
TEXT_NORMALIZATION: Literal[2] = 2


def find_cut(
    level: int, entries: Sequence[Entry], start: int, *, first: bool, clean: int = 0, ended: bool = True
) -> tuple[int, bool] | None:
    """Where the chunk that begins at `start` ends, and whether only because it was full; None when that depends on
    entries to come.

    `first` says that this is the first chunk of its level. The first `clean` entries are known to hold no natural
    end."""
    minimum = FIRST_LEAF_MINIMUM_BYTES if first and level == 0 else MINIMUM_BYTES
    # An index node with one child would let a tree grow without getting any narrower.
    fewest = start + (2 if level else 1)
    prefix = bytes((level,))
    size = sum([len(entry[0]) for entry in entries[start : start + clean]])
    if size > MAXIMUM_BYTES:
        size = clean = 0
    for position in range(start + clean, len(entries)):
        data = entries[position][0]
        width = len(data)
        if size + width > MAXIMUM_BYTES and position >= fewest:
            return _smallest_hash(prefix, entries, start, position, minimum, fewest), True
        size += width
        if size >= minimum and position + 1 >= fewest:
            ends = _ends(prefix, data) if width > _REMEMBERED_BYTES else _ends_again(prefix, data)
            if ends:
                return position + 1, False
    return (len(entries), False) if ended else None


def _smallest_hash(prefix: bytes, entries: Sequence[Entry], start: int, stop: int, minimum: int, fewest: int) -> int:
    best, best_hash = stop, 1 << 32
    size = 0
    for position in range(start, stop):
        data = entries[position][0]
        size += len(data)
        if size >= minimum and position + 1 >= fewest and (hashed := _hash(prefix, data)) <= best_hash:
            best, best_hash = position + 1, hashed
    return best


def _ends(prefix: bytes, data: bytes) -> bool:
    """Whether this entry is a natural end."""
    return _hash(prefix, data) * MEAN_EXTRA_BYTES < len(data) << 32


@lru_cache(maxsize=16384)
def _ends_again(prefix: bytes, data: bytes) -> bool:
    # Every edit cuts index nodes anew, and all but one or two of their entries are those of the edit before.
    return _ends(prefix, data)


def _hash(prefix: bytes, data: bytes) -> int:
    return int.from_bytes(sha256(prefix + data).digest()[:4], "big")


def text_cuts(data: bytes) -> list[int]:
    """The end of each chunk of a long text or of long bytes, the last one being the length."""
    if len(data) <= TEXT_MINIMUM_BYTES:
        return [len(data)]
    chunker = FastCDC(
        TEXT_AVERAGE_BYTES,
        min_size=TEXT_MINIMUM_BYTES,
        max_size=TEXT_MAXIMUM_BYTES,
        normalized_chunking=TEXT_NORMALIZATION,
    )
    return [chunk.offset + chunk.length for chunk in chunker.cut_buf(data)]
