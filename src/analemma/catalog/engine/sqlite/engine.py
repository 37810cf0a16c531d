"""The SQLite engine: one writer, many snapshot readers, any number of processes.

A procedure runs step by step, inside the write transaction, each step behind a failpoint. Its rows are bound one by
one, never passed as one JSON array with their bytes beside it: cutting those apart takes longer than all the rest.

SQLite stores any value in any column, so a damaged file or another program can put text where a number was. Such a row
is told as damage here, before anything computes with it.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, TypeVar, cast

from analemma.catalog.engine.db import Engine, Row, Statement, Transaction, lost_in_a_fork, picker
from analemma.catalog.engine.procedures import AFTER, BEFORE, Procedure, Refused
from analemma.catalog.engine.sql import SQLITE, Lazy
from analemma.catalog.engine.sqlite.errors import FAILURES, translate
from analemma.catalog.engine.sqlite.memory import is_in_memory, remove_from_memory
from analemma.catalog.engine.sqlite.writer import PATIENCE_S, SqliteWriter, Synchronous
from analemma.catalog.engine.wakeups import LogListener, Wakeups
from analemma.errors import AnalemmaError, Corrupt, Unavailable
from analemma.failpoints import hit

Result = TypeVar("Result")
MOST_IDLE = 16
_TABLE = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE)\s+(\w+)", re.IGNORECASE)
_GIVEN = re.compile(r"\bAS\s+(\w+)", re.IGNORECASE)
"""A name that a statement gives to a column."""
_PYTHON: dict[str, type] = {"INTEGER": int, "BIGINT": int, "TEXT": str, "BLOB": bytes}
_ONCE = (None,)
"""The rows of a step that is done once."""

# The driver looks for an adapter of every bytes and None that it binds, and makes and drops an error if there is none.
# One that gives back what it was given spares that; for whoever else uses the driver here nothing changes.
sqlite3.register_adapter(bytes, bytes)
sqlite3.register_adapter(type(None), {None: None}.get)


class SqliteEngine(Engine):
    """One database file, opened by one process.

    `synchronous="normal"` gives up durability against a power cut for about three times the commits per second; kill -9
    stays harmless. In memory nothing is flushed. A write that does not get its turn within a minute is a Timeout, and
    so is one that waits for the same holder longer than `patience_s`; for a program that knows nothing of turns it
    waits no longer either.
    """

    sql = SQLITE
    has_one_writer = True

    def __init__(
        self, path: str | os.PathLike[str], *, synchronous: Synchronous = "full", patience_s: float = PATIENCE_S
    ) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._types = ColumnTypes()
        self._patience_s = patience_s
        self._gate = threading.Lock()
        """Held while connections are opened or closed for good."""
        self._idle: list[SqliteTransaction] = []
        """Reading connections that nobody has. Both ends of a list are changed in one step, so it needs no lock."""
        self._readers: weakref.WeakSet[SqliteTransaction] = weakref.WeakSet()
        """All of them: one that an interrupt took from its thread is closed when nothing knows it any more."""
        self._refusal: Callable[[], Unavailable] | None = self._closed
        """What whoever uses it is told; None: it is open."""
        super().__init__()
        with self._gate:
            if _identify(self.path) in _LOST_FILES:
                raise lost_in_a_fork()
            try:
                kept: Synchronous = "off" if is_in_memory(self.path) else synchronous
                self._writer = SqliteWriter(self._connect, self.path, synchronous=kept, patience_s=patience_s)
            except BaseException:
                remove_from_memory(self.path)
                raise
            self._refusal = None

    def all(self, name: str, /, **parameters: Any) -> list[Row]:
        tx = self._take()
        try:
            return tx.all(name, **parameters)
        finally:
            self._give_back(tx)

    @contextmanager
    def snapshot(self, *, long: bool = False) -> Iterator[Transaction]:
        tx = self._take()
        try:
            tx.control("begin_read")
            yield tx
        finally:
            self._give_back(tx)

    def write(self, move: Callable[[Transaction], Result], /, *, durable: bool = False, alone: bool = False) -> Result:
        return self._present().write(move, durable=durable)

    def wakeups(self) -> Wakeups:
        return Wakeups(partial(LogListener, f"{self.path}-wal"))

    def identity(self) -> tuple[str | None, str]:
        # A copy is another file. Not the device: that changes when the same disk is mounted again.
        return "sqlite", str(os.stat(self.path).st_ino)

    def vacuum(self) -> tuple[int, int]:
        before = self.value("database_bytes")
        self._present().vacuum()
        return before, self.value("database_bytes")

    def close(self) -> None:
        with self._gate:
            if self._refusal is not None:
                return
            # First, and it may refuse: inside a write nothing is closed.
            self._writer.close()
            self._refusal = self._closed
            self._close_idle()
            # Last: the connection that closes last copies the log back and removes it, and only this one may write.
            self._writer.let_go()
            remove_from_memory(self.path)

    def _connect(self, *controls: str, timeout_s: float | None = None) -> SqliteTransaction:
        """A connection on which these were done."""
        try:
            connection = sqlite3.connect(
                self.path,
                # The last resort: our own processes queue on the lock file, so only a stranger can block us.
                timeout=self._patience_s if timeout_s is None else timeout_s,
                isolation_level=None,  # we begin and commit ourselves
                check_same_thread=False,  # a connection moves between threads, never used by two at once
                cached_statements=512,
            )
            try:
                for name in controls:
                    connection.executescript(SQLITE.statements[name].sql)
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as exc:
            raise translate(exc, self.path) from exc
        return SqliteTransaction(connection, self.statements, self.path, self._types)

    def _present(self) -> SqliteWriter:
        if self._refusal is not None:
            raise self._refusal()
        return self._writer

    def _take(self) -> SqliteTransaction:
        """A connection to read with, for one thread; to be given back."""
        try:
            return self._idle.pop()
        except IndexError:
            pass
        with self._gate:
            if self._refusal is not None:
                raise self._refusal()
            # Looked at, so that its log is open, too: in memory nothing can be opened any more once this is closed.
            tx = self._connect("refuse_writes", "probe")
            self._readers.add(tx)
            return tx

    def _give_back(self, tx: SqliteTransaction) -> None:
        """Keep it for the next, whatever state it is in."""
        connection = tx.connection
        if connection.in_transaction:
            try:
                connection.rollback()
            except sqlite3.Error:
                connection.close()
                return
        if len(self._idle) >= MOST_IDLE:
            connection.close()
            return
        self._idle.append(tx)
        if self._refusal is not None:
            self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().connection.close()

    def _closed(self) -> Unavailable:
        return Unavailable(f"the catalog {self.path} is closed", hint="open it again")

    def is_quiet(self) -> bool:
        if self._gate.locked() or self._refusal is not None:
            return not self._gate.locked()
        return not self._writer.is_busy and len(self._readers) == len(self._idle)

    def lose(self, *, quiet: bool) -> None:
        # SQLite has locks of its own that all connections share. Closing asks for the real locks, which the parent has,
        # so it leaves the log alone.
        changing, self._gate = self._gate.locked(), threading.Lock()
        if self._refusal is None:
            self._refusal = lost_in_a_fork
            connections = [self._writer.abandon(), *(tx.abandon() for tx in self._readers)]
            self._idle = []
            if quiet:
                for connection in connections:
                    connection.close()
            _KEPT.extend(connections)
        elif not changing:
            return
        file = _identify(self.path)
        if not quiet and file is not None:
            _LOST_FILES.add(file)


class SqliteTransaction(Transaction):
    """Runs named statements on one connection."""

    __slots__ = ("__weakref__", "_types", "connection", "database")
    is_open = True

    def __init__(self, connection: sqlite3.Connection, counts: Counter[str], database: str, types: ColumnTypes) -> None:
        super().__init__(SQLITE, counts)
        self.connection = connection
        self.database = database
        self._types = types

    def all(self, name: str, /, **parameters: Any) -> list[Row]:
        statement, values = self._bound(name, parameters)
        if not statement.sql:
            return []
        try:
            # Fetched to the end at once: a half-read statement would hold its snapshot.
            cursor = self.connection.execute(statement.sql, values)
            rows = cursor.fetchall()
            if rows:
                self._types.check(statement, cursor, rows)
            return rows
        except FAILURES as exc:
            raise translate(exc, self.database) from exc

    def execute(self, name: str, /, **parameters: Any) -> int:
        statement, values = self._bound(name, parameters)
        try:
            return self.connection.execute(statement.sql, values).rowcount if statement.sql else 0
        except FAILURES as exc:
            raise translate(exc, self.database) from exc

    def execute_many(self, name: str, rows: Iterable[Sequence[Any]], /) -> int:
        statement = self._sql.statements[name]
        self._counts[name] += 1
        try:
            return self.connection.executemany(statement.sql, map(statement.bind, rows)).rowcount
        except FAILURES as exc:
            raise translate(exc, self.database) from exc

    def call(self, name: str, given: Any, /) -> list[Any] | None:
        try:
            return STEPS[name].run(self.connection, given, self._counts)
        except FAILURES as exc:
            raise translate(exc, self.database) from exc

    def script(self, sql: str, /) -> None:
        # Not executescript(): that commits first, and a migration must be all or nothing.
        statement = ""
        self._types.forget()
        try:
            for piece in self._sql.script(sql).split(";"):
                statement += f"{piece};"
                # A semicolon inside a literal, a comment or a trigger ends nothing.
                if sqlite3.complete_statement(statement):
                    self.connection.execute(statement)
                    statement = ""
        except sqlite3.Error as exc:
            raise translate(exc, self.database) from exc

    def control(self, name: str, translate: Callable[[sqlite3.Error, str], AnalemmaError] = translate) -> None:
        """Begin, commit and the like: uncounted."""
        try:
            self.connection.execute(self._sql.statements[name].sql)
        except sqlite3.Error as exc:
            raise translate(exc, self.database) from exc

    def abandon(self) -> sqlite3.Connection:
        """Refuse every statement from now on; the connection, which somebody must keep from being closed."""
        connection = self.connection
        self.connection = cast(sqlite3.Connection, _Abandoned())
        return connection


class ColumnTypes:
    """Knows the types of all columns, as the schema declares them; one for all connections."""

    def __init__(self) -> None:
        self._declared: dict[str, dict[str, type]] | None = None
        self._right: dict[str, set[tuple[type, ...]]] = {}
        """Of each statement, the types of rows that were found to be right."""

    def forget(self) -> None:
        """After the schema has changed."""
        self._declared = None
        self._right = {}

    def check(self, statement: Statement, cursor: sqlite3.Cursor, rows: Sequence[Row]) -> None:
        """Raise Corrupt if a column of these rows holds what its type does not allow."""
        found = {tuple(map(type, row)) for row in rows}
        if not found <= self._right.setdefault(statement.name, set()):
            self._judge(statement, cursor, found)

    def _judge(self, statement: Statement, cursor: sqlite3.Cursor, found: set[tuple[type, ...]]) -> None:
        sql = statement.sql
        declared = self._declared
        if declared is None:
            declared = {}
            for table, column, kind in cursor.connection.execute(SQLITE.statements["declared_columns"].sql):
                if kind in _PYTHON:
                    declared.setdefault(table, {})[column] = _PYTHON[kind]
            self._declared = declared
        tables = [declared[table] for table in set(_TABLE.findall(sql)) if table in declared]
        # A name that the statement gives says nothing of a column behind it; nor does the place in json_each.
        given = {name.lower() for name in _GIVEN.findall(sql)} | ({"key"} if "json_each" in sql else set())
        for place, (column, *_) in enumerate(cursor.description or ()):
            allowed = {table[column] for table in tables if column in table and column.lower() not in given}
            for types in found if allowed else ():
                if types[place] is not type(None) and types[place] not in allowed:
                    wanted = " or ".join(sorted(each.__name__ for each in allowed))
                    raise Corrupt(
                        f"a row of the catalog holds {types[place].__name__} in its column {column}, not {wanted}",
                        hint="restore the catalog from a backup; `PRAGMA integrity_check` says more",
                        column=column,
                        statement=statement.name,
                    )
        # Not what was found before: another thread may have forgotten that.
        self._right.setdefault(statement.name, set()).update(found)


class Steps:
    """One procedure, ready to be run."""

    def __init__(self, procedure: Procedure) -> None:
        self._before, self._after = f"{procedure.name}.{BEFORE}", f"{procedure.name}.{AFTER}"
        self._steps = [_Ready(procedure, number) for number in range(len(procedure.steps))]

    def run(self, connection: sqlite3.Connection, given: Any, counts: Counter[str]) -> list[Any] | None:
        """Do it all, or raise and leave it to the transaction to undo the rest; the answer, if it has one."""
        hit(self._before)
        answer: list[Any] | None = None
        left: Sequence[Any] = ()
        for step in self._steps:
            rows: Sequence[Any] = _ONCE
            if step.each is not None:
                rows = left if step.left else getattr(given, step.each)
                if not rows:
                    continue
            hit(step.failpoint)
            if not step.sql:
                continue
            counts[step.failpoint] += 1
            values = step.values(given, rows)
            if step.is_at_once:
                added = connection.executemany(step.sql, values).rowcount
                if step.new is not None:
                    answer, left = step.look(connection, rows, added)
            else:
                numbers = [step.do(connection, each, row) for row, each in enumerate(values)]
                if step.numbers:
                    answer = numbers
        hit(self._after)
        return answer


STEPS = Lazy(lambda name: Steps(SQLITE.procedures[name]))
"""By the procedure's name."""


