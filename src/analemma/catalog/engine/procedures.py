"""Procedures: what a transaction does, as a list of statements with expectations, one source for both databases.

A procedure stands in a file of `sql/` beside the statements, and begins with its parameters in parentheses:

    -- move_head --
    -- Compare-and-set of a head, and the records that tell of it.
    (tenant bigint, expected.version bigint, head.version bigint, records[] (seq bigint, body bytea), uploads[] bytea)

    UPDATE head SET version = :head.version WHERE tenant = :tenant AND version = :expected.version
    => 1 or head_moved;

    each records:
    INSERT INTO journal (tenant, seq, body) VALUES (:tenant, :records.seq, :records.body);

- Parameters are attributes of the object that is given, `a.b` is attribute `b` of its attribute `a`. `NAME[] (...)` is
  a table: a list of objects, whose attributes are the columns, or of plain values. With `by id` before its columns a
  database with many writers takes its rows in that order: it is an order of locks.
- `each NAME:` does a step for each row of a table.
- `=> 1 or NAME`: a step that touches or finds another number of rows refuses the whole, which is undone: `Refused`.
- `=> new COLUMN` behind an INSERT: that column of the rows that were not there is the answer. `each NAME left:` is for
  the other rows, right behind it.
- `=> number COLUMN` behind an INSERT: the numbers that the database gave the rows, in their order, are the answer.
- `include NAME;` does the steps of another procedure at that place, and takes its parameters along. `-- NAME [part] --`
  is only there to be included, and may use parameters of others that are.
- `often one NAME, NAME;` says what is mostly given: one row of some tables, any number of rows of others, none of the
  rest. PostgreSQL has a function of its own for that, with less to pass and to do.
- `passes NAME: what has happened;` is a failpoint with a name of its own. Before every other step there is one that is
  called after the procedure and the number of the step; around the whole, `NAME.before` and `NAME.after`.

PostgreSQL runs a procedure as a function, in one round trip. Its name ends in the hash of its source, so that programs
of two releases can share a database. SQLite runs the steps one by one, and only there the failpoints between
them are passed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from analemma.errors import Conflict, Internal, OutcomeUnknown
from analemma.failpoints import declare

_HEADING = re.compile(r"\(((?:[^()]|\([^()]*\))*)\)(.*)", re.DOTALL)
"""The parameters, of which some have columns in parentheses; and what follows."""
_TABLE = re.compile(r"(\w+)\[\](?: by (\w+))? (?:\(([^)]*)\)|(\w+))")
_STEP = re.compile(
    r"""(?:each\ (?P<each>\w+)(?P<left>\ left)?:\s*)?
    (?P<sql>.*?)\s*
    (?:^=>\ (?:(?P<rows>\d+)\ or\ (?P<refusal>\w+)|new\ (?P<new>\w+)|number\ (?P<number>\w+))\s*)?""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
_PASSES = re.compile(r"passes ([\w.]+): (.*)", re.DOTALL)
_END = re.compile(r";[ \t]*(?:--[^\n]*)?$", re.MULTILINE)
BEFORE, AFTER = "before", "after"
"""What the failpoints around a whole procedure end in."""
ITSELF = ""
"""The column of a table of plain values."""


class Refused(Conflict):
    """A procedure found other rows than it expects, and nothing of it was done."""

    def __init__(self, refusal: str, row: int | None = None) -> None:
        super().__init__(f"refused: {refusal}", hint="look again", refusal=refusal)
        self.refusal = refusal
        self.row = row
        """Which row of the step's table was refused, from 0; None: the step has none."""
        self.doubt: OutcomeUnknown | None = None
        """Set if it was sent twice: what became of the first is not known."""


@dataclass(frozen=True, slots=True)
class Table:
    """A parameter that is a list."""

    columns: Mapping[str, str]
    """The type of each, by the path of its attribute."""
    order: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One statement of a procedure, as it is written for one database."""

    sql: str
    each: str | None = None
    left: bool = False
    rows: int | None = None
    refusal: str | None = None
    new: str | None = None
    number: str | None = None
    passes: str | None = None


class Parameter(NamedTuple):
    """A scalar, or a column of the table whose rows a step is done for."""

    table: str | None
    column: str


@dataclass(frozen=True, slots=True)
class Procedure:
    """What one transaction does."""

    name: str
    scalars: Mapping[str, str]
    tables: Mapping[str, Table]
    steps: tuple[Step, ...]
    often: tuple[Mapping[str, bool], ...] = ()
    """Tables that have rows, in what is mostly given, and whether it is one row."""

    def path(self, step: Step, name: str) -> Parameter:
        """What a name in a step stands for."""
        table, _, column = name.partition(".")
        if step.each is not None and table == step.each and column in self.tables[table].columns:
            return Parameter(table, column)
        if name not in self.scalars:
            raise Internal(f"{self.name} has no parameter {name}")
        return Parameter(None, name)

    def failpoint(self, number: int) -> str:
        """What is passed before a step."""
        return self.steps[number].passes or f"{self.name}.{number + 1}"


def parse_procedure(name: str, body: str, find: Callable[[str], Procedure]) -> Procedure:
    """The procedure of this text; `find` gives those that it includes."""
    found = _HEADING.match(body)
    assert found is not None  # it begins with them
    heading, rest = " ".join(found[1].split()), found[2]
    tables = {
        table: Table({ITSELF: plain} if plain else dict(_pairs(columns)), order or None)
        for table, order, columns, plain in _TABLE.findall(heading)
    }
    scalars = dict(_pairs(_TABLE.sub("", heading)))
    steps: list[Step] = []
    often: list[dict[str, bool]] = []
    for sql in map(_uncommented, _END.split(rest)):
        if sql.startswith("include "):
            other = find(sql.removeprefix("include ").strip())
            scalars = {**other.scalars, **scalars}
            tables = {**other.tables, **tables}
            steps += other.steps
        elif sql.startswith("often "):
            names = [name.strip() for name in sql.removeprefix("often ").split(",")]
            often.append({name.removeprefix("one "): name.startswith("one ") for name in names})
        elif (found := _PASSES.fullmatch(sql)) is not None:
            steps.append(Step("", passes=declare(found[1], " ".join(found[2].split()))))
        elif sql:
            steps.append(_step(sql))
    return Procedure(name, scalars, tables, tuple(steps), tuple(often))


def _step(text: str) -> Step:
    found = _STEP.fullmatch(text)
    assert found is not None  # everything is SQL at least
    rows = None if found["rows"] is None else int(found["rows"])
    left = found["left"] is not None
    return Step(found["sql"], found["each"], left, rows, *found.group("refusal", "new", "number"))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for pair in filter(None, map(str.strip, text.split(","))):
        name, kind = pair.split()
        yield name, kind


def _uncommented(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip()
