"""From changed paths to the slices that have to be rebuilt, by what their rules read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analemma.canon.pointer import Path, format_pointer
from analemma.contracts.models import Ruleset
from analemma.contracts.paths import Pattern
from analemma.contracts.payloads import unaccounted
from analemma.errors import Invalid
from analemma.slicing.changes import ChangeSet


@dataclass(frozen=True, slots=True)
class Impact:
    """What changed paths mean for a ruleset."""

    slices: dict[str, tuple[str, ...]]
    """The slices to rebuild, each with the pointers that it reads."""
    indexes: bool
    """Whether index entries may have changed."""


def impact_of(ruleset: Ruleset, paths: Sequence[Path]) -> Impact:
    """Which slices a change of these paths touches."""
    slices: dict[str, tuple[str, ...]] = {}
    for slice_type, patterns in ruleset.read_sets.items():
        touched = _touched(patterns, paths)
        if touched:
            slices[slice_type] = tuple(map(format_pointer, touched))
    return Impact(slices, bool(_touched([index.selector for index in ruleset.indexes], paths)))


def refuse_unaccounted(ruleset: Ruleset, changes: ChangeSet) -> None:
    """Fail closed: a change that no rule accounts for may be one that a rule forgot. What is gone from the document is
    no such change: no version that could be ingested has it."""
    found = [
        each.pointer for each in changes.changes if each.new_hash is not None and not ruleset.accounts_for(each.path)
    ]
    if found:
        raise Invalid(
            f"{unaccounted(ruleset, found)}, which changed",
            hint="add the paths to a slice, to impactMap or to ignore; or compile in full",
            paths=found,
            ruleset=str(ruleset.ref),
        )


def _touched(patterns: Sequence[Pattern], paths: Sequence[Path]) -> list[Path]:
    return [path for path in paths if any(pattern.touches(path) for pattern in patterns)]
