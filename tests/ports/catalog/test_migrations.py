"""Migrations: all or nothing, once, whoever opens the store, and never on a database that is ahead of the program."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.errors import AnalemmaError, Corrupt, Unavailable
from tests.actors import Actor
from tests.ports.entry_points.catalog import BASELINE, migrations
from tests.raw_rows import change, is_sqlite, select
from tests.stores import Store

AT: dict[str, Any] = {"workflow_id": "w", "owner_id": "ann"}
BOTH = pytest.mark.both_stores("each database has migrations of its own")


@pytest.fixture(params=["sqlite", "postgres"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A place where there is nothing yet."""
    if request.param == "sqlite":
        return Store(str(tmp_path / "store"))
    return Store(request.getfixturevalue("postgres_url"), str(tmp_path / "objects"))


def tables(store: Store) -> set[str]:
    if is_sqlite(store):
        found = select(store, "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
    else:
        found = select(store, "SELECT tablename FROM pg_tables WHERE schemaname = 'analemma'")
    return {name for (name,) in found}


@BOTH
def test_a_store_is_migrated_once(empty: Store) -> None:
    query = "SELECT number, name, checksum FROM migration ORDER BY number"
    with empty.open() as app:
        app.kernel.save_state_delta({"n": 1}, **AT)
    applied = select(empty, query)
    assert [number for number, *_ in applied] == [each.number for each in migrations()]
    with empty.open() as app:
        assert app.kernel.load_latest_state(**AT) == {"n": 1}
    assert select(empty, query) == applied


@BOTH
def test_a_migration_that_fails_leaves_nothing(empty: Store) -> None:
    """Somebody else's table has the name of one that a late migration makes."""
    if is_sqlite(empty):
        Path(empty.url).mkdir()
        with closing(sqlite3.connect(Path(empty.url) / "catalog.db")) as connection:
            connection.execute("CREATE TABLE schedule (mine integer)")
    else:
        change(empty, "CREATE SCHEMA analemma CREATE TABLE schedule (mine integer)")
    with pytest.raises(AnalemmaError):
        empty.open()
    assert tables(empty) == {"schedule"}
    change(empty, "DROP TABLE schedule")
    with empty.open() as app:
        assert app.kernel.save_state_delta({"n": 1}, **AT).version == 1


@BOTH
def test_a_schema_from_the_future_is_refused(store: Store) -> None:
    change(store, "INSERT INTO migration (number, name, checksum, applied_at) VALUES (9999, 'future', 'x', 1)")
    with pytest.raises(Unavailable, match="upgrade analemma") as caught:
        store.open()
    assert "schema 9999" in str(caught.value) and "\n" not in str(caught.value)


@BOTH
def test_a_rewritten_migration_is_refused(store: Store) -> None:
    change(store, "UPDATE migration SET checksum = 'another' WHERE number = ?", [BASELINE])
    with pytest.raises(Corrupt, match="release") as caught:
        store.open()
    assert "\n" not in str(caught.value)


@BOTH
def test_an_outdated_schema_is_refused_when_asked_to_leave_it(store: Store) -> None:
    ((newest,),) = select(store, "SELECT max(number) FROM migration")
    change(store, "DELETE FROM migration WHERE number = ?", [newest])
    with pytest.raises(Unavailable, match=r"lacks 1 migration .*analemma migrate"):
        analemma.open(store.url, objects=store.objects, migrate=False)
    assert select(store, "SELECT count(*) FROM migration WHERE number = ?", [newest]) == [(0,)]


def open_and_save(url: str) -> None:
    with Store(url).open() as app:
        app.kernel.save_state_delta({"n": 1}, **AT)


@BOTH
def test_processes_that_open_a_new_store_together_all_succeed(empty: Store) -> None:
    actors = [Actor(open_and_save, empty.url) for _ in range(4)]
    try:
        assert [(actor.wait(), actor.errors) for actor in actors] == [(0, "")] * 4
    finally:
        for actor in actors:
            actor.__exit__()
    with empty.open() as app:
        assert len(list(app.kernel.history(**AT))) == 4


def test_threads_that_open_a_restored_file_together_all_succeed(migrated_directory: Path) -> None:
    start = threading.Barrier(4)

    def look() -> int:
        start.wait(30)
        with analemma.open(migrated_directory) as app:
            found = app.stats().blocks
            start.wait(30)
        return found

    for _ in range(5):
        # A copy made by VACUUM INTO has no write-ahead log; whoever opens it first changes that.
        with closing(sqlite3.connect(migrated_directory / "catalog.db")) as connection:
            assert connection.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
        with ThreadPoolExecutor(4) as pool:
            assert [each.result() for each in [pool.submit(look) for _ in range(4)]] == [0] * 4
