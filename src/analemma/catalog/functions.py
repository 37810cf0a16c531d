"""Procedures on PostgreSQL: functions, each called in one round trip.

A function's name ends in the hash of its text, so programs of two releases share a database: each calls its own.
Whoever migrates the schema makes those that are missing. Its comment names the releases that use it; those that the
last two do not use are dropped.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from analemma.catalog.arrays import Blobs, Column, Integers, Texts
from analemma.catalog.procedures import Procedure, Step, picker
from analemma.catalog.sql import load_procedures

REFUSED_STATE = "AN010"
"""The SQLSTATE with which a function refuses; the message is the refusal, the detail the number of the row."""
PREFIX = "analemma_do_"
"""How the names of all functions begin."""

RELEASES = 2
"""So many releases, the newest that used a database, keep their functions."""

_TOKEN = re.compile(
    r"""(?P<text>'(?:[^']|'')*')
    | (?P<comment>\s*--[^\n]*)
    | (?P<cast>::[a-z]+(?:\[\])?)
    | :(?P<name>[a-z_][a-z0-9_]*(?:\.[a-z_][a-z0-9_]*)*)""",
    re.VERBOSE,
)
_VALUES = re.compile(r"^VALUES \((.*?)\)$", re.MULTILINE | re.DOTALL)
_ARRAYS: Mapping[str, type[Column]] = {"bigint": Integers, "text": Texts, "bytea": Blobs}


class Function:
    """One procedure, ready to be called."""

    def __init__(self, procedure: Procedure) -> None:
        self.procedure = procedure
        self._scalars = picker(list(procedure.scalars))
        self._tables = [_Columns(name, table.columns, table.order) for name, table in procedure.tables.items()]
        parameters = [f"p_{_flat(path)} {kind}" for path, kind in procedure.scalars.items()]
        for name, table in procedure.tables.items():
            parameters += [f"{_array(name, path)} {kind}[]" for path, kind in table.columns.items()]
        body = "\n".join(filter(None, map(self._step, procedure.steps)))
        answers = next((step for step in procedure.steps if step.new is not None), None)
        kind = "void" if answers is None else f"{procedure.tables[str(answers.each)].columns[str(answers.new)]}[]"
        declared = "".join(f"r_{name} record; " for name in procedure.tables)
        self.answers = answers is not None
        text = (
            f"({', '.join(parameters)}) RETURNS {kind} LANGUAGE plpgsql AS $procedure$\n"
            f"DECLARE n bigint; {declared}{'' if answers is None else f'answer {kind};'}\n"
            f"BEGIN\n{body}\n{'' if answers is None else 'RETURN answer;'}\nEND $procedure$"
        )
        self.name = f"{PREFIX}{procedure.name}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        self.create = f"CREATE FUNCTION {self.name}{text}"
        places = [f"${place}::{parameter.split(' ')[1]}" for place, parameter in enumerate(parameters, 1)]
        self.call = f"SELECT {self.name}({', '.join(places)})".encode()

    def bind(self, given: Any) -> list[Any]:
        """The values of its parameters."""
        values: list[Any] = [*self._scalars(given)]
        for columns in self._tables:
            values += columns.of(getattr(given, columns.name))
        return values

    def _step(self, step: Step) -> str:
        if step.passes is not None:
            return ""
        sql = step.sql
        if step.each is None:
            return self._checked(step, re.sub(r"^SELECT\b", "PERFORM", self._named(step, sql, "r_")), "")
        table = self.procedure.tables[step.each]
        names = [_flat(path) or "itself" for path in table.columns]
        # Hidden from the planner: knowing how long they are, it would make a plan of its own each time.
        arrays = ", ".join(f"(SELECT {_array(step.each, path)})" for path in table.columns)
        rows = f"unnest({arrays})"
        first = _array(step.each, next(iter(table.columns)))
        if step.refusal is None and (values := _VALUES.search(sql)) is not None:
            # All rows in one statement.
            body = (
                f"{sql[: values.start()]}SELECT {values[1]}\n"
                f"FROM {rows} AS {step.each} ({', '.join(names)}){sql[values.end() :]}"
            )
            body = self._named(step, body, "")
            if step.new is not None:
                # A row that was inserted rather than updated has no xmax.
                body = (
                    f"WITH done AS ({body}\nRETURNING {step.new} AS new, xmax = 0 AS fresh)\n"
                    f"SELECT array_agg(new) INTO answer FROM done WHERE fresh"
                )
            return f"IF {first} IS NOT NULL THEN\n{body};\nEND IF;"
        row = f"r_{step.each}"
        body = self._checked(step, re.sub(r"^SELECT\b", "PERFORM", self._named(step, sql, "r_")), f"{row}.place")
        given = f"SELECT * FROM {rows} WITH ORDINALITY AS given ({', '.join(names)}, place)"  # noqa: S608 (our own text)
        return f"IF {first} IS NOT NULL THEN\nFOR {row} IN {given} LOOP\n{body}\nEND LOOP;\nEND IF;"

    def _checked(self, step: Step, sql: str, row: str) -> str:
        if step.refusal is None:
            return f"{sql};"
        detail = f", DETAIL = ({row} - 1)::text" if row else ""
        return (
            f"{sql};\nGET DIAGNOSTICS n = ROW_COUNT;\nIF n <> {step.rows} THEN"
            f" RAISE EXCEPTION USING ERRCODE = '{REFUSED_STATE}', MESSAGE = '{step.refusal}'{detail}; END IF;"
        )

    def _named(self, step: Step, sql: str, row: str) -> str:
        def replace(found: re.Match[str]) -> str:
            if not found["name"]:
                return "" if found["comment"] else found[0]
            path = self.procedure.path(step, found["name"])
            flat = _flat(path.column) or "itself"
            return f"p_{flat}" if path.table is None else f"{row}{path.table}.{flat}"

        return _TOKEN.sub(replace, sql)


@cache
def functions() -> Mapping[str, Function]:
    """The function of every procedure, by the procedure's name."""
    return {name: Function(procedure) for name, procedure in load_procedures("postgres").items()}


