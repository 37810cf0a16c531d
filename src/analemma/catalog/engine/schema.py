"""Brings a database to the schema this program knows, in one transaction, or refuses to touch it.

A new database gets the baseline at once, and the migrations behind it: numbered scripts of `sql/schema`, one source for
both databases. One that was begun before there was a baseline came to it, or comes, by the scripts of that time, which
an archive has for each database; they end with the baseline's number. So a number up to the baseline's may have two
checksums, and which of them is right is told by the lowest number that a database has.

What procedures run as on PostgreSQL, functions, is no part of a migration: each release makes its own. Their comments
name the releases that use them; those that the last two do not use are dropped.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from analemma.catalog.engine.db import Engine, Statements, Transaction
from analemma.catalog.engine.sql import Sql
from analemma.errors import Corrupt, Unavailable

BASELINE = 28
"""The number of the baseline, and of the last of the older scripts."""
OLDER = {
    "sqlite": "5eeb4bcdeb6ab42cad8aa66b219c7867855922e1d6a6fe66c8a812a4aa6434a2",
    "postgres": "8fe526200f97c43f867f27e0554357170ddad81030455b9214efa026c02f7afb",
}
"""Names all of the older scripts of a database, so that the archive stays closed where they have been applied."""
RELEASES = 2
"""So many releases, the newest that used a database, keep their functions."""
_FOLDER = Path(__file__).parents[1] / "sql" / "schema"


class Migration(NamedTuple):
    """One numbered step of the schema."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """Names the exact text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrate(engine: Engine, *, now_us: int, apply: bool = True) -> list[str]:
    """Apply what is missing and name it, and make the functions that are missing; with `apply` False, raise if anything
    is missing."""
    engine.schema = newest()
    applied, found = _found(engine)
    missing, functions = _missing(engine.sql, applied), engine.functions()
    lacking: list[object] = [*missing] or [name for name in functions if name not in found]
    if not lacking:
        return []
    if not apply:
        what = f"{len(lacking)} {'migration' if missing else 'function'}{'s' if len(lacking) > 1 else ''}"
        raise Unavailable(f"the database schema lacks {what}", hint="run `analemma migrate`")

    def upgrade(tx: Transaction) -> list[str]:
        tx.all("lock_migrations")
        tx.execute("create_migration_table")
        # Again, now that nobody else can: another process may have been first.
        applied, found = _found(tx)
        missing = _missing(engine.sql, applied)
        for each in missing:
            tx.script(each.text)
            tx.execute(
                "record_migration", number=each.number, name=each.name, checksum=each.checksum, applied_at=now_us
            )
        for change in _function_changes(functions, found):
            tx.script(change)
        return [f"{each.number:04}_{each.name}" for each in missing]

    return engine.write(upgrade)


def newest() -> int:
    """The number of the schema that this program knows."""
    return migrations()[-1].number


@cache
def migrations() -> tuple[Migration, ...]:
    """What a new database gets, in order."""
    return tuple(_migration(file.name, file.read_bytes()) for file in sorted(_FOLDER.glob("*.sql")))


def older_migrations(sql: Sql) -> tuple[Migration, ...]:
    """What a database got before there was a baseline, in order."""
    from zipfile import ZipFile  # only such a database needs it

    with ZipFile(_FOLDER / "older.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(f".{sql.database}.sql"))
        return tuple(_migration(name, archive.read(name)) for name in names)


def checksum_of(applied: dict[int, str]) -> str:
    """Names all of the scripts that were applied."""
    return hashlib.sha256("\n".join(applied[number] for number in sorted(applied)).encode()).hexdigest()


def _migration(file: str, text: bytes) -> Migration:
    number, _, name = file.partition(".")[0].partition("_")
    return Migration(int(number), name, text.decode())


def _missing(sql: Sql, applied: dict[int, str]) -> list[Migration]:
    """What is missing, in order; raises if the database is newer than we are or was built from other scripts."""
    if max(applied, default=0) > newest():
        raise Unavailable(
            f"the database has schema {max(applied)}, this program knows {newest()}", hint="upgrade analemma"
        )
    known = migrations()
    if min(applied, default=BASELINE) < BASELINE:
        older = {number: seen for number, seen in applied.items() if number <= BASELINE}
        if checksum_of(older) == OLDER[sql.database]:
            known, applied = known[1:], {number: applied[number] for number in applied.keys() - older.keys()}
        else:
            known = older_migrations(sql) + known[1:]
    checksums = {each.number: each.checksum for each in known}
    for number, seen in applied.items():
        if checksums.get(number) != seen:
            raise Corrupt(
                f"migration {number} is not the one this database was built with",
                hint="use the analemma release that made it",
            )
    return [each for each in known if each.number not in applied]


def _found(source: Statements) -> tuple[dict[int, str], dict[str, str]]:
    """What a database has: the checksum of each migration, by its number, and which releases use each function."""
    rows = [] if source.one("migration_table_exists") is None else source.all("applied_migrations")
    return (
        {number: seen for number, _, seen in rows if number is not None},
        {name: said or "" for number, name, said in rows if number is None},
    )


def _function_changes(own: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """What makes those functions of this release that are not found, notes that it uses them, and drops what no release
    that counts uses."""
    if not own:
        return []
    from importlib.metadata import version  # most programs find what they need

    this = version("analemma")
    users = {name: set(said.split()) - {this} for name, said in found.items()}
    for name in own:
        users.setdefault(name, set()).add(this)
    releases = sorted({release for names in users.values() for release in names}, key=_in_order)[-RELEASES:]
    kept = {name: names for name, names in users.items() if names & {*releases, this}}
    return [
        *(create for name, create in own.items() if name not in found),
        *(f"COMMENT ON FUNCTION {name} IS '{' '.join(sorted(names))}'" for name, names in kept.items()),
        *(f"DROP FUNCTION {name}" for name in users if name not in kept),
    ]


def _in_order(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)]
