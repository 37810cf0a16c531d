"""A worker in a process that is killed: `python -m tests.crash.outbox_worker URL OBJECTS LOG JOB`.

Its handlers have effects: some in the same database, other events, which settle theirs in the same transaction; others
outside, lines of a file, and leave settling to the worker."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from analemma import App, Event, Settle
from analemma.testing.events import OutboxEvent, produce_and_settle
from tests.raw_rows import select
from tests.stores import Store

SETTINGS: dict[str, Any] = {"outbox_lease_s": 1.0, "outbox_batch": 50, "outbox_max_attempts": 20}
POISON_ATTEMPTS = 3
SETTLED, RETURNED, DEADLY, HAPPENED = "Settled", "Returned", "Deadly", "Happened"
EFFECTS = "EFFECTS"
"""What effects in the database are events of. Nothing keeps one from happening twice."""


def effects(store: Store, log: Path) -> list[tuple[str, str]]:
    """Lane and event of each effect, those of a lane in the order in which they happened."""
    sql = "SELECT aggregateid, id FROM outbox WHERE aggregatetype = ? ORDER BY aggregateid, seq"
    found = [(lane, event.partition(":")[0]) for lane, event in select(store, sql, [EFFECTS])]
    lines = log.read_text().splitlines() if log.exists() else []
    return found + [(lane, event) for lane, _, event in (line.partition(" ") for line in lines)]


def handlers(app: App, log: Path) -> dict[str, Any]:
    def settled(event: Event, settle: Settle) -> None:
        effect = OutboxEvent(f"{event.id}:{uuid4()}", EFFECTS, event.aggregate_id, HAPPENED, b"{}")
        produce_and_settle(app, [effect], settle)

    def returned(event: Event, settle: Settle) -> None:
        file = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        try:
            # One write: whoever is killed has written the whole line, or none of it.
            os.write(file, f"{event.aggregate_id} {event.id}\n".encode())
        finally:
            os.close(file)

    def deadly(event: Event, settle: Settle) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    return {SETTLED: settled, RETURNED: returned, DEADLY: deadly, HAPPENED: lambda event, settle: None}


def main() -> None:
    url, objects, log, job = sys.argv[1:]
    settings = SETTINGS | ({"outbox_max_attempts": POISON_ATTEMPTS} if job == "poison" else {})
    with Store(url, objects or None).open(**settings) as app:
        if job == "housekeep":
            app.outbox.housekeep(processed_after_s=0, dead_after_s=0)
            return
        worker = app.worker(2, handlers=handlers(app, Path(log)))
        signal.signal(signal.SIGTERM, lambda number, frame: worker.stop())
        print("ready", flush=True)
        counts = worker.run() if job == "run" else worker.drain()
        print(f"delivered {counts.delivered} lost {counts.lost}", flush=True)


if __name__ == "__main__":
    main()
