"""The rows of contracts: what is loaded, and a number that tells whether that changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from analemma.catalog.engine.db import Engine, Statements, Transaction
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
