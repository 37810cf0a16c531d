"""What the catalog asks of a database: named statements, in transactions, with errors already in our own words."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from analemma.catalog.engine.sql import Dialect
from analemma.errors import Unavailable

Result = TypeVar("Result")
Value = TypeVar("Value")
Row = tuple[Any, ...]


class Statements(Protocol):
    """Runs statements by their name in `catalog/sql`."""

    __slots__ = ()

    @abstractmethod
    def all(self, name: str, /, **parameters: Any) -> list[Row]:
        """Every row."""

    def one(self, name: str, /, **parameters: Any) -> Row | None:
        """The only row, or None."""
        rows = self.all(name, **parameters)
        return rows[0] if rows else None

    def rows(self, shape: Callable[..., Value], name: str, /, **parameters: Any) -> list[Value]:
        """Every row, as a value of the type that has its columns."""
        return [shape(*row) for row in self.all(name, **parameters)]

    def row(self, shape: Callable[..., Value], name: str, /, **parameters: Any) -> Value | None:
        """The only row as a value, or None."""
        rows = self.all(name, **parameters)
        return shape(*rows[0]) if rows else None

    def value(self, name: str, /, **parameters: Any) -> Any:
        """What the only row has in its first column; for a statement that always gives one."""
        return self.all(name, **parameters)[0][0]

    def pages(self, name: str, /, behind: Mapping[str, Any], *, limit: int, **parameters: Any) -> Iterator[list[Row]]:
        """Every row, so many at a time: each page goes on behind the last row of the one before, by the parameters in
        `behind`, which begin as given and are the row's first columns. What is written meanwhile may show or not."""
        while page := self.all(name, **parameters, **behind, limit=limit):
            yield page
            if len(page) < limit:  # guard: page.last
                return
            behind = dict(zip(behind, page[-1], strict=False))

    @abstractmethod
    def execute(self, name: str, /, **parameters: Any) -> int:
        """Run it; how many rows it touched."""


class Transaction(Statements, Protocol):
    """Statements that take effect together. Belongs to one thread at a time, and is over when its block ends."""

    dialect: Dialect

    @property
    def is_open(self) -> bool:
        """Whether what is done is still to be committed: not so if each statement is a transaction of its own."""

    def execute_many(self, name: str, rows: Iterable[Sequence[Any]], /) -> int:
        """Run it for each row, in the order in which the SQL first names its parameters; rows touched in all."""

    def call(self, name: str, given: Any, /) -> list[Any] | None:
        """Do a procedure of `catalog/sql` with what is given; its answer, if it has one. Refused, if it is not as the
        procedure expects: then the transaction must be undone."""

    def script(self, sql: str, /) -> None:
        """Run a migration: several statements, no parameters."""


class Engine(Statements, Protocol):
    """A database. Called on the engine itself, a statement is a transaction of its own.

    `with engine.transaction() as tx:` reads one snapshot. `engine.write(move)` runs `move(tx)` and commits, and does so
    again when the database asks for a retry: `move` must have no effect outside `tx`. It may run on another thread, in
    one commit with the work of others; it must not call the engine.
    """

    dialect: Dialect
    statements: Counter[str]
    """How often each statement ran: what a query costs is part of its contract, and tests read it here."""

    def transaction(self, *, write: bool = False) -> AbstractContextManager[Transaction]:
        """A block that commits at its end, or rolls back if it raises; not retried."""

    def snapshot(self) -> AbstractContextManager[Transaction]:
        """A block that reads one snapshot. Where several may write at a time (PostgreSQL) it can also write at its end,
        and fails, not retried, if a row that it writes was changed since the snapshot."""

    def write(self, move: Callable[[Transaction], Result], /, *, durable: bool = False, alone: bool = False) -> Result:
        """Run `move` in a write transaction, with retries; its result once that is stored as durably as the database is
        set up to, or with `durable` so that no loss of power can take it back.

        With `alone` it does one procedure or statement and nothing else, for which PostgreSQL needs no transaction."""

    def missing_functions(self, found: Mapping[str, str]) -> list[str]:
        """Functions that procedures need and that are not among those which the database has."""

    def function_changes(self, found: Mapping[str, str]) -> list[str]:
        """What makes the functions that are missing, and drops those that nobody needs."""

    def close(self) -> None:
        """Give back connections and locks; safe to call twice."""


def lost_in_a_fork() -> Unavailable:
    """The error in a child process for whatever its parent had open."""
    return Unavailable(
        "the store was open when this process was forked",
        hint="open it after forking, or start processes with the spawn method",
    )
