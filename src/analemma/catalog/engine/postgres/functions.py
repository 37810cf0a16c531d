"""Procedures on PostgreSQL: functions, each called in one round trip.

A function's name ends in the hash of its text, so programs of two releases share a database: each calls its own.
`engine.schema.migrate` makes them, and drops those that neither of the last two releases calls.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

from analemma.catalog.engine.db import ARRAYS, picker
from analemma.catalog.engine.procedures import AFTER, BEFORE, Procedure, Step, Table
from analemma.catalog.engine.sql import POSTGRES, TOKEN, Lazy

REFUSED_STATE = "AN010"
"""The SQLSTATE with which a function refuses; the message is the refusal, the detail the number of the row."""
PREFIX = "analemma_do_"
"""How the names of all functions begin."""

_VALUES = re.compile(r"^VALUES \((.*?)\)$", re.MULTILINE | re.DOTALL)


class Function:
    """One procedure, ready to be called with what has this shape: tables of one row, others of any number of rows; of
    the rest none."""

    def __init__(self, procedure: Procedure, shape: Mapping[str, bool]) -> None:
        self.procedure = procedure
        self._shape = shape
        self._ones = picker([name for name, is_single in shape.items() if is_single])
        self._none = picker([name for name in procedure.tables if name not in shape])
        parameters = [f"p_{_flat(path)} {kind}" for path, kind in procedure.scalars.items()]
        self._parts: list[Callable[[Any], Sequence[Any]]] = [picker(list(procedure.scalars))]
        for name in sorted(shape, key=lambda name: not shape[name]):
            table, is_single = procedure.tables[name], shape[name]
            self._parts.append((_row if is_single else _columns)(name, table))
            parameters += [
                f"{_array(name, path)} {kind}{'' if is_single else '[]'}" for path, kind in table.columns.items()
            ]
        self.before, self.after = f"{procedure.name}.{BEFORE}", f"{procedure.name}.{AFTER}"
        answers = next((step for step in procedure.steps if step.new or step.number), None)
        kind = "void"
        if answers is not None:
            kind = f"{procedure.tables[str(answers.each)].columns[answers.new] if answers.new else 'bigint'}[]"
        declared = "".join(f"r_{name} record; " for name in procedure.tables)
        self.answers = answers is not None
        # Rows are looked up by their keys, whatever is asked for: a plan for each call costs a quarter of the call.
        generic = "SET plan_cache_mode = force_generic_plan"
        self._head = f"({', '.join(parameters)}) RETURNS {kind} LANGUAGE plpgsql {generic} AS $procedure$"
        self._declared = f"DECLARE n bigint; {declared}{'' if answers is None else f'answer {kind};'}"
        text = self._text(waiting=False)
        self.name = f"{PREFIX}{procedure.name}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        self.create = f"CREATE FUNCTION {self.name}{text}"
        places = [f"${place}::{parameter.split(' ')[1]}" for place, parameter in enumerate(parameters, 1)]
        self.call = f"SELECT {self.name}({', '.join(places)})"

    def create_waiting(self) -> str:
        """The same for tests, in the place of the function: before each step it waits for an advisory lock, which is
        called as the step's failpoint."""
        return f"CREATE OR REPLACE FUNCTION {self.name}{self._text(waiting=True)}"

    def _text(self, *, waiting: bool) -> str:
        steps = []
        for number, step in enumerate(self.procedure.steps):
            done = self._step(step)
            if done and waiting:
                name = self.procedure.failpoint(number)
                steps.append(f"PERFORM pg_advisory_xact_lock_shared(hashtextextended('{name}', 0));")
            steps.append(done)
        end = "RETURN answer;" if self.answers else ""
        return "\n".join([self._head, self._declared, "BEGIN", *filter(None, steps), end, "END $procedure$"])

    def takes(self, given: Any) -> bool:
        """Whether what is given has the shape."""
        return not any(self._none(given)) and set(map(len, self._ones(given))) <= {1}

    def bind(self, given: Any) -> list[Any]:
        """The values of its parameters."""
        values: list[Any] = []
        for part in self._parts:
            values += part(given)
        return values

    def _step(self, step: Step) -> str:
        if step.passes is not None:
            return ""
        if step.each is None:
            return self._checked(step, _without_answer(self._named(step, step.sql, "")), "")
        if step.each not in self._shape:
            return ""
        if self._shape[step.each]:
            sql = self._named(step, step.sql, f"p_{step.each}_", quoted=False)
            return self._checked(step, _without_answer(sql), "1")
        columns = self.procedure.tables[step.each].columns
        paths = dict.fromkeys(found["name"] for found in TOKEN.finditer(step.sql) if found["name"])
        parameters = [self.procedure.path(step, path) for path in paths]
        used = [each.column for each in parameters if each.table is not None] or [next(iter(columns))]
        names = ", ".join(_quoted(path) for path in used)
        # Hidden from the planner: knowing how long they are, it would make a plan of its own each time.
        rows = f"unnest({', '.join(f'(SELECT {_array(step.each, path)})' for path in used)})"
        given = f"IF {_array(step.each, next(iter(columns)))} IS NOT NULL THEN"
        at_once = _VALUES.search(step.sql) if step.refusal is None and step.number is None else None
        if at_once is not None:
            sql = step.sql[: at_once.start()] + f"SELECT {at_once[1]}\nFROM {rows} AS {step.each} ({names})"
            sql = self._named(step, sql + step.sql[at_once.end() :], f"{step.each}.")
            if step.new is not None:
                # A row that was inserted rather than updated has no xmax.
                sql = f"WITH done AS ({sql}\nRETURNING {step.new} AS new, xmax = 0 AS fresh)\n"
                sql += "SELECT array_agg(new) INTO answer FROM done WHERE fresh"
            return f"{given}\n{sql};\nEND IF;"
        row = f"r_{step.each}"
        sql = self._checked(step, _without_answer(self._named(step, step.sql, f"{row}.")), f"{row}.row_number")
        loop = f"FOR {row} IN SELECT * FROM {rows} WITH ORDINALITY AS given ({names}, row_number) LOOP"  # noqa: S608 (ours)
        return f"{given}\n{loop}\n{sql}\nEND LOOP;\nEND IF;"

    def _checked(self, step: Step, sql: str, row: str) -> str:
        if step.number is not None:
            return f"{sql} RETURNING {step.number} INTO n;\nanswer := answer || n;"
        if step.refusal is None:
            return f"{sql};"
        detail = f", DETAIL = ({row} - 1)::text" if row else ""
        return (
            f"{sql};\nGET DIAGNOSTICS n = ROW_COUNT;\nIF n <> {step.rows} THEN"
            f" RAISE EXCEPTION USING ERRCODE = '{REFUSED_STATE}', MESSAGE = '{step.refusal}'{detail}; END IF;"
        )

    def _named(self, step: Step, sql: str, row: str, *, quoted: bool = True) -> str:
        def replace(found: re.Match[str]) -> str:
            if not found["name"]:
                return "" if found["comment"] else found[0]
            path = self.procedure.path(step, found["name"])
            if path.table is None:
                return f"p_{_flat(path.column)}"
            column = _quoted(path.column)
            return row + (column if quoted else column.strip('"'))

        return TOKEN.sub(replace, sql)


