"""A worker in a process that is killed: `python -m tests.crash.outbox_worker URL OBJECTS JOB`.

Its handlers have effects in a table of the same database: some settle their event in the transaction of the effect,
others leave that to the worker."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from analemma import App, Event
from analemma.catalog.engine import Transaction
from analemma.outbox.handlers import Handler, Settle
from tests.stores import Store

SETTINGS: dict[str, Any] = {"outbox_lease_s": 1.0, "outbox_batch": 50, "outbox_max_attempts": 20}
POISON_ATTEMPTS = 3
SETTLED, RETURNED, DEADLY = "Settled", "Returned", "Deadly"


def connect(store: Store) -> Any:
    """Past the store, to the table of effects."""
    if store.url.startswith("postgresql"):
        import psycopg

        return psycopg.connect(store.url, autocommit=True)
    import sqlite3

    return sqlite3.connect(Path(store.url) / "catalog.db", isolation_level=None, timeout=30)


def prepare(store: Store) -> None:
    """An empty table of effects. Nothing in it keeps an effect from happening twice."""
    kind = "bigserial" if store.url.startswith("postgresql") else "integer"
    with closing(connect(store)) as connection:
        connection.execute(f"CREATE TABLE test_effect (place {kind} PRIMARY KEY, lane text, event text)")


def effects(store: Store) -> list[tuple[str, str]]:
    """Lane and event of each effect, in the order in which they happened."""
    with closing(connect(store)) as connection:
        found = connection.execute("SELECT lane, event FROM test_effect ORDER BY place").fetchall()
    return [tuple(row) for row in found]


def handlers(app: App) -> dict[str, Handler]:
    def happen(tx: Transaction, event: Event) -> None:
        assert event.id.replace("-", "").isalnum() and event.aggregate_id.replace("-", "").isalnum()
        tx.script(f"INSERT INTO test_effect (lane, event) VALUES ('{event.aggregate_id}', '{event.id}')")  # noqa: S608

    def settled(event: Event, settle: Settle) -> None:
        def move(tx: Transaction) -> None:
            happen(tx, event)
            settle(tx)

        app.catalog.engine.write(move)

    def returned(event: Event, settle: Settle) -> None:
        app.catalog.engine.write(lambda tx: happen(tx, event))

    def deadly(event: Event, settle: Settle) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    return {SETTLED: settled, RETURNED: returned, DEADLY: deadly}


def main() -> None:
    url, objects, job = sys.argv[1:]
    settings = SETTINGS | ({"outbox_max_attempts": POISON_ATTEMPTS} if job == "poison" else {})
    with Store(url, objects or None).open(**settings) as app:
        if job == "housekeep":
            app.outbox.housekeep(processed_after_s=0, dead_after_s=0)
            return
        worker = app.worker(2, handlers=handlers(app))
        signal.signal(signal.SIGTERM, lambda number, frame: worker.stop())
        print("ready", flush=True)
        counts = worker.run() if job == "run" else worker.drain()
        print(f"delivered {counts.delivered} lost {counts.lost}", flush=True)


if __name__ == "__main__":
    main()
