"""Which checkpoints of a LangGraph thread stay when versions expire: those whose versions do, the newest, and what the
delta channels of these are made of.

A checkpoint of a thread is a version and a row that keeps it. The row goes with the version, and with one that went
before. A row that names a version of another thread, from which its own was copied or forked, is as old as that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import orjson

from analemma.canon.identity import BlockId
from analemma.catalog.threads import CheckpointRow

EVERYTHING = "*"
"""Stands for the channels of a checkpoint of which it is not known which they are. No ancestor holds all of them."""

Held = Callable[[BlockId, Collection[str]], Collection[str]]
"""Those of some channels that a version holds whole."""


def needed_by(kept: Iterable[CheckpointRow], rows: Sequence[CheckpointRow], held: Held) -> set[str]:
    """The ancestors of some checkpoints without which their delta channels could not be put together."""
    names: set[str] = set()
    for row in rows:
        names.update([EVERYTHING] if row.deltas is None else orjson.loads(row.deltas))
    by_name = {row.checkpoint: row for row in rows}
    needed: dict[str, set[str]] = {}
    open_ends = [(row, set(names)) for row in kept] if names else []
    while open_ends:
        row, wanted = open_ends.pop()
        missing = wanted - set(held(row.manifest, wanted - {EVERYTHING}))
        parent = by_name.get(row.parent or "")
        if parent is None or not missing:
            continue
        known = needed.setdefault(parent.checkpoint, set())
        if missing - known:
            open_ends.append((parent, missing - known))
            known |= missing
    return set(needed)
