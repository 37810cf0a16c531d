"""Named SQL is understood by the database it is meant for."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import analemma
from analemma.errors import Unavailable
from tests.ports.entry_points.catalog import BASELINE, POSTGRES, SQLITE, Statement, migrations, names
from tests.raw_rows import connect
from tests.stores import Store

FUNCTIONS = "SELECT proname FROM pg_proc WHERE proname LIKE 'analemma_do_%'"
LOST = f"{FUNCTIONS} AND proname LIKE 'analemma_do_append_record_%'"


def steps() -> list[Statement]:
    """The statements of all procedures, as SQLite takes them."""
    every = SQLITE.every_procedure().items()
    named = [(f"{name}.{n}", step.sql) for name, each in every for n, step in enumerate(each.steps)]
    return [SQLITE.translate(sql, name) for name, sql in named if sql]


def test_migrations_are_numbered_from_the_baseline_on() -> None:
    assert [each.number for each in migrations()] == [*range(BASELINE, BASELINE + len(migrations()))]


def test_every_statement_has_a_name_of_its_own_and_says_what_it_is_for() -> None:
    folder = Path(analemma.__file__).parent / "catalog" / "sql"
    names: dict[str, list[str]] = {"sqlite": [], "postgres": []}
    for file in (each for each in sorted(folder.glob("*/*.sql")) if each.parent.name != "schema"):
        before, *blocks = re.split(r"^(?=-- \w+(?: \[\w+\])? --$)", file.read_text(), flags=re.MULTILINE)
        assert not before.strip(), file
        for block in blocks:
            found = re.match(r"-- (\w+)(?: \[(\w+)\])? --\n-- .*\n", block)
            assert found is not None, (file, block)
            assert set(re.findall(r"^\[(\w+)\]", block, re.MULTILINE)) <= set(names), (file, block)
            assert found[2] in (None, "part", "text", *names), (file, block)
            for database in [found[2]] if found[2] in names else names:
                names[database].append(found[1])
    for database, given in names.items():
        assert [name for name, count in Counter(given).items() if count > 1] == [], database


def test_sqlite_understands_every_statement(migrated_directory: Path) -> None:
    wrong = {}
    with closing(sqlite3.connect(migrated_directory / "catalog.db")) as connection:
        # One that only waits for others does nothing here.
        for statement in (each for each in SQLITE.every_statement().values() if each.sql):
            values = [None] * len(statement.places)
            try:
                for sql in statement.sql.split(";\n"):
                    connection.execute(f"EXPLAIN {sql}", values).fetchall()
            except sqlite3.OperationalError as exc:
                # What makes this table is run where there is none.
                if "table migration already exists" not in str(exc):
                    wrong[statement.name] = str(exc)
    assert wrong == {}


def test_sqlite_counts_what_statements_change() -> None:
    """Python's driver counts rows for those that begin with what they do, and for no others."""
    texts = {name: SQLITE.statements[name].sql for name in SQLITE.every_statement()}
    texts |= {step.name: step.sql for step in steps()}
    writes = re.compile(r"\b(INSERT|REPLACE) INTO\b|\bUPDATE \w+ (AS \w+ )?SET\b|\bDELETE FROM\b")
    first = re.compile(r"\s*(INSERT|REPLACE|UPDATE|DELETE)\b")
    assert [name for name, sql in texts.items() if writes.search(sql) and not first.match(sql)] == []


def test_sqlite_understands_every_step_of_every_procedure(migrated_directory: Path) -> None:
    with closing(sqlite3.connect(migrated_directory / "catalog.db")) as connection:
        for step in steps():
            assert connection.execute(f"EXPLAIN {step.sql}", [None] * len(step.places)).fetchall(), step


def test_functions_that_two_newer_releases_do_not_use_are_dropped(migrated_url: str) -> None:
    """A program of another release keeps its own beside ours."""
    with connect(migrated_url, autocommit=True) as connection:
        for release in ("0.0.8", "0.0.9"):
            name = f"analemma_do_other_{release.replace('.', '')}"
            connection.execute(f"CREATE FUNCTION {name}() RETURNS void LANGUAGE sql AS ''".encode())
            connection.execute(f"COMMENT ON FUNCTION {name}() IS '{release}'".encode())
        (ours,) = connection.execute(LOST).fetchone() or ("",)
        connection.execute(f"DROP FUNCTION {ours}".encode())
        with pytest.raises(Unavailable, match=r"lacks 1 function .*analemma migrate"):
            analemma.open(migrated_url, migrate=False)
        Store(migrated_url).open().close()
        analemma.open(migrated_url, migrate=False).close()
        kept = {row[0] for row in connection.execute(FUNCTIONS)}
    assert ours in kept
    assert {name for name in kept if "other" in name} == {"analemma_do_other_009"}


def test_postgres_understands_every_statement(migrated_url: str) -> None:
    """Wherever the session looks for names."""
    with psycopg.connect(migrated_url, autocommit=True, options="-c search_path=") as connection:
        for name in POSTGRES.every_statement():
            result = connection.pgconn.prepare(name.encode(), names("analemma").queries[name])
            assert result.status == psycopg.pq.ExecStatus.COMMAND_OK, (name, result.error_message)
