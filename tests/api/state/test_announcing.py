"""Which commits are told to the outbox: none before there is a source of state, and all that it names as soon as one is
loaded here."""

from __future__ import annotations

from typing import Any

from analemma import App
from analemma.testing import failpoints
from tests.raw_rows import select
from tests.stores import Store

RUN: dict[str, Any] = {"workflow_id": "run-1", "owner_id": "ann"}
SCHEMA: dict[str, Any] = {
    "kind": "ENTITY_SCHEMA",
    "id": "entity.run",
    "version": "1.0.0",
    "status": "ACTIVE",
    "entityType": "RUN",
    "fields": [{"name": "n", "type": "long", "required": True}],
}
SOURCE: dict[str, Any] = {
    "kind": "STATE_SOURCE",
    "id": "source.run",
    "version": "1.0.0",
    "status": "ACTIVE",
    "entityType": "RUN",
    "input": {"type": "STATE", "workflows": ["run-*"]},
    "fields": ["n"],
}


def told(store: Store) -> int:
    return int(select(store, "SELECT count(*) FROM outbox WHERE aggregatetype = 'STATE'")[0][0])


def save(app: App, number: int) -> None:
    app.kernel.save_state_delta({"n": number}, **RUN)


def test_a_source_that_is_loaded_here_counts_from_the_next_commit_on(store: Store) -> None:
    with store.open() as app:
        app.contracts.load([SCHEMA])
        for number in range(3):
            save(app, number)
        assert told(store) == 0
        app.contracts.load([SOURCE])
        save(app, 3)
        assert told(store) == 1
        app.contracts.load([{**SOURCE, "version": "2.0.0", "input": {"type": "STATE", "workflows": ["other-*"]}}])
        save(app, 4)
        assert told(store) == 1


def test_who_looked_before_a_source_was_loaded_here_does_not_hide_it(store: Store) -> None:
    with store.open() as app:
        app.contracts.load([SCHEMA])
        with failpoints.paused("source.after_look", lambda: save(app, 0)) as held:
            app.contracts.load([SOURCE])
            held.go_on()
        assert told(store) == 0
        save(app, 1)
        assert told(store) == 1
