"""Two write documents to one table of a database: the newest state stays, whoever comes last."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

import analemma
from analemma import Sink, SinkDocument, open_sink
from tests.postgres_locks import beside
from tests.raw_rows import is_sqlite
from tests.stores import Store, local

CONTRACTS = Path(__file__).parents[2] / "examples/bookshop/contracts.yaml"


class Table(NamedTuple):
    """A table that several write to."""

    url: str

    def target(self, **more: Any) -> dict[str, Any]:
        return {"type": "TABLE", "url": self.url, "table": "shipped", "create": True, **more}

    def open(self, **more: Any) -> Sink:
        return open_sink(self.target(**more))

    def rows(self) -> dict[str, tuple[int, bool]]:
        """By document: the number of its state, and whether there is a body."""
        sql = "SELECT doc_id, ship_seq, body IS NOT NULL FROM shipped"
        if self.url.startswith("postgres"):
            with psycopg.connect(self.url) as connection:
                found = connection.execute(sql).fetchall()
        else:
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as database:
                found = database.execute(sql).fetchall()
        return {doc_id: (ship_seq, bool(there)) for doc_id, ship_seq, there in found}


@pytest.fixture
def table(store: Store, tmp_path: Path) -> Table:
    """In a file, or in a database of the server."""
    return Table(f"sqlite:///{tmp_path / 'table.db'}" if is_sqlite(store) else store.url)


def state(number: int, doc_id: str = "1", *, gone: bool = False) -> SinkDocument:
    body = None if gone else {"state": number}
    return SinkDocument(doc_id, number, body, tenant="shop", entity_key=f"BOOK#shop#{doc_id}", version=number)


@pytest.mark.parametrize("deletes", ["mark", "remove"])
def test_an_older_state_does_not_replace_a_newer_one(table: Table, deletes: str) -> None:
    """Guard: a row is written only over one that is not newer."""
    with closing(table.open(deletes=deletes)) as one, closing(table.open(deletes=deletes)) as other:
        assert one.ship(state(2)).outcome == "shipped"
        assert other.ship(state(1)).outcome == "stale"
        assert table.rows() == {"1": (2, True)}
        # The same again is carried out: tables are restored, too.
        assert other.ship(state(2)).outcome == "shipped"


@pytest.mark.parametrize("deletes", ["mark", "remove"])
def test_an_older_delete_does_not_take_a_newer_state_away(table: Table, deletes: str) -> None:
    """Guard: a row is deleted only if it is not newer."""
    with closing(table.open(deletes=deletes)) as one, closing(table.open(deletes=deletes)) as other:
        assert [each.outcome for each in one.ship_batch([state(2), state(1, "2")])] == ["shipped", "shipped"]
        answers = other.ship_batch([state(1, gone=True), state(2, "2", gone=True)])
        assert [each.outcome for each in answers] == ["stale", "shipped"]
        assert table.rows() == {"1": (2, True), **({"2": (2, False)} if deletes == "mark" else {})}


def test_a_state_older_than_a_delete_does_not_bring_the_document_back(table: Table) -> None:
    """Guard: the row of a deleted document stays, with its number."""
    with closing(table.open()) as one, closing(table.open()) as other:
        assert one.ship(state(2, gone=True)).outcome == "shipped"
        assert other.ship(state(1)).outcome == "stale"
        assert table.rows() == {"1": (2, False)}


def test_of_two_who_write_the_same_documents_at_once_the_newest_states_stay(table: Table) -> None:
    """Guard: rows are compared where they are written, and written in one order."""
    documents, states = [f"{number}" for number in range(8)], list(range(1, 21))

    def ship(seed: int) -> None:
        chance = random.Random(seed)
        with closing(table.open()) as sink:
            for number in chance.sample(states, len(states)):
                batch = [state(number, doc_id) for doc_id in chance.sample(documents, len(documents))]
                assert all(each.is_done for each in sink.ship_batch(batch))

    with closing(table.open()) as sink:
        assert sink.health().is_healthy, "the table is there"
    with beside(lambda: ship(1)), beside(lambda: ship(2)):
        pass
    assert table.rows() == dict.fromkeys(documents, (states[-1], True))


def test_a_store_that_is_behind_does_not_bring_back_what_another_shipped(
    store: Store, tmp_path: Path, table: Table
) -> None:
    """Guard: the same, where a store was restored from a backup, and another goes on that is ahead of it."""
    rule = {
        "kind": "SINKRULE",
        "id": "sink.table",
        "version": "1.0.0",
        "status": "ACTIVE",
        "input": {"type": "SLICE", "sliceTypes": ["PRICE"], "entityTypes": ["BOOK"]},
        "target": table.target(),
    }

    def put(app: analemma.App, price: int) -> None:
        app.default.ingest("BOOK", "1", {"isbn": "1", "title": "Solaris", "price": price})
        app.default.compile("BOOK", "1")

    with store.open() as ahead, local(tmp_path / "behind").open() as behind:
        for app in (ahead, behind):
            documents = [
                each.document for each in analemma.load_contracts(CONTRACTS).contracts if each.kind != "SINKRULE"
            ]
            app.contracts.load([*documents, rule])
            put(app, 1)
        put(ahead, 2)
        ahead.worker(1).drain()
        behind.worker(1).drain()
        assert [number for number, _ in table.rows().values()] == [2]
        # That it came too late is nobody's failure.
        assert (behind.outbox.status().lanes, behind.outbox.status().dead, behind.sinks.list()[0].state) == (0, 0, "ok")
