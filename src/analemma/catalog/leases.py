"""Leases of whoever is to be the only one in a store, as a collector, by the database's clock. What is held by the row
of the thing itself is renewed there: a run (`flows.leases`), lanes (`outbox.holding`), a payload's pointers
(`catalog.kernel.payloads`), a backfill (`pipeline.backfill_running`), a node's number (`pipeline.versions`), an
operation on a workspace (`archives.operations`).

Whoever takes a `Lease` is the only one at it until it ends, and has a number that only grows. Every transaction under
it begins by holding its row: whoever finds another number there has lost it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from analemma.catalog.engine.db import Engine, Statements, Transaction
from analemma.errors import Conflict, Unavailable
from analemma.failpoints import hit

Result = TypeVar("Result")

SECOND_US = 1_000_000
DatabaseClock = Callable[[Statements], int]
"""Tells the time that leases, grace and ages go by, in microseconds since 1970-01-01Z."""
LONGEST_LEASE_S = 86_400
"""A lease that ends later is from a clock that was wrong."""


class LeaseLost(Conflict):
    """Another has the lease by now: whoever had it must not write any more, and what it did about it in this
    transaction must be undone."""


def database_clock(source: Statements, /) -> int:
    """The database's own time: the same for all programs, however wrong their machines' clocks are."""
    return int(source.value("database_now"))


class LeaseRow(NamedTuple):
    """Who has a lease."""

    number: int
    """Of whoever took it last; 0: nobody ever did."""
    holder: str | None
    until_us: int
    started_at_us: int = 0
    needed: int | None = None
    """Of archives: how many were needed when a pass last went through."""


class Lease:
    """One that was taken. Each kind has its statements: KIND, KIND_take, KIND_hold, KIND_renew and KIND_finish."""

    kind: ClassVar[str]
    doing: ClassVar[str]
    """What its holder is at."""
    after_take: ClassVar[str]
    """The failpoint behind taking it."""

    def __init__(self, engine: Engine, clock: DatabaseClock, number: int, lease_s: float, key: dict[str, Any]) -> None:
        self.number = number
        self._engine = engine
        self._clock = clock
        self._lease_us = int(lease_s * SECOND_US)
        self._key = key

    @classmethod
    def take(
        cls, engine: Engine, holder: str, lease_s: float, *, store_id: str, clock: DatabaseClock, **key: Any
    ) -> Self:
        """Begin; Conflict while another holds it, Unavailable if this is not the store or the schema that the program
        was made for."""
        known = engine.schema

        def move(tx: Transaction) -> int | Conflict:
            version = tx.value("schema_version")
            if version != known:
                # A later schema may have roots in tables that this program does not read.
                raise Unavailable(
                    f"the database has schema {version}, this collector was made for {known}",
                    hint="use one release of analemma everywhere",
                )
            store = tx.value("store_id")
            if store != store_id:  # guard: lease.store
                raise Unavailable(
                    f"this is store {store}, and the collector was started on store {store_id}",
                    hint="check what the database URL leads to, then start it again",
                )
            now = clock(tx)
            until, longest = now + int(lease_s * SECOND_US), now + LONGEST_LEASE_S * SECOND_US
            row = tx.one(f"{cls.kind}_take", **key, holder=holder, now=now, until=until, longest=longest)
            if row is None:
                return _taken(cls.look(tx, **key), cls.doing, now)
            cls._begin(tx, row[0], holder, now)
            return int(row[0])

        taken = engine.write(move)
        if isinstance(taken, Conflict):
            raise taken
        hit(cls.after_take)
        return cls(engine, clock, taken, lease_s, key)

    @classmethod
    def look(cls, source: Statements, **key: Any) -> LeaseRow:
        """Who has it."""
        return source.row(LeaseRow, cls.kind, **key) or LeaseRow(0, None, 0)

    @classmethod
    def _begin(cls, tx: Transaction, number: int, holder: str, now_us: int) -> None:
        """Write down that it was taken, in the same transaction."""

    def act(self, move: Callable[[Transaction], Result], *, durable: bool = False) -> Result:
        """Do it in a transaction until whose end nobody takes the lease; LeaseLost if it is another's already."""

        def guarded(tx: Transaction) -> Result:
            if not self._is_held(tx):  # guard: lease.number
                raise self._lost()
            return move(tx)

        return self._engine.write(guarded, durable=durable)

    def execute(self, name: str, /, **parameters: Any) -> int:
        """`act` with one statement; how many rows it touched."""
        return self.act(lambda tx: tx.execute(name, **parameters))

    def execute_many(self, name: str, rows: Sequence[Sequence[Any]], /) -> int:
        """`act` with one statement for each of these rows."""
        return self.act(lambda tx: tx.execute_many(name, rows))

    def renew(self) -> None:
        """Keep it for another while; LeaseLost if it is another's."""
        self._engine.write(self._renew)

    def _renew(self, tx: Transaction) -> None:
        until = self._clock(tx) + self._lease_us
        if tx.execute(f"{self.kind}_renew", **self._key, until=until, number=self.number) != 1:
            raise self._lost()

    def _is_held(self, tx: Statements) -> bool:
        return tx.one(f"{self.kind}_hold", **self._key) == (self.number,)

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"{self.doing}: pass {self.number} has lost its lease to another",
            hint="nothing is wrong: the other one goes on",
        )


def _taken(row: LeaseRow, doing: str, now_us: int) -> Conflict:
    left_s = max(0, (row.until_us - now_us) // SECOND_US)
    return Conflict(
        f"{row.holder} is {doing}",
        hint=f"wait until it is done; if it died, its lease ends in {left_s} s",
        holder=row.holder,
    )
