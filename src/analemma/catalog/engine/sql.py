"""Named SQL, one source for both databases.

A file of `sql/` is a series of `-- name --`, at least one line that says what the statement is for, and the statement,
as PostgreSQL spells it. What SQLite runs follows from rules, which `parse` applies:

- `:name` is a parameter. Casts (`::bigint`) and row locks (`FOR UPDATE`) are PostgreSQL's alone.
- `analemma_now()` is the database's clock; on SQLite it is the view `moment`.
- `= ANY (:names::text[])` takes a list of values, and `rows(:them) AS given (id bigint, name text)` a list of rows;
  `rows(:them) WITH ORDINALITY` gives them another column behind the others, which counts from 1. Rows of one column
  are that column's values.
- A line that begins with `[sqlite]` or `[postgres]` is that database's alone.
- `-- name [sqlite] --` is SQLite's statement of that name, whether or not PostgreSQL has one, too.
- `-- name [lock] --` only waits for others; on SQLite, where one writes at a time, it does nothing.

Scripts of the schema follow the same rules, and some of their own (`translate_script`): SQLite knows fewer types and no
collations, numbers rows by AUTOINCREMENT, and has neither functions nor storage options; only it has WITHOUT ROWID.

Between the statements stand procedures, which begin with their parameters in parentheses (see `procedures`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import orjson

from analemma.catalog.engine.arrays import Blobs, Column, Integers, Texts
from analemma.catalog.engine.procedures import AFTER, BEFORE, Procedure, is_procedure, parse_procedure
from analemma.errors import Corrupt, Internal
from analemma.failpoints import STEPS

Dialect = Literal["sqlite", "postgres"]
DIALECTS: tuple[Dialect, ...] = ("sqlite", "postgres")
LOCK, PART = "lock", "part"
NOT_OURS = ("schema", "foreign")
"""Folders whose files are read otherwise: scripts of the schema, and statements on tables of other programs."""

_NAME = re.compile(r"^-- (\w+)(?: \[(\w+)\])? --$", re.MULTILINE)
_OWN = re.compile(r"^\[(\w+)\] ?(.*)$")
# Literals and comments come first so that what looks like a parameter inside them is left alone.
_TOKEN = re.compile(
    r"""(?P<text>'(?:[^']|'')*'|--[^\n]*)
    | =\ ANY\ \(:(?P<list>[a-z_][a-z0-9_]*)::(?P<kind>bigint|text|bytea)\[\]\)
    | \brows\(:(?P<rows>[a-z_][a-z0-9_]*)\)(?P<ordinality>\s+WITH\ ORDINALITY)?
      \s+AS\ (?P<alias>\w+)\s+\((?P<columns>[^)]*)\)
    | \bjson_each\(:(?P<each>[a-z_][a-z0-9_]*)\)
    | :(?P<array>[a-z_][a-z0-9_]*)::(?P<elements>bigint|text|bytea)\[\]
    | (?P<cast>::[a-z]+(?:\[\])?)
    | (?P<lock>\s+FOR\ (?:NO\ KEY\ UPDATE|KEY\ SHARE|UPDATE|SHARE)(?:\ OF\ [a-z_]+)?(?:\ SKIP\ LOCKED)?\b)
    | (?P<now>\(SELECT\ analemma_now\(\)\)|\banalemma_now\(\))
    | :(?P<name>[a-z_][a-z0-9_]*)""",
    re.VERBOSE,
)
_SCHEMA = re.compile(
    r"""(?P<text>'(?:[^']|'')*'|--[^\n]*)
    | (?P<function>^CREATE\ FUNCTION\ .*?\$\$;$)
    | (?P<storage>\ WITH\ \(\w+\ =\ [^)]*\))
    | (?P<collation>\ COLLATE\ "C")
    | (?P<key>\bbigint\ GENERATED\ [A-Z ]+\ AS\ IDENTITY\ PRIMARY\ KEY)
    | (?P<number>\b(?:bigint|smallint|boolean)\b)
    | (?P<bytes>\bbytea\b)
    | (?P<no>\bDEFAULT\ false\b)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
