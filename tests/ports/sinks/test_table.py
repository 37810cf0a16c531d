"""Tables that documents are shipped to: their rows, tables that were there before, connections that end."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from analemma import Sink, open_sink
from analemma.testing.sinks import Outcome, gone, make_document
from tests.servers import PostgresServer


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


def _open(url: str, **settings: Any) -> contextlib.closing[Sink]:
    target = {"type": "TABLE", "url": url, "table": "documents", "timeoutS": 5, **settings}
    return contextlib.closing(open_sink(target, environment={}))


def _rows(url: str, query: str) -> list[tuple[Any, ...]]:
    if url.startswith("sqlite:///"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            rows = connection.execute(query).fetchall()
            connection.commit()
            return rows
    with psycopg.connect(url) as server:
        cursor = server.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


def test_a_row_has_the_document_and_where_it_is_from(url: str) -> None:
    with _open(url, create=True) as sink:
        sink.ship_batch([make_document("a", 7, title="x"), gone(make_document("b"), 8)])
    query = "SELECT doc_id, ship_seq, tenant, entity_key, version, deleted, body IS NULL FROM documents ORDER BY doc_id"
    assert [(*row[:5], bool(row[5]), bool(row[6])) for row in _rows(url, query)] == [
        ("a", 7, "shop", "BOOK#shop#978", 1000, False, False),
        ("b", 8, "shop", "BOOK#shop#978", 1000, True, True),
    ]


def test_removed_documents_leave_no_row(url: str) -> None:
    with _open(url, create=True, deletes="remove") as sink:
        assert not sink.remembers_deletes
        sink.ship_batch([make_document("a", 1), make_document("b", 5), make_document("c", 1)])
        answers = sink.ship_batch([gone(make_document("a"), 1), gone(make_document("b"), 4), make_document("c", 2)])
        assert [each.outcome for each in answers] == [Outcome.SHIPPED, Outcome.STALE, Outcome.SHIPPED]
    rows = _rows(url, "SELECT doc_id, ship_seq FROM documents ORDER BY doc_id")
    assert [tuple(row) for row in rows] == [("b", 5), ("c", 2)]


def test_a_table_is_made_only_when_asked_for(url: str) -> None:
    _rows(url, "CREATE TABLE others (number INTEGER)")
    with _open(url) as sink:
        answer = sink.ship(make_document())
        assert answer.outcome is Outcome.RETRY and "documents" in (answer.reason or "")
        assert not sink.health().is_healthy
        with _open(url, create=True) as maker:
            assert maker.ship(make_document()).outcome is Outcome.SHIPPED
        assert sink.health().is_healthy
        assert sink.ship(make_document(ship_seq=2)).outcome is Outcome.SHIPPED


def test_those_who_make_the_same_table_at_once_refuse_nothing(url: str) -> None:
    def write(number: int) -> set[Outcome]:
        with _open(url, create=True) as sink:
            document = make_document(f"doc {number}")
            found = [sink.ship(document).outcome for _ in range(3)]
            assert found[-1] is Outcome.SHIPPED
            return set(found)

    with ThreadPoolExecutor(6) as threads:
        assert Outcome.REFUSED not in set().union(*threads.map(write, range(6)))
    assert len(_rows(url, "SELECT doc_id FROM documents")) == 6


def test_a_table_with_other_columns_is_told(url: str) -> None:
    _rows(url, "CREATE TABLE documents (doc_id TEXT PRIMARY KEY)")
    with _open(url, create=True) as sink:
        health = sink.health()
        assert not health.is_healthy and "ship_seq" in health.detail
        assert sink.ship(make_document()).outcome is Outcome.RETRY


def test_a_table_that_was_there_may_have_more_columns_and_rules_of_its_own(url: str) -> None:
    body = "TEXT CHECK (length(body) < 30)" if url.startswith("sqlite") else "json CHECK (length(body::text) < 30)"
    number, truth = ("INTEGER", "INTEGER") if url.startswith("sqlite") else ("bigint", "boolean")
    _rows(
        url,
        f"CREATE TABLE documents (doc_id TEXT PRIMARY KEY, ship_seq {number} NOT NULL, tenant TEXT, entity_key TEXT,"
        f" version {number}, deleted {truth}, body {body}, note TEXT DEFAULT 'theirs')",
    )
    with _open(url) as sink:
        batch = [make_document("a"), make_document("b", text="x" * 40), make_document("c")]
        assert [each.outcome for each in sink.ship_batch(batch)] == [
            Outcome.SHIPPED,
            Outcome.REFUSED,
            Outcome.SHIPPED,
        ]
    rows = _rows(url, "SELECT doc_id, note FROM documents ORDER BY doc_id")
    assert [tuple(row) for row in rows] == [("a", "theirs"), ("c", "theirs")]


def test_a_connection_that_ended_is_made_again(postgres_url: str) -> None:
    with _open(postgres_url, create=True) as sink:
        sink.ship(make_document())
        with psycopg.connect(postgres_url, autocommit=True) as server:
            server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
        assert sink.ship(make_document(ship_seq=2)).outcome is Outcome.RETRY
        assert sink.ship(make_document(ship_seq=2)).outcome is Outcome.SHIPPED


def test_a_row_that_another_program_holds_is_waited_for_and_no_longer(postgres_url: str) -> None:
    with _open(postgres_url, create=True, timeoutS=0.3) as sink:
        sink.ship(make_document())
        with psycopg.connect(postgres_url) as server:
            server.execute("SELECT 1 FROM documents FOR UPDATE")
            assert sink.ship(make_document(ship_seq=2)).outcome is Outcome.RETRY
        assert sink.ship(make_document(ship_seq=2)).outcome is Outcome.SHIPPED


def test_the_password_of_a_database_is_not_shown(postgres_server: PostgresServer) -> None:
    url = postgres_server.require_password("sinkuser", "hunter2")
    wrong = url.replace("hunter2", "hunter3")
    with _open(wrong) as sink:
        answer, health = sink.ship(make_document()), sink.health()
        assert answer.outcome is Outcome.RETRY and not health.is_healthy
        assert "hunter" not in f"{answer} {health} {sink!r}"


def test_an_id_too_long_for_an_index_is_refused_alone(postgres_url: str) -> None:
    letters = random.Random(7)
    long_id = "".join(letters.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(20_000))
    with _open(postgres_url, create=True) as sink:
        answers = sink.ship_batch([make_document("a"), make_document(long_id), make_document("b")])
    assert [each.outcome for each in answers] == [Outcome.SHIPPED, Outcome.REFUSED, Outcome.SHIPPED]
