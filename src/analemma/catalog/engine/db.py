"""What the catalog asks of a database: named statements, in transactions, with errors already in our own words.
Whether a transaction happened whose answer was lost is found out by `send`.

Lists are bound in a way of each driver's own: on SQLite as JSON, on PostgreSQL as arrays.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from analemma.catalog.engine.procedures import ITSELF, Refused
from analemma.catalog.engine.wakeups import Wakeups
from analemma.errors import AnalemmaError, Conflict, Corrupt, Expired, Internal, Invalid, OutcomeUnknown, Unavailable

if TYPE_CHECKING:
    from analemma.catalog.engine.sql import Sql

Result = TypeVar("Result")
Value = TypeVar("Value")
Row = tuple[Any, ...]
Convert = Callable[[Any], Any]
# Dimensions, whether there are NULLs, element type, length, lower bound.
_HEADER = Struct(">iiIii")
_LENGTH = Struct(">i")
_BIGINT = Struct(">iq")
_INTEGER = Struct(">ii")
_NULL = _LENGTH.pack(-1)
_BYTEA, _INT8, _INT4, _TEXT = 17, 20, 23, 25


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, ready for its driver."""

    name: str
    sql: str
    parameters: tuple[str, ...]
    """Each parameter once, in the order in which the SQL first names it: also the order of a row in `execute_many`."""
    binds: tuple[tuple[int, Convert | None], ...] | None
    """Where the driver wants other values than the parameters as they are: which one stands at each placeholder, and
    what is made of it."""

    @property
    def places(self) -> Sequence[int]:
        """Which parameter stands at each placeholder."""
        return range(len(self.parameters)) if self.binds is None else [place for place, _ in self.binds]

    def bind(self, values: Sequence[Any]) -> Sequence[Any]:
        """The values of the parameters as the driver takes them."""
        if self.binds is None:
            return values
        return [values[place] if convert is None else convert(values[place]) for place, convert in self.binds]


class Statements(ABC):
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


class Transaction(Statements):
    """Statements that take effect together. Belongs to one thread at a time, and is over when its block ends."""

    __slots__ = ("_counts", "_sql")

    def __init__(self, sql: Sql, counts: Counter[str]) -> None:
        self._sql = sql
        self._counts = counts

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether what is done is still to be committed: not so if each statement is a transaction of its own."""

    @abstractmethod
    def execute_many(self, name: str, rows: Iterable[Sequence[Any]], /) -> int:
        """Run it for each row, in the order in which the SQL first names its parameters; rows touched in all."""

    @abstractmethod
    def call(self, name: str, given: Any, /) -> list[Any] | None:
        """Do a procedure of `catalog/sql` with what is given; its answer, if it has one. Refused, if it is not as the
        procedure expects: then the transaction must be undone."""

    @abstractmethod
    def script(self, sql: str, /) -> None:
        """Run a script of the schema: several statements, no parameters."""

    def _bound(self, name: str, parameters: dict[str, Any]) -> tuple[Statement, Sequence[Any]]:
        """A statement that is about to run, if there is one, and what the driver takes for its parameters."""
        statement = self._sql.statements[name]
        if not statement.sql:
            return statement, []
        self._counts[name] += 1
        names = statement.parameters
        if len(parameters) != len(names):
            raise Internal(
                f"{name} takes {', '.join(names) or 'nothing'}; it was given {', '.join(parameters) or 'nothing'}"
            )
        values = [parameters[name] for name in names]
        return statement, values if statement.binds is None else statement.bind(values)


class Engine(Statements):
    """A database. Called on the engine itself, a statement is a transaction of its own.

    `with engine.snapshot() as tx:` reads one snapshot. `engine.write(move)` runs `move(tx)` and commits, and does so
    again when the database asks for a retry: `move` must have no effect outside `tx`. It may run on another thread, in
    one commit with the work of others; it must not call the engine.
    """

    sql: Sql
    """The statements, as this database takes them."""
    schema = 0
    """The number of the schema that it was brought to, which is what this program was made for."""
    has_one_writer: bool
    """One transaction writes at a time, and whoever comes next waits for it. Else they wait for each other's rows."""

    def __init__(self) -> None:
        """Once a fork can find what it asks of it."""
        self.statements: Counter[str] = Counter()
        """How often each statement ran: what a query costs is part of its contract, and tests read it here."""
        _ENGINES.add(self)

    @abstractmethod
    def snapshot(self, *, long: bool = False) -> AbstractContextManager[Transaction]:
        """A block that reads one snapshot. With `long` it may take as long as it likes between its statements; and
        where several may write at a time it can also write at its end, and fails, not retried, if a row that it writes
        was changed since the snapshot."""

    @abstractmethod
    def write(self, move: Callable[[Transaction], Result], /, *, durable: bool = False, alone: bool = False) -> Result:
        """Run `move` in a write transaction, with retries; its result once that is stored as durably as the database is
        set up to, or with `durable` so that no loss of power can take it back.

        With `alone` it does one procedure or statement and nothing else, for which PostgreSQL needs no transaction."""

    def execute(self, name: str, /, **parameters: Any) -> int:
        return self.write(lambda tx: tx.execute(name, **parameters))

    def functions(self) -> Mapping[str, str]:
        """The functions that procedures are run as, by their names, and what makes each."""
        return {}

    @abstractmethod
    def wakeups(self) -> Wakeups:
        """What tells workers, also those of other processes, that something may be due."""

    @abstractmethod
    def identity(self) -> tuple[str | None, str]:
        """What tells this database from its copies, as far as anything does: the system that it is of, if that may be
        asked, and which one it is there."""

    @abstractmethod
    def vacuum(self) -> tuple[int, int]:
        """Give free pages back to the file system; the database's bytes before and after."""

    @abstractmethod
    def close(self) -> None:
        """Give back connections and locks; safe to call twice."""

    def is_quiet(self) -> bool:
        """Whether nobody is using, making or closing what a forked child would have to close."""
        return True

    @abstractmethod
    def lose(self, *, quiet: bool) -> None:
        """In a forked child: close what the parent opened if all was quiet, else never touch it again; and refuse."""


