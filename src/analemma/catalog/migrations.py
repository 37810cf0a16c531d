"""Brings a database to the schema this program knows, in one transaction, or refuses to touch it."""

from __future__ import annotations

import hashlib

from analemma.catalog.engine import Engine, Statements, Transaction
from analemma.catalog.sql import MigrationScript, load_migrations
from analemma.errors import Corrupt, Unavailable


def migrate(
    engine: Engine, *, now_us: int, apply: bool = True, scripts: tuple[MigrationScript, ...] | None = None
) -> list[str]:
    """Apply what is missing and name it; with `apply` False, raise if anything is missing."""
    scripts = load_migrations(engine.dialect) if scripts is None else scripts
    pending = plan(scripts, _applied(engine))
    if not pending:
        return []
    if not apply:
        raise Unavailable(
            f"the database schema lacks {len(pending)} migration{'s' if len(pending) > 1 else ''}",
            hint="run `analemma migrate`",
        )

    def upgrade(tx: Transaction) -> list[str]:
        tx.all("lock_migrations")
        tx.execute("create_migration_table")
        # Again, now that nobody else can: another process may have been first.
        missing = plan(scripts, _applied(tx))
        for script in missing:
            tx.script(script.sql)
            tx.execute(
                "record_migration", number=script.number, name=script.name, checksum=checksum(script), applied_at=now_us
            )
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


def _applied(source: Statements) -> dict[int, str]:
    if source.one("migration_table_exists") is None:
        return {}
    return {number: seen for number, _, seen in source.all("applied_migrations")}
