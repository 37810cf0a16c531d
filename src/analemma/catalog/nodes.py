"""Node numbers for makers of versions: leased by the database's clock, so that no two use one at the same time."""

from __future__ import annotations

from typing import NamedTuple

from analemma.catalog.engine.db import Engine, Transaction
from analemma.catalog.leases import DatabaseClock, database_clock
from analemma.errors import Limit

NODES = 1024


class NodeLease(NamedTuple):
    """A number that is held."""

    node: int
    newest: int
    """The newest version that was made under it, as far as is known."""


class NodeLeases:
    """Who holds which number. One whose holder crashed is free when its lease is over."""

    def __init__(self, engine: Engine, *, clock: DatabaseClock = database_clock) -> None:
        self._engine = engine
        self._clock = clock

    def take(self, holder: str, lease_s: float, *, node: int | None = None, newest: int = 0) -> NodeLease:
        """Lease a number, or this one; Limit if none is free."""

        def move(tx: Transaction) -> NodeLease | bool:
            now = self._clock(tx)
            row = tx.one("free_node", now=now) if node is None else (node, 0)
            if row is None:
                return False
            told = {"node": row[0], "holder": holder, "until": now + round(lease_s * 1_000_000)}
            if tx.execute("take_node", **told, newest=max(newest, row[1]), now=now) == 1:
                return NodeLease(row[0], max(newest, row[1]))
            # Another was faster; there may be more.
            return node is None

        found: NodeLease | bool = True
        while found is True:
            found = self._engine.write(move)
        if isinstance(found, NodeLease):
            return found
        raise Limit(
            "no node number is free for making versions" if node is None else f"node {node} is in use by another",
            hint="close stores that are not used, or wait until the leases of crashed ones end",
            nodes=NODES,
        )

    def renew(self, lease: NodeLease, holder: str, lease_s: float, *, newest: int) -> bool:
        """Hold on to a number; False if another has it."""

        def move(tx: Transaction) -> bool:
            until = self._clock(tx) + round(lease_s * 1_000_000)
            return tx.execute("renew_node", node=lease.node, holder=holder, until=until, newest=newest) == 1

        return self._engine.write(move)

    def release(self, lease: NodeLease, holder: str, *, newest: int) -> None:
        """Give a number back."""
        self._engine.write(
            lambda tx: tx.execute("renew_node", node=lease.node, holder=holder, until=0, newest=newest),
        )