def send(once: Callable[[], Result], *, found: Callable[[], Result | None] = lambda: None) -> Result:
    """Do it once; if its answer was lost, find out whether it happened, and if not, make it happen. `found` gives what
    stands for the answer of what happened, or None if it did not; what may be done twice needs none.

    That it has not happened proves nothing, because a server may still be at work on it, and a log may hold a record
    that only recovery applies. Doing it again does, if only one of the two can: of two that compare and set, the second
    is refused. (Then `Refused.doubt` is set, for refusals that say nothing about the first.)
    """
    try:
        return once()
    except OutcomeUnknown as exc:
        unknown = exc
    try:
        answer = found()
        if answer is not None:
            return answer
        try:
            return once()
        except (Conflict, Expired) as exc:
            # Perhaps it was our own lost one that was first.
            answer = found()
            if answer is not None:
                return answer
            if isinstance(exc, Refused):
                exc.doubt = unknown
            raise
    except (Conflict, Expired, OutcomeUnknown):
        raise
    except AnalemmaError as exc:
        raise unknown from exc


def picker(paths: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What makes a tuple of these attributes of an object."""
    if paths == [ITSELF]:
        return lambda row: (row,)
    if len(paths) > 1:
        return attrgetter(*paths)
    if not paths:
        return lambda row: ()
    get = attrgetter(paths[0])
    return lambda row: (get(row),)


def as_json(values: Sequence[Any] | None) -> str | None:
    """A list of numbers or texts, or of rows of them."""
    try:
        return None if values is None else orjson.dumps(list(values)).decode()
    except TypeError as exc:
        raise does_not_fit() from exc


def _joined(values: Sequence[bytes]) -> bytes:
    """JSON has no bytes: one value with all ids, one after the other, and a list of as many places."""
    together = b"".join(values)
    if len(together) != _width(values) * len(values):
        # Ids from outside are checked where they come in, so some row has one that was cut or made longer.
        raise Corrupt(
            f"an id of {_width(values)} bytes stands among others of another length: a row of the catalog is damaged",
            hint="run verify, which names the row; restore the catalog from a backup",
        )
    return together


def _width(values: Sequence[bytes]) -> int:
    """The length of each id."""
    return len(values[0]) if values else 0


def _places(values: Sequence[bytes]) -> str:
    """One for each id. Counting them up takes a third of the time that a recursion does."""
    return f"[{','.join('0' * len(values))}]"


JOINED: tuple[Convert, ...] = (_joined, _width, _width, _places)
"""What SQLite takes for a list of ids."""


class Array(bytes):
    """A list as PostgreSQL takes it, in its binary format. What its elements are is said by the statement, so that none
    is guessed: psycopg's own dumper inspects every element in Python, which for a commit costs more than the commit."""


def _integers(values: Sequence[int | None], element: int = _INT8) -> Array:
    """bigint[], or integer[]"""
    size, pack = (8, _BIGINT.pack) if element == _INT8 else (4, _INTEGER.pack)
    return _array(element, len(values), [_NULL if value is None else pack(size, value) for value in values])


def _blobs(values: Sequence[bytes | None], element: int = _BYTEA) -> Array:
    """bytea[]"""
    pack = _LENGTH.pack
    parts = []
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            parts += (pack(len(value)), value)
    return _array(element, len(values), parts)


def _texts(values: Sequence[str | None]) -> Array:
    """text[]"""
    return _blobs([None if value is None else value.encode() for value in values], _TEXT)


ARRAYS: Mapping[str, Callable[[Sequence[Any]], Array]] = {
    "bigint": _integers,
    "integer": partial(_integers, element=_INT4),
    "bytea": _blobs,
    "text": _texts,
}
"""By the type of the elements."""


def _array(element: int, length: int, parts: list[bytes]) -> Array:
    header = _HEADER.pack(1, 1, element, length, 1) if length else _HEADER.pack(0, 0, element, 0, 1)[:12]
    return Array(b"".join([header, *parts]))


def as_array(kind: str, place: int | None, rows: Sequence[Any] | None) -> Array | None:
    """One column of the rows, or all that is given as one."""
    if rows is None:
        return None
    return ARRAYS[kind](rows if place is None else [row[place] for row in rows])


def does_not_fit() -> Invalid:
    """The error for a value that no driver takes."""
    return Invalid("a value does not fit the database", hint="integers are 64 bits and text is valid Unicode")


def lost_in_a_fork() -> Unavailable:
    """The error in a child process for whatever its parent had open."""
    return Unavailable(
        "the store was open when this process was forked",
        hint="open it after forking, or start processes with the spawn method",
    )


_ENGINES: weakref.WeakSet[Engine] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    engines = list(_ENGINES)
    # To be closed in the child they must be at rest, all of them.
    quiet = all(engine.is_quiet() for engine in engines)
    for engine in engines:
        engine.lose(quiet=quiet)


os.register_at_fork(after_in_child=_after_fork_in_child)
