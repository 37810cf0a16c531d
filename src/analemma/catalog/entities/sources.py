"""How far state sources have followed the branches of workflows: one row for each source and branch."""

from __future__ import annotations

from typing import NamedTuple

from analemma.canon.identity import BlockId
from analemma.catalog.port import BranchKey


class FollowedBranch(NamedTuple):
    """Where a branch stands."""

    head: BlockId
    version: int
    first: BlockId
    """The version that it began with: it tells this branch from an earlier one of the same name."""
    asked: int | None
    """Which of its versions the manifest is that was asked about; None: none of them, or one that expired."""


class SourcePosition(NamedTuple):
    """How far a source has followed a branch, and what it made of it."""

    source: str
    first: BlockId
    version: int
    entity_type: str | None = None
    entity_id: str | None = None
    taken: bytes | None = None
    problem: str | None = None

    def became_another(self, entity_type: str, entity_id: str) -> bool:
        """Whether the branch was an entity, and not this one."""
        return self.entity_id is not None and (self.entity_type, self.entity_id) != (entity_type, entity_id)


class SourceProblem(NamedTuple):
    """A state that became no entity."""

    key: BranchKey
    source: str
    version: int
    entity_type: str | None
    entity_id: str | None
    problem: str
    at_us: int


class SourceCount(NamedTuple):
    """One source, in numbers."""

    source: str
    branches: int
    problems: int