class _Ready:
    """One step, as SQLite takes it."""

    def __init__(self, procedure: Procedure, number: int) -> None:
        step = procedure.steps[number]
        self.failpoint = procedure.failpoint(number)
        self.each, self.left, self.new = step.each, step.left, step.new
        self.rows, self.refusal, self.numbers = step.rows, step.refusal, step.number is not None
        self.is_at_once = step.each is not None and step.refusal is None and step.number is None
        statement = SQLITE.translate(step.sql)
        self.sql = statement.sql
        self.is_query = self.sql.startswith("SELECT")
        paths = [procedure.path(step, name) for name in statement.parameters]
        wanted = [paths[place] for place in statement.places]
        # Scalars are picked once for all rows of a table, and stand before its columns.
        scalars, columns = ([path for path in paths if (path.table is None) is one] for one in (True, False))
        self._scalars, self._columns = (picker([path.column for path in each]) for each in (scalars, columns))
        given = scalars + columns
        self._order: Callable[[Any], Any] | None = None if given == wanted else itemgetter(*map(given.index, wanted))
        self._key = attrgetter(step.new or "")

    def values(self, given: Any, rows: Sequence[Any]) -> Iterable[tuple[Any, ...]]:
        """What stands at the placeholders, for each of the rows."""
        scalars, columns = self._scalars(given), self._columns
        values = [scalars + columns(row) for row in rows]
        return values if self._order is None else map(self._order, values)

    def do(self, connection: sqlite3.Connection, values: tuple[Any, ...], row: int) -> int | None:
        """Do it for one row, and look whether it found what it expects; the number of the row that it made."""
        cursor = connection.execute(self.sql, values)
        if self.refusal is not None:
            found = len(cursor.fetchall()) if self.is_query else cursor.rowcount
            if found != self.rows:
                raise Refused(self.refusal, None if self.each is None else row)
        return cursor.lastrowid

    def look(self, connection: sqlite3.Connection, rows: Sequence[Any], added: int) -> tuple[list[Any], Sequence[Any]]:
        """What the answer is after an INSERT that added so many of the rows, and the rows that were there."""
        key = self._key
        if added == len(rows):
            return list(map(key, rows)), ()
        table = self.sql.split(maxsplit=3)[2]
        # Rowids are handed out upwards, so the newest rows are the ones that this transaction's last insert made.
        newest = f"SELECT {self.new} FROM {table} WHERE rowid > (SELECT max(rowid) FROM {table}) - ?"  # noqa: S608 (our own text)
        found = {new for (new,) in connection.execute(newest, (added,))} if added > 0 else set()
        return list(found), [row for row in rows if key(row) not in found]


class _Abandoned:
    """Stands where the connection of a parent process was, for code that was in a transaction when it forked."""

    in_transaction = False

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise lost_in_a_fork()


_KEPT: list[sqlite3.Connection] = []
_LOST_FILES: set[tuple[int, int]] = set()
"""What a parent was using when it forked this process. SQLite tells files by these numbers, and what it remembers of
the locks on one is copied by a fork: a connection of the child would take for held what is not, and the parent, as the
last one there, would remove the log under the child's commits."""


def _identify(path: str) -> tuple[int, int] | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino
