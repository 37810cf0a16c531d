"""Segments that are to be injected into a workflow: what the kernel asks of whoever runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from analemma.canon.identity import BlockId
from analemma.catalog.port import BranchKey, RowChange

HOLD_PLACE: Final = "hold_place"
"""The change that finds no row where a run has moved since somebody looked where it stands."""


@dataclass(frozen=True, slots=True)
class Injection:
    """A segment that somebody wants to be run before the one at a position."""

    key: BranchKey
    config: BlockId | None
    """The workflow's configuration."""
    document: Any
    """The same, read."""
    read_entries: Callable[[], Sequence[Mapping[str, Any]]]
    """Reads the segments so far."""
    hash_version: int
    """Theirs."""
    given: Mapping[str, Any]
    position: int


@dataclass(frozen=True, slots=True)
class Placed:
    """What becomes of the segments of a workflow that runs take."""

    entries: Sequence[Mapping[str, Any]]
    """All of them, wrapped, the new one among them."""
    hold: Callable[[BlockId], Sequence[RowChange]]
    """What goes with the commit on a version, so that the run comes to the segment; Conflict if it would not."""


PlaceSegment = Callable[[Injection], Placed | None]
"""Says what becomes of the segments if runs take them; None: they are somebody else's, and kept as they are given."""
