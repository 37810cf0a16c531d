"""How far state sources have followed the branches of workflows: one row for each source and branch."""

from __future__ import annotations

from typing import NamedTuple

from analemma.canon.identity import BlockId
from analemma.catalog.engine.db import Engine, Transaction
from analemma.catalog.kernel.versions import branch_columns
from analemma.catalog.port import BranchKey, TenantId


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


class SourceRows:
    """One tenant's."""

    def __init__(self, engine: Engine, tenant: TenantId) -> None:
        self._engine = engine
        self._tenant = tenant

    def branch(self, key: BranchKey, manifest: BlockId) -> FollowedBranch | None:
        """Where a branch stands, and which of its versions a manifest is; None if there is no such branch."""
        branch = branch_columns(self._tenant, key)
        return self._engine.row(FollowedBranch, "followed_branch", **branch, manifest=manifest)

    def positions(self, key: BranchKey) -> dict[str, SourcePosition]:
        """How far each source has followed a branch."""
        rows = self._engine.rows(SourcePosition, "source_positions", **branch_columns(self._tenant, key))
        return {each.source: each for each in rows}

    def move(self, tx: Transaction, key: BranchKey, to: SourcePosition, *, again: bool, now_us: int) -> bool:
        """Note how far a source has come; False, and nothing is noted, if somebody else has followed the branch as far
        as that (with `again`: further than that)."""
        place = branch_columns(self._tenant, key)
        return tx.execute("move_source", **place, **to._asdict(), now=now_us, again=int(again)) == 1

    def hold(self, tx: Transaction, key: BranchKey, at: SourcePosition) -> bool:
        """Have a source stay where it is until the transaction ends; False if it has moved on."""
        place, made = branch_columns(self._tenant, key), {"entity_type": at.entity_type, "entity_id": at.entity_id}
        return tx.execute("hold_source", **place, source=at.source, first=at.first, version=at.version, **made) == 1

    def drop(self, tx: Transaction, key: BranchKey, at: SourcePosition) -> bool:
        """Forget a branch that is gone; False if a source has moved on since."""
        place = branch_columns(self._tenant, key)
        return tx.execute("drop_source", **place, source=at.source, first=at.first, version=at.version) == 1

    def branches(self, after: BranchKey | None, limit: int) -> list[BranchKey]:
        """A page of the branches that there are, of all owners."""
        owner, workflow, branch = after or ("", "", "")
        return self._engine.rows(
            BranchKey, "heads_after", tenant=self._tenant, owner=owner, workflow=workflow, branch=branch, limit=limit
        )

    def problems(self, source: str | None, after: tuple[str, str, str, str] | None, limit: int) -> list[SourceProblem]:
        """A page of the states that became no entity."""
        owner, workflow, branch, last = after or ("", "", "", "")
        rows = self._engine.all(
            "source_problems",
            tenant=self._tenant,
            source=source,
            after_owner=owner,
            after_workflow=workflow,
            after_branch=branch,
            after_source=last,
            limit=limit,
        )
        return [SourceProblem(BranchKey(*row[:3]), *row[3:]) for row in rows]

    def counts(self) -> list[SourceCount]:
        """How many branches each source follows."""
        return self._engine.rows(SourceCount, "source_counts", tenant=self._tenant)
