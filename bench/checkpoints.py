"""Checkpoints that do not wait, beside saves that do: 32 producers hand in deltas, and the clock stops when every one
is a version, as durable as a save.

Saves of many threads share transactions too, so the same producers saving is the harder comparison of the two."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import analemma
from analemma.state.checkpoints import Ticket
from analemma.store.store import App
from bench.commits import Round, compare
from bench.harness import Row, temporary_folder
from bench.workload import prose
from tests.servers import PostgresServer, postgres_missing

PRODUCERS = 32
FIELDS = 50
FIELD_BYTES = 400
NOTE_BYTES = 200
OWNER = "ann"
GOAL = 1.6


def run(quick: bool) -> Iterator[Row]:
    """Small deltas on states of 20 KB, durable, on both databases."""
    saves, rounds = (320, 5) if quick else (1600, 9)
    with temporary_folder() as folder, analemma.open(folder / "store") as app:
        yield from _compare("SQLite", app, saves, rounds)
    reason = postgres_missing()
    if reason is not None:
        yield Row.skip("checkpoint without waiting, PostgreSQL", reason)
        return
    server = PostgresServer(durable=True)
    try:
        with analemma.open(server.create_database(), migrate=True) as app:
            yield from _compare("PostgreSQL", app, saves, rounds)
    finally:
        server.stop()


def _compare(database: str, app: App, saves: int, rounds: int) -> Iterator[Row]:
    workflows = [f"producer-{number:02}" for number in range(PRODUCERS)]
    fields = {f"field-{number:02}": prose(number, FIELD_BYTES) for number in range(FIELDS)}
    for workflow in ["writer", *workflows]:
        app.kernel.save_state_delta(fields | {"count": 0, "note": ""}, workflow_id=workflow, owner_id=OWNER)
    name = f"checkpoint without waiting, {database}, durable, {PRODUCERS} producers"
    checkpoints = _round(app, workflows, _checkpoint)
    for against, other in (
        ("the same producers, saving", _round(app, workflows, _save)),
        ("one writer, saving", _round(app, ["writer"], _save)),
    ):
        yield compare(name, checkpoints, other, against=against, commits=saves, rounds=rounds, goal=GOAL)


def _checkpoint(app: App, workflow: str, delta: dict[str, Any]) -> Ticket:
    return app.kernel.checkpoint_async(delta, workflow_id=workflow, owner_id=OWNER)


def _save(app: App, workflow: str, delta: dict[str, Any]) -> None:
    app.kernel.save_state_delta(delta, workflow_id=workflow, owner_id=OWNER)


def _round(app: App, workflows: list[str], write: Callable[[App, str, dict[str, Any]], Ticket | None]) -> Round:
    """One thread per workflow; everything that was handed in is a version before the time is taken."""

    def run(count: int) -> float:
        start = threading.Barrier(len(workflows) + 1)
        work = [_deltas(count // len(workflows)) for _ in workflows]
        last: list[Ticket | None] = []

        def produce(workflow: str, deltas: list[dict[str, Any]]) -> None:
            start.wait()
            tickets = [write(app, workflow, delta) for delta in deltas]
            last.append(tickets[-1])

        threads = [threading.Thread(target=produce, args=pair) for pair in zip(workflows, work, strict=True)]
        before = app.stats().manifests
        for thread in threads:
            thread.start()
        start.wait()
        started = time.perf_counter()
        for thread in threads:
            thread.join()
        app.checkpoints.drain()
        took = time.perf_counter() - started
        assert app.checkpoints.pending == 0 and app.stats().manifests - before == sum(map(len, work))
        assert all(app.kernel.ticket(ticket).status == "committed" for ticket in last if ticket is not None)
        return took

    return run


def _deltas(count: int) -> list[dict[str, Any]]:
    now = time.perf_counter_ns()
    return [{"count": now + number, "note": prose(now + number, NOTE_BYTES)} for number in range(count)]
