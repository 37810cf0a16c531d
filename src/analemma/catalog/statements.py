"""Named SQL: loads `sql/*.sql` once per dialect and turns `:name` into what the driver wants.

A file is a series of `-- name --`, at least one line saying what the statement is for, and the statement. `commit.sql`
is for every dialect; `commit.sqlite.sql` and `commit.postgres.sql` add to it or override it by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Literal

from analemma.errors import Internal

Dialect = Literal["sqlite", "postgres"]
DIALECTS: tuple[Dialect, ...] = ("sqlite", "postgres")

_NAME = re.compile(r"^-- (\w+) --$", re.MULTILINE)
# Literals and comments come first so that what looks like a parameter inside them is left alone; `::` is a cast.
_TOKEN = re.compile(r"'(?:[^']|'')*'|--[^\n]*|::|:([a-z_][a-z0-9_]*)")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, ready for its driver."""

    name: str
    purpose: str
    sql: str
    parameters: tuple[str, ...]
    """Each parameter once, in the order in which the SQL first names it: also the order of a row in `execute_many`."""
    positions: tuple[int, ...]
    """For SQLite, where a parameter named twice is bound twice: which parameter stands at each placeholder."""


def parse(text: str, dialect: Dialect, *, source: str = "") -> dict[str, Statement]:
    """The statements of one file."""
    pieces = _NAME.split(text)
    if pieces[0].strip():
        raise Internal(f"{source}: SQL before the first '-- name --'")
    found: dict[str, Statement] = {}
    for name, block in zip(pieces[1::2], pieces[2::2], strict=True):
        lines = block.strip().splitlines()
        body_at = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
        if body_at == 0:
            raise Internal(f"{source}: {name} does not say what it is for")
        if name in found:
            raise Internal(f"{source}: {name} is defined twice")
        purpose = " ".join(line.removeprefix("--").strip() for line in lines[:body_at])
        found[name] = _translate(name, purpose, "\n".join(lines[body_at:]).strip().rstrip(";"), dialect)
    return found


def _translate(name: str, purpose: str, sql: str, dialect: Dialect) -> Statement:
    parameters: list[str] = []
    positions: list[int] = []

    def placeholder(match: re.Match[str]) -> str:
        parameter = match.group(1)
        if parameter is None:
            return match.group()
        if parameter not in parameters:
            parameters.append(parameter)
        positions.append(parameters.index(parameter))
        # SQLite has numbered parameters too, but some Python releases warn about them.
        return "?" if dialect == "sqlite" else f"${positions[-1] + 1}"

    return Statement(name, purpose, _TOKEN.sub(placeholder, sql), tuple(parameters), tuple(positions))


@cache
def load(dialect: Dialect) -> Mapping[str, Statement]:
    """Every statement of a dialect, by name."""
    common: dict[str, Statement] = {}
    special: dict[str, Statement] = {}
    for file in sorted(_folder().iterdir(), key=lambda entry: entry.name):
        _, _, rest = file.name.partition(".")
        if rest == "sql":
            target = common
        elif rest == f"{dialect}.sql":
            target = special
        else:
            continue
        for name, statement in parse(file.read_text(encoding="utf-8"), dialect, source=file.name).items():
            if name in target:
                raise Internal(f"{file.name}: {name} is already defined in another file")
            target[name] = statement
    return {**common, **special}


@dataclass(frozen=True, slots=True)
class MigrationScript:
    """One numbered step of the schema."""

    number: int
    name: str
    sql: str


@cache
def load_migrations(dialect: Dialect) -> tuple[MigrationScript, ...]:
    """The schema's steps, in order."""
    scripts = []
    for file in (_folder() / "migrations").iterdir():
        stem, _, rest = file.name.partition(".")
        if rest == f"{dialect}.sql":
            number, _, name = stem.partition("_")
            scripts.append(MigrationScript(int(number), name, file.read_text(encoding="utf-8")))
    return tuple(sorted(scripts, key=lambda script: script.number))


def _folder() -> Traversable:
    return resources.files("analemma.catalog") / "sql"