_ON_SQLITE = {
    "function": "",
    "storage": "",
    "collation": "",
    "key": "integer PRIMARY KEY AUTOINCREMENT",
    "number": "integer",
    "bytes": "blob",
    "no": "DEFAULT 0",
}
_PARAMETER = ("list", "rows", "each", "array", "name")
"""The groups of it that name one."""
Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, ready for its driver."""

    name: str
    purpose: str
    sql: str
    parameters: tuple[str, ...]
    """Each parameter once, in the order in which the SQL first names it: also the order of a row in `execute_many`."""
    binds: tuple[tuple[int, Convert | None], ...] | None
    """Where the driver wants other values than the parameters as they are: which one stands at each placeholder, and
    what is made of it."""

    def bind(self, values: list[Any]) -> list[Any]:
        """The values of the parameters as the driver takes them."""
        if self.binds is None:
            return values
        return [values[place] if convert is None else convert(values[place]) for place, convert in self.binds]


class _Piece(NamedTuple):
    """A statement or a procedure, as its file has it, without what is only another database's."""

    name: str
    purpose: str
    body: str
    only: str | None


def parse(text: str, dialect: Dialect, *, source: str = "") -> dict[str, Statement]:
    """The statements of one file, as one database takes them."""
    found: dict[str, Statement] = {}
    for piece in _pieces(text, dialect, source):
        if is_procedure(piece.body):
            continue
        if piece.name in found:
            raise Internal(f"{source}: {piece.name} is defined twice")
        found[piece.name] = _translated(piece, dialect)
    return found


def translate_script(text: str, dialect: Dialect) -> str:
    """A script of the schema, as one database takes it."""
    text = "\n".join(_own(text.splitlines(), dialect, "schema"))
    if dialect == "postgres":
        return text.replace(") WITHOUT ROWID", ")")
    return _for_sqlite("", "", _SCHEMA.sub(lambda found: _ON_SQLITE.get(found.lastgroup or "", found[0]), text)).sql


def _translated(piece: _Piece, dialect: Dialect) -> Statement:
    body = "" if piece.only == LOCK and dialect == "sqlite" else piece.body
    return _TRANSLATE[dialect](piece.name, piece.purpose, body)


def _pieces(text: str, dialect: Dialect, source: str) -> Iterator[_Piece]:
    for name, only, block in _blocks(text, dialect, source):
        yield _piece(name, only, block, dialect, source)


def _blocks(text: str, dialect: Dialect, source: str) -> Iterator[tuple[str, str | None, str]]:
    """What stands below each name in a file, but for what is only another database's."""
    pieces = _NAME.split(text)
    if pieces[0].strip():
        raise Internal(f"{source}: SQL before the first '-- name --'")
    for name, only, block in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        if only in (LOCK, PART) or not _is_others(only, dialect, source):
            yield name, only, block


def _piece(name: str, only: str | None, block: str, dialect: Dialect, source: str) -> _Piece:
    lines = block.strip().splitlines()
    body_at = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
    if body_at == 0:
        raise Internal(f"{source}: {name} does not say what it is for")
    purpose = " ".join(line.removeprefix("--").strip() for line in lines[:body_at])
    body = "\n".join(_own(lines[body_at:], dialect, source)).strip().rstrip(";")
    return _Piece(name, purpose, body, only)


def _own(lines: list[str], dialect: Dialect, source: str) -> list[str]:
    """Without the lines of the other database."""
    kept = []
    for line in lines:
        marked = _OWN.match(line)
        if marked is None:
            kept.append(line)
        elif not _is_others(marked[1], dialect, source):
            kept.append(marked[2])
    return kept


def _is_others(only: str | None, dialect: Dialect, source: str) -> bool:
    if only is not None and only not in DIALECTS:
        raise Internal(f"{source}: there is no database {only}")
    return only is not None and only != dialect


