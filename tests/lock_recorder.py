"""In which order transactions on PostgreSQL lock rows of which tables, as the server and the driver tell it.

Triggers raise a notice for each row that is changed, when it is locked, also in the midst of a statement. A statement
that only locks (`SELECT ... FOR ...`) is known by its text. What this does not see: rows that a statement locks by
`FOR ...` while it also changes others (the bases of a commit), rows that a foreign key makes the server lock, and in
which order rows of one table are locked. A row that is new counts only in tables to which two may add the same: nobody
else can wait for one of the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.raw_rows import connect

_TRIGGERS = """
CREATE FUNCTION tell_lock() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE 'locks % %', TG_OP, TG_TABLE_NAME;
    IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
    RETURN NEW;
END $$;
DO $$
DECLARE name text;
BEGIN
    FOR name IN SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'analemma'::regnamespace LOOP
        EXECUTE format('CREATE TRIGGER aaa_tell BEFORE INSERT OR UPDATE OR DELETE ON %I FOR EACH ROW'
            ' EXECUTE FUNCTION tell_lock()', name);
    END LOOP;
END $$;
"""
_LOCKS = re.compile(r"\bFOR\s+(?:NO\s+KEY\s+|KEY\s+)?(?:UPDATE|SHARE)\b", re.IGNORECASE)
_CHANGES = re.compile(r"""\b(?:INSERT\s+INTO|UPDATE\s+[\w".]+\s+(?:AS\s+\w+\s+)?SET|DELETE\s+FROM)\b""", re.IGNORECASE)
_TABLES = re.compile(r'\b(?:FROM|JOIN)\s+(?:"\w+"\.)?(\w+)', re.IGNORECASE)

SHARED = frozenset({"block", "branch", "entity", "head", "idempotency", "lane", "sink_state", "upload", "workflow"})
"""Tables to which two may add the same row."""


class LockRecorder:
    """The tables of each transaction, in the order in which it first locked a row of each."""

    def __init__(self, tables: frozenset[str]) -> None:
        self._tables = tables
        self.transactions: list[list[str]] = []
        self._open: dict[int, list[str]] = {}
        self._inside: set[int] = set()

    def inversions(self) -> dict[tuple[str, str], tuple[list[str], list[str]]]:
        """Pairs of tables that were locked in both orders, with a transaction for each."""
        orders: dict[tuple[str, str], list[str]] = {}
        for tables in self.transactions:
            for place, first in enumerate(tables):
                for second in tables[place + 1 :]:
                    orders.setdefault((first, second), tables)
        pairs = {pair for pair in orders if pair[0] < pair[1] and (pair[1], pair[0]) in orders}
        return {pair: (orders[pair], orders[pair[1], pair[0]]) for pair in pairs}

    def begins(self, connection: int, text: str) -> None:
        if re.match(r"\s*BEGIN\b", text, re.IGNORECASE):
            self._inside.add(connection)
        if _LOCKS.search(text) and not _CHANGES.search(text):
            for table in _TABLES.findall(text):
                if table in self._tables:
                    self.locks(connection, "SELECT", table)

    def locks(self, connection: int, how: str, table: str) -> None:
        if how == "INSERT" and table not in SHARED:
            return
        tables = self._open.setdefault(connection, [])
        if table not in tables:
            tables.append(table)

    def ended(self, connection: int, text: str) -> None:
        if re.match(r"\s*(COMMIT|ROLLBACK)\b(?!\s+TO)", text, re.I):
            self._inside.discard(connection)
        if connection not in self._inside and (tables := self._open.pop(connection, None)):
            self.transactions.append(tables)


@contextmanager
def recorded(url: str) -> Iterator[LockRecorder]:
    """Record what is locked through connections of this process that are made from here on."""
    with connect(url) as admin:
        admin.execute(_TRIGGERS)
        named = admin.execute("SELECT relname FROM pg_class WHERE relkind = 'r'").fetchall()
    recorder = LockRecorder(frozenset(row[0] for row in named))
    make, execute = psycopg.Connection.connect, psycopg.Connection.execute

    def connected(*arguments: Any, **options: Any) -> Any:
        connection = make(*arguments, **options)

        def hear(notice: psycopg.errors.Diagnostic) -> None:
            told = (notice.message_primary or "").split()
            if told[:1] == ["locks"]:
                recorder.locks(id(connection), told[1], told[2])

        connection.add_notice_handler(hear)
        return connection

    def executed(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        text = query.decode() if isinstance(query, bytes) else str(query)
        recorder.begins(id(self), text)
        try:
            return execute(self, query, *arguments, **options)
        finally:
            recorder.ended(id(self), text)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(psycopg.Connection, "connect", connected)
        patched.setattr(psycopg, "connect", connected)
        patched.setattr(psycopg.Connection, "execute", executed)
        yield recorder
