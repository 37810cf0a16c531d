"""The rows of contracts: what is loaded, and a number that tells whether that changed; and how far state sources have
followed the branches of workflows, one row for each source and branch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from analemma.canon.nodes import BlockId
from analemma.catalog.engine.db import Engine, Statements, Transaction
from analemma.catalog.port import BranchKey
from analemma.failpoints import declare, hit

BEFORE_COMMIT = declare("contracts.before_commit", "contracts are written inside the transaction")
AFTER_COMMIT = declare("contracts.after_commit", "the contracts are loaded, but the caller does not know")


class Generation(NamedTuple):
    """Two of them are equal if nothing was loaded between them."""

    newest_us: int
    rows: int


class ContractRow(NamedTuple):
    """One contract as it lies in the catalog."""

    id: str
    version: str
    kind: str
    status: str
    body: bytes
    """Its document, in canonical JSON."""
    checksum: str
    loaded_at_us: int = 0


def generation(source: Statements) -> Generation:
    """Where the contracts of a store stand, which are the same for all tenants; one small query."""
    return source.rows(Generation, "contracts_generation")[0]


def read_contracts(source: Statements) -> tuple[Generation, list[ContractRow]]:
    """All contracts, and where they stand."""
    rows = source.rows(ContractRow, "all_contracts")
    return Generation(max((row.loaded_at_us for row in rows), default=0), len(rows)), rows


def replace_contracts(engine: Engine, expected: Generation, rows: Sequence[ContractRow], *, now_us: int) -> bool:
    """Store these, all or none; False, and nothing is changed, if others were loaded since `expected`."""

    def move(tx: Transaction) -> bool:
        tx.all("hold_contracts")
        found = generation(tx)
        if found != expected:
            return False
        # Not the clock alone: it may stand still or step back, and no change may go unseen.
        loaded_at = max(now_us, found.newest_us + 1)
        for row in sorted(rows):
            tx.execute("put_contract", **row._replace(loaded_at_us=loaded_at)._asdict())
        hit(BEFORE_COMMIT)
        return True

    done = engine.write(move)
    hit(AFTER_COMMIT)
    return done


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
