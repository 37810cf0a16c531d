"""Named SQL is found, translated, and understood by the database it is meant for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from analemma.catalog.opening import open_catalog
from analemma.catalog.statements import DIALECTS, Dialect, Statement, load, load_migrations, parse
from analemma.errors import Internal


def test_parameters_become_what_the_driver_wants() -> None:
    text = "-- find --\n-- Purpose.\n-- More of it.\nSELECT :a, :b_2, :a;\n"
    sqlite, postgres = parse(text, "sqlite")["find"], parse(text, "postgres")["find"]
    assert sqlite == Statement("find", "Purpose. More of it.", "SELECT ?, ?, ?", ("a", "b_2"), (0, 1, 0))
    assert postgres.sql == "SELECT $1, $2, $1"


def test_casts_literals_and_comments_hold_no_parameters() -> None:
    text = "-- find --\n-- Purpose.\nSELECT ':no', 'it''s :no', :yes::text -- :no\n"
    statement = parse(text, "postgres")["find"]
    assert statement.parameters == ("yes",)
    assert statement.sql == "SELECT ':no', 'it''s :no', $1::text -- :no"


@pytest.mark.parametrize(
    "text",
    ["SELECT 1", "-- find --\nSELECT 1", "-- find --\n-- One.\nSELECT 1\n\n-- find --\n-- Two.\nSELECT 2"],
    ids=["no name", "no purpose", "same name twice"],
)
def test_malformed_files_are_refused(text: str) -> None:
    with pytest.raises(Internal):
        parse(text, "sqlite")


def test_both_dialects_have_the_same_migrations() -> None:
    sqlite, postgres = ([(m.number, m.name) for m in load_migrations(dialect)] for dialect in DIALECTS)
    assert sqlite == postgres
    assert [number for number, _ in sqlite] == list(range(1, len(sqlite) + 1))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_statement_says_what_it_is_for(dialect: Dialect) -> None:
    for statement in load(dialect).values():
        assert statement.purpose.endswith((".", ":")), statement.name


def test_sqlite_understands_every_statement(tmp_path: Path) -> None:
    catalog = open_catalog(tmp_path)
    with catalog.engine.transaction(write=True) as tx:
        tx.execute("create_migration_table")
    connection = catalog.engine._connection  # type: ignore[attr-defined]
    for statement in load("sqlite").values():
        connection.execute(f"EXPLAIN {statement.sql}", [None] * len(statement.positions)).fetchall()
    catalog.close()


@pytest.fixture
def migrated(postgres_url: str) -> Iterator[psycopg.Connection]:
    open_catalog(postgres_url).close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


def test_postgres_understands_every_statement(migrated: psycopg.Connection) -> None:
    for statement in load("postgres").values():
        result = migrated.pgconn.prepare(statement.name.encode(), statement.sql.encode())
        assert result.status == psycopg.pq.ExecStatus.COMMAND_OK, (statement.name, result.error_message)
