"""What a branch's journal says of it: which versions there must be, and every row that repeats one of its records."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from analemma.canon.identity import BlockId
from analemma.state.records import DECIDED, EXPIRED, PINNED, TAGGED, UNPINNED, UNTAGGED

TagPlace = tuple[str, BlockId]
"""A tag's name, and a manifest that it is or was on."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What the row of a tag or a pin says beside what it is on."""

    text: str | None
    at_us: int


@dataclass(frozen=True, slots=True)
class Beginning:
    """The record that began a branch."""

    manifest: BlockId | None
    forked_from: BlockId | None
    at_us: int


@dataclass(slots=True)
class Told:
    """What a stretch of a branch's journal says."""

    whole: bool = True
    """False: it was read only up to its first problem."""
    beginning: Beginning | None = None
    moves: dict[BlockId, int] = field(default_factory=dict)
    """Every manifest the head has been moved to, with its version."""
    last: BlockId | None = None
    expired: dict[BlockId, int] = field(default_factory=dict)
    """When each version that is gone went."""
    tag_balance: dict[TagPlace, int] = field(default_factory=lambda: defaultdict(int))
    """How often a tag was put on a manifest, less how often this journal tells of its leaving.

    A tag that moves to another branch is told of in that branch's journal alone. All journals of the workflow together,
    in whatever order, leave 1 where the tag is and 0 everywhere else; those of other branches can only take away."""
    tags: dict[TagPlace, Mark] = field(default_factory=dict)
    """How a tag was last put on a manifest."""
    pins: dict[BlockId, Mark | None] = field(default_factory=dict)
    decisions: dict[BlockId, str] = field(default_factory=dict)
    """The newest decision on each version."""
    hashes: dict[int, bytes] = field(default_factory=dict)

    def add(self, record: dict[str, Any], manifest: BlockId | None) -> None:
        """Take the next record in; KeyError, TypeError or ValueError if it does not say what its kind should."""
        kind, facts, at_us = record["kind"], record["facts"], record["at"]
        if self.beginning is None:
            self.beginning = Beginning(manifest, _id(facts.get("from")), at_us)
        if record["version"] is not None and manifest is not None:
            self.moves[manifest] = record["version"]
            self.last = manifest
        if kind == EXPIRED:
            self.expired.update({BlockId(bytes.fromhex(gone)): at_us for gone in facts["manifests"]})
        elif kind in (TAGGED, UNTAGGED, PINNED, UNPINNED, DECIDED):
            if manifest is None:
                raise ValueError(f"a record of kind {kind} is on no version")
            self._add_mark(kind, facts, manifest, at_us)

    def touched_tags(self) -> set[str]:
        """The tags that this stretch tells anything of."""
        return {name for name, _ in self.tag_balance}

    def _add_mark(self, kind: str, facts: dict[str, Any], manifest: BlockId, at_us: int) -> None:
        if kind == TAGGED:
            name, left = facts["tag"], _id(facts["moved_from"])
            self.tag_balance[name, manifest] += 1
            self.tags[name, manifest] = Mark(facts["message"], at_us)
            if left is not None:
                self.tag_balance[name, left] -= 1
        elif kind == UNTAGGED:
            self.tag_balance[facts["tag"], manifest] -= 1
        elif kind == PINNED:
            self.pins[manifest] = Mark(facts["reason"], at_us)
        elif kind == UNPINNED:
            self.pins[manifest] = None
        else:
            self.decisions[manifest] = facts["decision"]


def _id(text: str | None) -> BlockId | None:
    return None if text is None else BlockId(bytes.fromhex(text))
