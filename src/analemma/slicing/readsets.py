"""From changed paths to the slices that have to be rebuilt, by what their rules read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analemma.canon.pointer import Path, format_pointer
from analemma.contracts.models import Ruleset
from analemma.contracts.paths import Pattern
from analemma.errors import Invalid

SHOWN_IN_MESSAGE = 10


@dataclass(frozen=True, slots=True)
class Impact:
    """What changed paths mean for a ruleset."""

    slices: dict[str, tuple[str, ...]]
    """The slices to rebuild, each with the pointers that it reads."""
    indexes: bool
    """Whether index entries may have changed."""
    unmapped: tuple[str, ...]
    """Changed pointers that nothing reads, declares or ignores."""


def impact_of(ruleset: Ruleset, paths: Sequence[Path]) -> Impact:
    """Which slices a change of these paths touches."""
    mapped: set[Path] = set()
    slices: dict[str, tuple[str, ...]] = {}
    for slice_type, patterns in ruleset.read_sets.items():
        touched = _touched(patterns, paths)
        mapped.update(touched)
        if touched:
            slices[slice_type] = tuple(map(format_pointer, touched))
    indexed = _touched([index.selector for index in ruleset.indexes], paths)
    mapped.update(indexed)
    unmapped = [path for path in paths if path not in mapped and not any(each.covers(path) for each in ruleset.ignore)]
    return Impact(slices, bool(indexed), tuple(map(format_pointer, unmapped)))


def refuse_unmapped(ruleset: Ruleset, unmapped: Sequence[str]) -> None:
    """Fail closed: a change that no rule accounts for may be one that a rule forgot."""
    if not unmapped:
        return
    shown = ", ".join(pointer or "the document" for pointer in unmapped[:SHOWN_IN_MESSAGE])
    more = len(unmapped) - SHOWN_IN_MESSAGE
    raise Invalid(
        f"{ruleset.ref} neither reads nor ignores what changed: {shown}" + (f" and {more} more" if more > 0 else ""),
        hint="add the paths to a slice, to impactMap or to ignore; or compile in full",
        paths=list(unmapped),
        ruleset=str(ruleset.ref),
    )


def _touched(patterns: Sequence[Pattern], paths: Sequence[Path]) -> list[Path]:
    return [path for path in paths if any(pattern.touches(path) for pattern in patterns)]
