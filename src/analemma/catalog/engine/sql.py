"""Named SQL, one source for both databases.

A file of `sql/` is a series of `-- name --`, at least one line that says what the statement is for, and the statement,
as PostgreSQL spells it. What SQLite runs follows from rules, which `Sql` applies:

- `:name` is a parameter. Casts (`::bigint`) and row locks (`FOR UPDATE`) are PostgreSQL's alone.
- `analemma_now()` is the database's clock; on SQLite it is the view `moment`.
- `= ANY (:names::text[])` takes a list of values, and `rows(:them) AS given (id bigint, name text)` a list of rows;
  `rows(:them) WITH ORDINALITY` gives them another column behind the others, which counts from 1. Rows of one column
  are that column's values.
- A line that begins with `[sqlite]` or `[postgres]` is that database's alone. A statement of which a database has no
  line does nothing there.
- `-- name [sqlite] --` is SQLite's statement of that name, whether or not PostgreSQL has one, too.
- `-- name [text] --` is no statement, but what a line `include name` stands for below it.

Scripts of the schema follow the same rules, and some of their own (`Sql.script`): SQLite knows fewer types and no
collations, numbers rows by AUTOINCREMENT, and has neither functions nor storage options; only it has WITHOUT ROWID.

Between the statements stand procedures, which begin with their parameters in parentheses (see `procedures`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from analemma.catalog.engine.db import JOINED, Convert, Statement, as_array, as_json
from analemma.catalog.engine.procedures import AFTER, BEFORE, Procedure, parse_procedure
from analemma.failpoints import STEPS

Dialect = Literal["sqlite", "postgres"]
DIALECTS: tuple[Dialect, ...] = ("sqlite", "postgres")
PART, TEXT = "part", "text"
NOT_OURS = ("schema", "foreign")
"""Folders whose files are read otherwise: scripts of the schema, and statements on tables of other programs."""

_NAME = re.compile(r"^-- (\w+)(?: \[(\w+)\])? --$", re.MULTILINE)
_INCLUDE = re.compile(r"^include (\w+)$", re.MULTILINE)
_PURPOSE = re.compile(r"\A\s*(?:--.*\n)+")
_PROCEDURE = re.compile(_PURPOSE.pattern + r"\(")
"""What stands below the name of one."""
_OWN = re.compile(r"^\[(\w+)\] ?(.*\n?)", re.MULTILINE)
# Literals and comments come first so that what looks like a parameter inside them is left alone.
TOKEN = re.compile(
    r"""(?P<text>'(?:[^']|'')*')
    | (?P<comment>\s*--[^\n]*)
    | (?P<any>=\ ANY\ \()?:(?P<list>[a-z_][a-z0-9_]*)::(?P<kind>bigint|text|bytea)\[\](?(any)\))
    | \brows\(:(?P<rows>[a-z_][a-z0-9_]*)\)(?P<ordinality>\s+WITH\ ORDINALITY)?
      \s+AS\ (?P<alias>\w+)\s+\((?P<columns>[^)]*)\)
    | (?P<cast>::[a-z]+(?:\[\])?)
    | (?P<lock>\s+FOR\ (?:NO\ KEY\ UPDATE|KEY\ SHARE|UPDATE|SHARE)(?:\ OF\ [a-z_]+)?(?:\ SKIP\ LOCKED)?\b)
    | (?P<now>\(SELECT\ analemma_now\(\)\)|\banalemma_now\(\))
    | :(?P<name>[a-z_][a-z0-9_]*(?:\.[a-z_][a-z0-9_]*)*)""",
    re.VERBOSE,
)
_ON_SQLITE = {
    r"'(?:[^']|'')*'|--[^\n]*": None,
    r"^CREATE FUNCTION .*?\$\$;$": "",
    r" WITH \(\w+ = [^)]*\)": "",
    r' COLLATE "C"': "",
    r"\bbigint GENERATED [A-Z ]+ AS IDENTITY PRIMARY KEY": "integer PRIMARY KEY AUTOINCREMENT",
    r"\b(?:bigint|smallint|boolean)\b": "integer",
    r"\bbytea\b": "blob",
    r"\bDEFAULT false\b": "DEFAULT 0",
}
"""What stands in a script of the schema for what PostgreSQL has; None: it stays as it is."""
_SCHEMA = re.compile("|".join(f"({theirs})" for theirs in _ON_SQLITE), re.MULTILINE | re.DOTALL)
_PARAMETER = ("list", "rows", "name")
"""The groups of a token that name a parameter."""
Made = TypeVar("Made")


class Lazy(dict[str, Made]):
    """Values by name, each made when it is first asked for: a program uses few of them."""

    def __init__(self, make: Callable[[str], Made]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> Made:
        return self.setdefault(name, self._make(name))


class _Block(NamedTuple):
    """What stands below a name in a file."""

    name: str
    only: str | None
    text: str


class Sql:
    """The statements and procedures of `sql/`, as one database takes them."""

    def __init__(self, database: Dialect) -> None:
        self.database = database
        self.statements = Lazy(lambda name: self._statement(self._blocks[name]))
        """By name."""
        self.procedures = Lazy(lambda name: self._procedure(self._blocks[name]))
        """By name, with the steps of this database. One that is read declares its failpoints."""

    @cached_property
    def _blocks(self) -> dict[str, _Block]:
        return {block.name: block for text in _texts() for block in self._blocks_of(text)}

    def every_statement(self) -> dict[str, Statement]:
        """All of them."""
        return {name: self.statements[name] for name, block in self._blocks.items() if not _PROCEDURE.match(block.text)}

    def every_procedure(self) -> dict[str, Procedure]:
        """All that can be called."""
        callable_ = (block for block in self._blocks.values() if block.only != PART and _PROCEDURE.match(block.text))
        return {block.name: self.procedures[block.name] for block in callable_}

    def parse(self, text: str) -> dict[str, Statement]:
        """The statements of another file."""
        return {block.name: self._statement(block) for block in self._blocks_of(text)}

    def script(self, text: str) -> str:
        """A script of the schema."""
        text = self._own(text)
        if self.database == "postgres":
            return text.replace(") WITHOUT ROWID", ")")
        return self.translate(_SCHEMA.sub(_on_sqlite, text)).sql

    def translate(self, sql: str, name: str = "") -> Statement:
        """One statement."""
        made = _Translation(sql)
        text = TOKEN.sub(made.for_sqlite if self.database == "sqlite" else made.for_postgres, sql)
        is_plain = made.binds == [(place, None) for place in range(len(made.parameters))]
        return Statement(name, text, tuple(made.parameters), None if is_plain else tuple(made.binds))

    def _statement(self, block: _Block) -> Statement:
        return self.translate(self._read(block), block.name)

    def _procedure(self, block: _Block) -> Procedure:
        found = parse_procedure(block.name, self._read(block), self.procedures.__getitem__)
        if block.only != PART:
            for point in (BEFORE, AFTER):
                STEPS[f"{block.name}.{point}"] = f"{point} {block.name}"
            for number, step in enumerate(found.steps):
                if step.sql:
                    STEPS[found.failpoint(number)] = f"before {step.sql}"
        return found

    def _blocks_of(self, text: str) -> Iterator[_Block]:
        pieces = _NAME.split(text)
        texts: dict[str, str] = {}
        for name, only, block in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
            found = _Block(name, only, _INCLUDE.sub(lambda line: texts[line[1]], block) if texts else block)
            if only == TEXT:
                texts[name] = self._read(found)
            elif not self._is_others(only):
                yield found

    def _read(self, block: _Block) -> str:
        """Its text without the lines that say what it is for, and those of the other database."""
        return self._own(_PURPOSE.sub("", block.text, count=1)).strip().rstrip(";")

    def _own(self, text: str) -> str:
        return _OWN.sub(lambda line: "" if self._is_others(line[1]) else line[2], text)

    def _is_others(self, only: str | None) -> bool:
        return only in DIALECTS and only != self.database


SQLITE, POSTGRES = Sql("sqlite"), Sql("postgres")


class _Translation:
    """Puts what one database takes in the place of each token of a statement, and notes which parameters it takes, and
    which of them stands at each of its placeholders."""

    def __init__(self, sql: str) -> None:
        self.parameters: dict[str, int] = {}
        self.binds: list[tuple[int, Convert | None]] = []
        self._numbers: dict[tuple[str, int | None], int] = {}
        found = list(TOKEN.finditer(sql))
        self._lists = {each["list"]: each["kind"] for each in found}
        """The type of the elements of each parameter that is a list somewhere."""

    def for_postgres(self, found: re.Match[str]) -> str:
        parameter = parameter_of(found)
        if parameter is None:
            return found[0]
        if found["rows"]:
            columns = _columns(found)
            whole = len(columns) == 1
            # Hidden from the planner: knowing how long they are, it would make a plan of its own each time.
            rows = [
                f"(SELECT {self._number(parameter, partial(as_array, kind, None if whole else at), at)}::{kind}[])"
                for at, (_, kind) in enumerate(columns)
            ]
            names = ", ".join([*(column for column, _ in columns), *_ordinal(found)])
            return f"unnest({', '.join(rows)}){found['ordinality'] or ''} AS {found['alias']} ({names})"
        kind = self._lists.get(parameter)
        if kind is None:
            return self._number(parameter, None)
        array = f"{self._number(parameter, partial(as_array, kind, None))}::{kind}[]"
        return f"= ANY ({array})" if found["any"] else array

    def for_sqlite(self, found: re.Match[str]) -> str:
        if found["cast"] or found["lock"]:
            return ""
        if found["now"]:
            return "(SELECT us FROM moment)"
        parameter = parameter_of(found)
        if parameter is None:
            return found[0]
        if found["rows"]:
            self._bind(parameter, as_json)
            columns = _columns(found)
            picked = (
                [f"json_extract(value, '$[{at}]')" for at in range(len(columns))] if len(columns) > 1 else ["value"]
            )
            values = [f"{value} AS {column}" for value, (column, _) in zip(picked, columns, strict=True)]
            values += [f"key + 1 AS {column}" for column in _ordinal(found)]
            return f"(SELECT {', '.join(values)} FROM json_each(?)) AS {found['alias']}"  # noqa: S608 (our own text)
        if found["any"] and found["kind"] == "bytea":
            self._bind(parameter, *JOINED)
            return "IN (SELECT substr(?, key * ? + 1, ?) FROM json_each(?))"
        self._bind(parameter, as_json if parameter in self._lists else None)
        return "IN (SELECT value FROM json_each(?))" if found["any"] else "?"

    def _number(self, parameter: str, convert: Convert | None, column: int | None = None) -> str:
        if (parameter, column) not in self._numbers:
            self._numbers[parameter, column] = len(self._numbers) + 1
            self._bind(parameter, convert)
        return f"${self._numbers[parameter, column]}"

    def _bind(self, parameter: str, *converts: Convert | None) -> None:
        """The next placeholders stand for this parameter. SQLite has numbered ones too, but some Python releases warn
        about them."""
        place = self.parameters.setdefault(parameter, len(self.parameters))
        self.binds += [(place, convert) for convert in converts]


def _on_sqlite(found: re.Match[str]) -> str:
    ours = [*_ON_SQLITE.values()][(found.lastindex or 0) - 1]
    return found[0] if ours is None else ours


def parameter_of(found: re.Match[str]) -> str | None:
    """The parameter that a token stands for, if it does."""
    return next((found[group] for group in _PARAMETER if found[group]), None)


def _columns(found: re.Match[str]) -> list[tuple[str, str]]:
    """Name and type of each column of `rows`."""
    return [(name, kind[0]) for name, *kind in map(str.split, found["columns"].split(",")) if kind]


def _ordinal(found: re.Match[str]) -> list[str]:
    """The name of the column that counts."""
    return [found["columns"].split(",")[-1].strip()] if found["ordinality"] else []


@cache
def _texts() -> list[str]:
    """The text of each file, in order."""
    files = sorted((Path(__file__).parents[1] / "sql").glob("*/*.sql"))
    return [file.read_text(encoding="utf-8") for file in files if file.parent.name not in NOT_OURS]
