"""Runs of tests: where they are, workers that die or do one thing only, and what is stored of them."""

from __future__ import annotations

from itertools import count
from typing import Any

from analemma import App
from analemma.testing import failpoints
from tests.raw_rows import change, select
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "t-1", "owner_id": "me"}
HOUR = 3_600_000_000

_NUMBERS = count(1)


def place() -> dict[str, Any]:
    """One that nobody else has."""
    return {"workflow_id": f"w-{next(_NUMBERS)}", "owner_id": "me"}


class Died(Exception):
    """Stands for the end of a worker: nothing that it would do afterwards is done."""


def die() -> None:
    raise Died


def take(app: App, store: Store) -> str | None:
    """The workflow of the run that a worker takes next, and dies with; None if there is none for it."""
    before = dict(select(store, "SELECT execution, fence FROM run"))
    with failpoints.call("run.after_claim", die):
        app.run_worker(1).drain()
    rows = select(store, "SELECT execution, fence, workflow FROM run")
    taken = [workflow for execution, fence, workflow in rows if before[execution] != fence]
    assert len(taken) <= 1
    return taken[0] if taken else None


def end_leases(store: Store) -> None:
    """As if the time of whoever holds a run were over."""
    change(store, "UPDATE run SET due_at = 1 WHERE holder IS NOT NULL")


def work_once(app: App) -> None:
    """Let a worker execute one segment of the run that is next."""
    worker = app.run_worker(1)
    with failpoints.call("run.before_segment", worker.stop):
        worker.drain()


def effects(store: Store) -> list[tuple[str, str, int]]:
    """What is recorded of effects: their keys, how they stand, and how often they were begun."""
    return [(key, state, attempts) for key, state, attempts in select(store, EFFECTS)]


EFFECTS = "SELECT key, state, attempts FROM effect ORDER BY key"