def _for_postgres(name: str, purpose: str, sql: str) -> Statement:
    parameters: dict[str, int] = {}
    numbers: dict[tuple[str, int | None], int] = {}
    binds: list[tuple[int, Convert | None]] = []
    arrays = {found["list"] or found["array"]: found["kind"] or found["elements"] for found in _TOKEN.finditer(sql)}

    def number(parameter: str, convert: Convert | None, column: int | None = None) -> str:
        place = parameters.setdefault(parameter, len(parameters))
        if (parameter, column) not in numbers:
            numbers[parameter, column] = len(numbers) + 1
            binds.append((place, convert))
        return f"${numbers[parameter, column]}"

    def replace(found: re.Match[str]) -> str:
        parameter = _parameter(found)
        if parameter is None:
            return found[0]
        if found["rows"]:
            columns = _columns(found)
            whole = len(columns) == 1
            # Hidden from the planner: knowing how long they are, it would make a plan of its own each time.
            given = [
                f"(SELECT {number(parameter, partial(_column, None if whole else at, kind), at)}::{kind}[])"
                for at, (_, kind) in enumerate(columns)
            ]
            names = ", ".join([*(column for column, _ in columns), *_ordinal(found)])
            return f"unnest({', '.join(given)}){found['ordinality'] or ''} AS {found['alias']} ({names})"
        kind = arrays.get(parameter)
        if kind is None:
            return number(parameter, None)
        array = f"{number(parameter, partial(_column, None, kind))}::{kind}[]"
        return f"= ANY ({array})" if found["list"] else array

    text = _TOKEN.sub(replace, sql)
    plain = all(convert is None for _, convert in binds)
    return Statement(name, purpose, text, tuple(parameters), None if plain else tuple(binds))


def _for_sqlite(name: str, purpose: str, sql: str) -> Statement:
    parameters: dict[str, int] = {}
    # SQLite has numbered parameters too, but some Python releases warn about them.
    binds: list[tuple[int, Convert | None]] = []
    lists = {found["list"] or found["each"] for found in _TOKEN.finditer(sql)}

    def replace(found: re.Match[str]) -> str:
        if found["cast"] or found["lock"]:
            return ""
        if found["now"]:
            return "(SELECT us FROM moment)"
        parameter = _parameter(found)
        if parameter is None:
            return found[0]
        place = parameters.setdefault(parameter, len(parameters))
        if found["rows"]:
            binds.append((place, _json))
            columns = _columns(found)
            picked = (
                ["value"] if len(columns) == 1 else [f"json_extract(value, '$[{at}]')" for at in range(len(columns))]
            )
            values = [f"{value} AS {column}" for value, (column, _) in zip(picked, columns, strict=True)]
            values += [f"key + 1 AS {column}" for column in _ordinal(found)]
            return f"(SELECT {', '.join(values)} FROM json_each(?)) AS {found['alias']}"  # noqa: S608 (our own text)
        if found["list"] and found["kind"] == "bytea":
            binds.extend([(place, _joined), (place, _width), (place, _width), (place, _places)])
            return "IN (SELECT substr(?, key * ? + 1, ?) FROM json_each(?))"
        binds.append((place, _json if parameter in lists else None))
        if found["list"]:
            return "IN (SELECT value FROM json_each(?))"
        return "json_each(?)" if found["each"] else "?"

    text = _TOKEN.sub(replace, sql)
    plain = [place for place, _ in binds] == [*range(len(parameters))] and all(made is None for _, made in binds)
    return Statement(name, purpose, text, tuple(parameters), None if plain else tuple(binds))


def _parameter(found: re.Match[str]) -> str | None:
    return next((found[group] for group in _PARAMETER if found[group]), None)


def _columns(found: re.Match[str]) -> list[tuple[str, str]]:
    """Name and type of each column of `rows`."""
    return [(name, kind[0]) for name, *kind in map(str.split, found["columns"].split(",")) if kind]


def _ordinal(found: re.Match[str]) -> list[str]:
    """The name of the column that counts."""
    return [found["columns"].split(",")[-1].strip()] if found["ordinality"] else []