def missing(found: Mapping[str, str]) -> list[str]:
    """Those of this release that a database does not have, of which it has these."""
    return [each.name for each in functions().values() if each.name not in found]


def changes(found: Mapping[str, str]) -> list[str]:
    """What makes those that are missing, notes that this release uses them, and drops what no release that counts uses;
    `found` are the functions that there are, and what is said of each."""
    from importlib.metadata import version  # most programs find what they need

    own, this = {each.name: each for each in functions().values()}, version("analemma")
    users = {name: set(said.split()) - {this} for name, said in found.items()}
    for name in own:
        users.setdefault(name, set()).add(this)
    releases = sorted({release for names in users.values() for release in names}, key=_in_order)[-RELEASES:]
    kept = {name: names for name, names in users.items() if names & {*releases, this}}
    return [
        *(each.create for name, each in own.items() if name not in found),
        *(f"COMMENT ON FUNCTION {name} IS '{' '.join(sorted(names))}'" for name, names in kept.items()),
        *(f"DROP FUNCTION {name}" for name in users if name not in kept),
    ]


def _in_order(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)]


class _Columns:
    """A table on its way into a call: one array for each column, or NULL for each if it has no rows."""

    def __init__(self, name: str, columns: Mapping[str, str], order: str | None) -> None:
        self.name = name
        self._pick = picker(list(columns))
        self._made = [_ARRAYS[kind] for kind in columns.values()]
        self._nothing = [None] * len(columns)
        self._order = None if order is None else picker([order])

    def of(self, rows: Iterable[Any]) -> list[Any]:
        """The values of the parameters."""
        if not rows:
            return self._nothing
        if self._order is not None:
            rows = sorted(rows, key=self._order)
        columns = zip(*map(self._pick, rows), strict=True)
        return [made(values) for made, values in zip(self._made, columns, strict=True)]


def _array(table: str, path: str) -> str:
    return f"p_{table}_{_flat(path) or 'itself'}"


def _flat(path: str) -> str:
    return path.replace(".", "_")