def _of(name: str) -> Sequence[Function]:
    procedure = POSTGRES.procedures[name]
    shapes = [*procedure.often, dict.fromkeys(procedure.tables, False)]
    return [Function(procedure, shape) for shape in shapes]


_FUNCTIONS = Lazy(_of)
"""Those of each procedure: for what is often given, and at last one for all there can be."""


def function(name: str, given: Any) -> Function:
    """The function to call."""
    *special, general = _FUNCTIONS[name]
    for each in special:
        if each.takes(given):
            return each
    return general


@cache
def functions() -> Mapping[str, Function]:
    """All functions of this release, by their names."""
    return {each.name: each for name in POSTGRES.every_procedure() for each in _FUNCTIONS[name]}


def _row(name: str, table: Table) -> Callable[[Any], Sequence[Any]]:
    """The values of the only row of a table."""
    pick = picker(list(table.columns))
    return lambda given: pick(getattr(given, name)[0])


def _columns(name: str, table: Table) -> Callable[[Any], Sequence[Any]]:
    """An array for each column of a table, or NULL for each if it has no rows."""
    pick, kinds = picker(list(table.columns)), [ARRAYS[kind] for kind in table.columns.values()]
    nothing = [None] * len(kinds)
    order = None if table.order is None else attrgetter(table.order)

    def columns(given: Any) -> Sequence[Any]:
        rows = getattr(given, name)
        if not rows:
            return nothing
        if order is not None:
            rows = sorted(rows, key=order)
        return [array(values) for array, values in zip(kinds, zip(*map(pick, rows), strict=True), strict=True)]

    return columns


def _array(table: str, path: str) -> str:
    return f"p_{table}_{_flat(path) or 'itself'}"


def _quoted(path: str) -> str:
    """A column of a table; some have names that mean something to PostgreSQL."""
    return f'"{_flat(path) or "itself"}"'


def _without_answer(sql: str) -> str:
    return re.sub(r"^SELECT\b", "PERFORM", sql)


def _flat(path: str) -> str:
    return path.replace(".", "_")
