"""Sessions: writers that need several transactions. Their blocks are there before anything leads to them, so the
collector deletes nothing that was doomed since the oldest of them began."""

from __future__ import annotations

from typing import NewType

from analemma.catalog.engine.db import Engine, Transaction
from analemma.catalog.leases import DatabaseClock, database_clock
from analemma.catalog.port import TenantId
from analemma.errors import Conflict

SessionId = NewType("SessionId", bytes)


class Sessions:
    """Opens sessions. What is written in between goes through `touch` and `close`, in the transactions that write. The
    collector gives up dead ones."""

    def __init__(self, engine: Engine, *, clock: DatabaseClock = database_clock) -> None:
        self._engine = engine
        self._clock = clock

    def open(self, tenant: TenantId, session: SessionId) -> None:
        """Begin: from now on, what the session writes stays. `session` is 16 random bytes."""
        self._engine.write(lambda tx: tx.execute("open_session", tenant=tenant, id=session, now=self._clock(tx)))

    def touch(self, tx: Transaction, tenant: TenantId, session: SessionId) -> None:
        """First in each of the session's transactions: Conflict if it was given up; else it stays until the end."""
        if tx.execute("touch_session", tenant=tenant, id=session, now=self._clock(tx)) != 1:
            raise given_up(session)

    def close(self, tx: Transaction, tenant: TenantId, session: SessionId) -> None:
        """In the transaction that makes roots of what the session wrote: Conflict if it was given up."""
        if tx.execute("close_session", tenant=tenant, id=session) != 1:
            raise given_up(session)

    def forget(self, tenant: TenantId, session: SessionId) -> None:
        """Nothing of it is to stay."""
        self._engine.execute("close_session", tenant=tenant, id=session)


def given_up(session: SessionId) -> Conflict:
    """What a writer hears that was silent for too long."""
    return Conflict(f"session {session.hex()} was given up", hint="it was silent for too long; start again")
