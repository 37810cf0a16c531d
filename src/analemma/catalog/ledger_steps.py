"""Settling entries as a sequence of statements, for a database with one writer (SQLite)."""

from __future__ import annotations

from collections.abc import Sequence

from analemma.catalog.commit_steps import commit_in_steps
from analemma.catalog.engine import Transaction
from analemma.catalog.ledger_port import BranchSettlement
from analemma.catalog.port import TenantId


def settle_in_steps(tx: Transaction, tenant: TenantId, settlements: Sequence[BranchSettlement], *, now_us: int) -> None:
    """Commit version after version, then turn the entries into tickets."""
    steps = [step for settlement in settlements for step in settlement.steps]
    for step in steps:
        if step.commit is not None:
            commit_in_steps(tx, step.commit, now_us=now_us)
    # In the order in which the statement names them: settled_at, receipt, failure, seq, tenant.
    tx.execute_many("add_ticket", [(now_us, step.receipt, step.failure, step.seq, tenant) for step in steps])
    tx.execute_many("drop_entry", [(step.seq, tenant) for step in steps])