_TRANSLATE: Mapping[Dialect, Callable[[str, str, str], Statement]] = {
    "sqlite": _for_sqlite,
    "postgres": _for_postgres,
}


_ARRAYS: Mapping[str, type[Column]] = {"bigint": Integers, "text": Texts, "bytea": Blobs}


def _column(place: int | None, kind: str, rows: Any) -> Any:
    """One column of the rows, or all that is given as one."""
    if place is not None:
        return _ARRAYS[kind]([row[place] for row in rows])
    made = _ARRAYS[kind]
    return rows if rows is None or type(rows) is made else made(rows)


def _json(values: Any) -> str | None:
    return None if values is None else orjson.dumps(list(values)).decode()


def _joined(values: Any) -> bytes:
    """SQLite has no lists: one value with all ids, one after the other, and a list of as many places."""
    joined = b"".join(values)
    if len(joined) != _width(values) * len(values):
        # Ids from outside are checked where they come in, so some row has one that was cut or made longer.
        raise Corrupt(
            f"an id of {_width(values)} bytes stands among others of another length: a row of the catalog is damaged",
            hint="run verify, which names the row; restore the catalog from a backup",
        )
    return joined


def _width(values: Any) -> int:
    return len(values[0]) if values else 0


def _places(values: Any) -> str:
    # Counting up its places takes a third of the time that a recursion does.
    return f"[{','.join('0' * len(values))}]"


class _Statements(dict[str, Statement]):
    """Statements by name, each translated when it is first asked for: a program uses few of them."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__()
        self._dialect = dialect
        self._blocks = {
            name: (name, only, block, dialect, file)
            for file, text in _files()
            for name, only, block in _blocks(text, dialect, file)
        }

    def __missing__(self, name: str) -> Statement:
        return self.setdefault(name, _translated(_piece(*self._blocks[name]), self._dialect))


@cache
def statements(dialect: Dialect) -> Mapping[str, Statement]:
    """A statement by its name, as one database takes it."""
    return _Statements(dialect)


@cache
def load(dialect: Dialect) -> Mapping[str, Statement]:
    """Every statement, by name, as one database takes them."""
    found: dict[str, Statement] = {}
    for file, text in _files():
        for name, statement in parse(text, dialect, source=file).items():
            if name in found:
                raise Internal(f"{file}: {name} is already defined in another file")
            found[name] = statement
    return found


class _Procedures(dict[str, Procedure]):
    """Procedures by name, each read when it is first asked for."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__()
        pieces = (piece for file, text in _files() for piece in _pieces(text, dialect, file))
        self.pieces = {piece.name: piece for piece in pieces if is_procedure(piece.body)}

    def __missing__(self, name: str) -> Procedure:
        piece = self.pieces[name]
        found = parse_procedure(name, piece.purpose, piece.body, self.__getitem__)
        if piece.only != PART:
            for point in (BEFORE, AFTER):
                STEPS[f"{name}.{point}"] = f"{point} {name}"
            for number, step in enumerate(found.steps):
                if step.sql:
                    STEPS[found.failpoint(number)] = f"before {step.sql}"
        return self.setdefault(name, found)


@cache
def procedures(dialect: Dialect) -> Mapping[str, Procedure]:
    """A procedure by its name, with the steps of one database. Declares its failpoints."""
    return _Procedures(dialect)


@cache
def load_procedures(dialect: Dialect) -> Mapping[str, Procedure]:
    """Every procedure that can be called, by name."""
    found = _Procedures(dialect)
    return {name: found[name] for name, piece in found.pieces.items() if piece.only != PART}


@cache
def _files() -> list[tuple[str, str]]:
    """Name and text of each file, in order."""
    files = sorted(_folder().glob("*/*.sql"))
    return [
        (f"{file.parent.name}/{file.name}", file.read_text(encoding="utf-8"))
        for file in files
        if file.parent.name not in NOT_OURS
    ]


def _folder() -> Path:
    return Path(__file__).parents[1] / "sql"
