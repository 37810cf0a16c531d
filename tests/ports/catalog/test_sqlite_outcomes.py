"""A COMMIT that fails in the middle: what is known is said, and what can be settled is settled."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from analemma.catalog.engine import Transaction
from analemma.catalog.sqlite import SqliteEngine
from analemma.catalog.sqlite_catalog import SqliteCatalog
from analemma.errors import HeadMoved, OutcomeUnknown, Unavailable
from analemma.testing.commits import KEY, make_block, make_request


class Disk:
    """Makes COMMIT fail as a failing disk does; `applies` says whether the record is found nevertheless."""

    def __init__(self) -> None:
        self.failures = 0
        self.applies = False
        self.code = sqlite3.SQLITE_IOERR_FSYNC
        self.connections = 0

    def connection_class(self) -> type[sqlite3.Connection]:
        disk = self

        class Connection(sqlite3.Connection):
            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **options)
                disk.connections += 1

            def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
                if sql != "COMMIT" or not disk.failures:
                    return super().execute(sql, parameters)
                disk.failures -= 1
                super().execute("COMMIT" if disk.applies else "ROLLBACK")
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = disk.code
                raise error

        return Connection


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=disk.connection_class()))
    return disk


@pytest.fixture
def catalog(disk: Disk, tmp_path: Path) -> Iterator[SqliteCatalog]:
    catalog = SqliteCatalog(SqliteEngine(tmp_path / "catalog.db"))
    yield catalog
    catalog.close()


def add(name: str) -> Callable[[Transaction], int]:
    return lambda tx: tx.execute("add_tenant", name=name)


def test_a_commit_record_that_was_not_flushed_has_an_unknown_outcome(disk: Disk, catalog: SqliteCatalog) -> None:
    disk.failures = 2
    with pytest.raises(OutcomeUnknown, match="read back before trying again"):
        catalog.engine.write(add("one"))

    def alone() -> None:
        with catalog.engine.transaction(write=True) as tx:
            add("two")(tx)

    with pytest.raises(OutcomeUnknown):
        alone()
    assert catalog.engine.write(add("three")) == 1


def test_the_connection_is_replaced_after_that(disk: Disk, catalog: SqliteCatalog) -> None:
    before, made = catalog.engine._connection, disk.connections
    disk.failures = 1
    with pytest.raises(OutcomeUnknown):
        catalog.engine.write(add("one"))
    catalog.engine.write(add("two"))
    assert disk.connections == made + 1
    assert catalog.engine._connection is not before
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        before.execute("SELECT 1")


def test_a_failed_write_of_the_record_changed_nothing(disk: Disk, catalog: SqliteCatalog) -> None:
    disk.failures, disk.code = 1, sqlite3.SQLITE_IOERR_WRITE
    with pytest.raises(Unavailable) as caught:
        catalog.engine.write(add("one"))
    assert caught.value.kind == "unavailable"


@pytest.mark.parametrize("applies", [True, False])
def test_a_commit_in_doubt_is_settled(disk: Disk, catalog: SqliteCatalog, applies: bool) -> None:
    tenant = catalog.tenant("shop")
    first = make_request(tenant, None)
    catalog.commit(first)
    second = make_request(tenant, first.head, [make_block()])
    disk.failures, disk.applies = 1, applies
    assert catalog.commit(second).manifest == second.manifest.id
    assert catalog.head(tenant, KEY) == second.head
    assert [row.version for row in catalog.history(tenant, KEY)] == [2, 1]
    disk.failures = 1
    with pytest.raises(HeadMoved):
        catalog.commit(make_request(tenant, first.head))


def test_a_commit_that_stays_in_doubt_says_so(disk: Disk, catalog: SqliteCatalog) -> None:
    tenant = catalog.tenant("shop")
    disk.failures = 2
    with pytest.raises(OutcomeUnknown, match="read back"):
        catalog.commit(make_request(tenant, None))
