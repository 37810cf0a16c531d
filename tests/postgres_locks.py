"""Locks of a PostgreSQL server as tests look at them: who waits, and how often two waited for each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from analemma.testing import failpoints
from tests.raw_rows import connect

LONGEST_S = 60

_WAITING = """
SELECT count(*) >= %s FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
_ALONE = """
SELECT %s > 0 AND NOT EXISTS (
    SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'analemma'
)
"""


def wait_for_waiting(url: str, *others: threading.Thread) -> None:
    """Come back when each of them has ended or waits for a lock in this database."""
    _poll(url, _WAITING, lambda: sum(each.is_alive() for each in others))


def deadlocks(url: str) -> int:
    """How many this database has seen. A session reports when it ends: close the stores first."""
    _poll(url, _ALONE, lambda: 1)
    with connect(url) as connection:
        row = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
        assert row is not None
        return int(row[0])


@contextmanager
def beside(function: Callable[[], object]) -> Iterator[threading.Thread]:
    """Run it in a thread while this lasts; what it raises is raised at the end."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as exc:
            failures.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield thread
    thread.join(LONGEST_S)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


@contextmanager
def held_at_the_last_step(url: str, procedure: str) -> Iterator[Callable[[], object]]:
    """While this lasts, whoever runs a procedure waits before its last statement, until what this gives is called."""
    failpoints.wait_at_steps(url)
    numbers = [step.removeprefix(f"{procedure}.") for step in failpoints.steps() if step.startswith(f"{procedure}.")]
    last = max(int(number) for number in numbers if number.isdigit())
    with connect(url, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [f"{procedure}.{last}"])
        yield lambda: holder.execute("SELECT pg_advisory_unlock_all()")


@contextmanager
def held_behind_a_row_of(url: str, table: str) -> Iterator[Callable[[], object]]:
    """While this lasts, whoever adds a row to a table waits behind it, with the row uncommitted, until what this gives
    is called."""
    wait = "BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END"
    with connect(url, autocommit=True) as holder:
        holder.execute(f"CREATE FUNCTION wait_behind() RETURNS trigger LANGUAGE plpgsql AS $$ {wait} $$")
        holder.execute(f"CREATE TRIGGER wait AFTER INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION wait_behind()")
        holder.execute("SELECT pg_advisory_lock(1)")
        yield lambda: holder.execute("SELECT pg_advisory_unlock_all()")


def _poll(url: str, question: str, count: Callable[[], int]) -> None:
    end = time.monotonic() + LONGEST_S
    with connect(url, autocommit=True) as connection:
        while connection.execute(question, (count(),)).fetchone() != (True,):
            assert time.monotonic() < end, question
            time.sleep(0.005)
