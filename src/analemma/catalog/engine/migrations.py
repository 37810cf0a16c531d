"""Brings a database to the schema this program knows, in one transaction, or refuses to touch it."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from analemma.catalog.engine.db import Engine, Statements, Transaction
from analemma.catalog.engine.sql import MigrationScript, load_migrations
from analemma.errors import Corrupt, Unavailable


def migrate(
    engine: Engine, *, now_us: int, apply: bool = True, scripts: tuple[MigrationScript, ...] | None = None
) -> list[str]:
    """Apply what is missing and name it, and make the functions that are missing; with `apply` False, raise if anything
    is missing."""
    scripts = load_migrations(engine.dialect) if scripts is None else scripts
    found = _found(engine)
    pending, functions = plan(scripts, found.applied), engine.missing_functions(found.functions)
    if not pending and not functions:
        return []
    if not apply:
        what = f"{len(pending)} migration" if pending else f"{len(functions)} function"
        raise Unavailable(
            f"the database schema lacks {what}{'s' if len(pending or functions) > 1 else ''}",
            hint="run `analemma migrate`",
        )

    def upgrade(tx: Transaction) -> list[str]:
        tx.all("lock_migrations")
        tx.execute("create_migration_table")
        # Again, now that nobody else can: another process may have been first.
        found = _found(tx)
        missing = plan(scripts, found.applied)
        for script in missing:
            tx.script(script.sql)
            tx.execute(
                "record_migration", number=script.number, name=script.name, checksum=checksum(script), applied_at=now_us
            )
        for change in engine.function_changes(found.functions):
            tx.script(change)
        return [f"{script.number:04}_{script.name}" for script in missing]

    with engine.transaction(write=True) as tx:
        return upgrade(tx)


def plan(scripts: tuple[MigrationScript, ...], applied: dict[int, str]) -> list[MigrationScript]:
    """What is missing, in order; raises if the database is newer than we are or was built from other scripts."""
    known = {script.number: script for script in scripts}
    newest = max(applied, default=0)
    if newest > max(known, default=0):
        raise Unavailable(
            f"the database has schema {newest}, this program knows {max(known, default=0)}", hint="upgrade analemma"
        )
    for number, seen in applied.items():
        script = known.get(number)
        if script is None or checksum(script) != seen:
            raise Corrupt(
                f"migration {number} is not the one this database was built with",
                hint="use the analemma release that made it",
            )
    return [script for script in scripts if script.number not in applied]


def checksum(script: MigrationScript) -> str:
    """Names the exact text of a migration."""
    return hashlib.sha256(script.sql.encode()).hexdigest()


class _Found(NamedTuple):
    """What a database has."""

    applied: dict[int, str]
    """The checksum of each migration, by its number."""
    functions: dict[str, str]
    """What is said of each function, by its name."""


def _found(source: Statements) -> _Found:
    rows = [] if source.one("migration_table_exists") is None else source.all("applied_migrations")
    return _Found(
        {number: seen for number, _, seen in rows if number is not None},
        {name: said or "" for number, name, said in rows if number is None},
    )
