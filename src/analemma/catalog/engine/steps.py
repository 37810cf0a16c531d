"""Procedures on SQLite: step by step, inside the write transaction, each step behind a failpoint.

Rows are bound one by one, never passed as one JSON array with their bytes beside it: cutting those apart takes longer
than all the rest.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

from analemma.catalog.engine.procedures import AFTER, BEFORE, Procedure, Refused, Step, picker
from analemma.catalog.engine.sql import procedures
from analemma.failpoints import hit

_TOKEN = re.compile(
    r"""(?P<text>'(?:[^']|'')*'|--[^\n]*)
    | (?P<gone>::[a-z]+(?:\[\])? | \s+FOR\ (?:NO\ KEY\ UPDATE|KEY\ SHARE|UPDATE|SHARE)\b)
    | (?P<now>\(SELECT\ analemma_now\(\)\)|\banalemma_now\(\))
    | :(?P<name>[a-z_][a-z0-9_]*(?:\.[a-z_][a-z0-9_]*)*)""",
    re.VERBOSE,
)
_INTO = re.compile(r"INSERT INTO (\w+)")
Values = Callable[[tuple[Any, ...]], tuple[Any, ...]]


class Steps:
    """One procedure, ready to be run."""

    def __init__(self, procedure: Procedure) -> None:
        self.procedure = procedure
        self._before, self._after = f"{procedure.name}.{BEFORE}", f"{procedure.name}.{AFTER}"
        self._steps = [_Ready(procedure, number) for number in range(len(procedure.steps))]

    def statements(self) -> list[tuple[str, int]]:
        """The text of each step, and how many values it takes."""
        return [(step.sql, step.placeholders) for step in self._steps if step.sql]

    def run(self, connection: sqlite3.Connection, given: Any, counts: Counter[str]) -> list[Any] | None:
        """Do it all, or raise and leave it to the transaction to undo the rest; the answer, if it has one."""
        hit(self._before)
        answer: list[Any] | None = None
        left: Sequence[Any] = ()
        for step in self._steps:
            rows: Sequence[Any] = ()
            if step.each is not None:
                rows = left if step.left else getattr(given, step.each)
                if not rows:
                    continue
            hit(step.failpoint)
            if not step.sql:
                continue
            counts[step.failpoint] += 1
            scalars = step.scalars(given)
            if step.each is None:
                _one(connection, step, scalars, None)
                continue
            if step.refusal is not None:
                for number, row in enumerate(rows):
                    _one(connection, step, scalars + step.columns(row), number)
                continue
            if step.numbers:
                answer = [_one(connection, step, scalars + step.columns(row), None).lastrowid for row in rows]
                continue
            columns, order = step.columns, step.order
            values: Iterable[tuple[Any, ...]] = [scalars + columns(row) for row in rows]
            if order is not None:
                values = map(order, values)
            done = connection.executemany(step.sql, values).rowcount
            if step.new is not None:
                answer, left = _new(connection, step, rows, done)
        hit(self._after)
        return answer


@cache
def steps(name: str) -> Steps:
    """One procedure, by its name."""
    return Steps(procedures("sqlite")[name])


class _Ready:
    """One step, as SQLite takes it."""

    __slots__ = (
        *("columns", "each", "failpoint", "is_query", "left", "new", "numbers", "order", "placeholders", "refusal"),
        *("rows", "scalars", "sql"),
    )

    def __init__(self, procedure: Procedure, number: int) -> None:
        step: Step = procedure.steps[number]
        self.failpoint = procedure.failpoint(number)
        self.each, self.left = step.each, step.left
        self.rows, self.refusal, self.numbers = step.rows, step.refusal, step.number is not None
        scalars: list[str] = []
        columns: list[str] = []
        places: list[tuple[bool, int]] = []

        def replace(found: re.Match[str]) -> str:
            if found["gone"]:
                return ""
            if found["now"]:
                return "(SELECT us FROM moment)"
            if not found["name"]:
                return found[0]
            path = procedure.path(step, found["name"])
            paths = scalars if path.table is None else columns
            if path.column not in paths:
                paths.append(path.column)
            places.append((path.table is not None, paths.index(path.column)))
            return "?"

        self.sql = _TOKEN.sub(replace, step.sql)
        self.placeholders = len(places)
        self.is_query = self.sql.startswith("SELECT")
        self.scalars, self.columns = picker(scalars), picker(columns)
        order = [at + len(scalars) * of_row for of_row, at in places]
        self.order: Values | None = _ordered(order) if order != list(range(len(scalars) + len(columns))) else None
        self.new: tuple[str, Callable[[Any], tuple[Any, ...]]] | None = None
        if step.new is not None:
            into = _INTO.match(self.sql)
            assert into is not None
            # Rowids are handed out upwards, so the newest rows are the ones that this transaction's last insert made.
            newest = f"SELECT {step.new} FROM {into[1]} WHERE rowid > (SELECT max(rowid) FROM {into[1]}) - ?"  # noqa: S608 (our own text)
            self.new = newest, picker([step.new])


def _ordered(order: list[int]) -> Values:
    if len(order) == 1:
        (place,) = order
        return lambda values: (values[place],)
    return itemgetter(*order) if order else lambda values: ()


def _one(connection: sqlite3.Connection, step: _Ready, values: tuple[Any, ...], row: int | None) -> sqlite3.Cursor:
    cursor = connection.execute(step.sql, values if step.order is None else step.order(values))
    if step.refusal is not None:
        found = len(cursor.fetchall()) if step.is_query else cursor.rowcount
        if found != step.rows:
            raise Refused(step.refusal, row)
    return cursor


def _new(
    connection: sqlite3.Connection, step: _Ready, rows: Sequence[Any], done: int
) -> tuple[list[Any], Sequence[Any]]:
    """What the answer is after an INSERT that added so many of the rows, and the rows that were there."""
    assert step.new is not None
    newest, column = step.new
    if done == len(rows):
        return [column(row)[0] for row in rows], ()
    found = {each[0] for each in connection.execute(newest, (done,))} if done > 0 else set()
    return list(found), [row for row in rows if column(row)[0] not in found]
