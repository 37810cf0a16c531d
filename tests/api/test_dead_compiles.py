"""A version that cannot be compiled: it is told, and a corrected document takes its place."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from analemma.testing import failpoints
from tests.cli.command_line import user_of
from tests.raw_rows import connect
from tests.sink_servers import Answer, LocalServer
from tests.stores import Store

SECRET = "a secret of the test"
CONTRACTS: list[dict[str, Any]] = [
    {
        "kind": "ENTITY_SCHEMA",
        "id": "entity.note",
        "version": "1.0.0",
        "status": "ACTIVE",
        "entityType": "NOTE",
        "fields": [{"name": "text", "type": "string", "required": True}],
    },
    {
        "kind": "RULESET",
        "id": "ruleset.note",
        "version": "1.0.0",
        "status": "ACTIVE",
        "entityType": "NOTE",
        "slices": [{"type": "TEXT", "buildRules": {"type": "PassThrough", "fields": ["text"]}}],
    },
    {
        "kind": "VIEW_DEFINITION",
        "id": "view.note",
        "version": "1.0.0",
        "status": "ACTIVE",
        "entityType": "NOTE",
        "requiredSlices": ["TEXT"],
    },
]


def sink(url: str) -> dict[str, Any]:
    return {
        "kind": "SINKRULE",
        "id": "sink.note",
        "version": "1.0.0",
        "status": "ACTIVE",
        "input": {"type": "SLICE", "entityTypes": ["NOTE"]},
        "target": {"type": "WEBHOOK", "url": url, "secret": SECRET},
    }


class Refusing(LocalServer):
    """A receiver that takes nothing."""

    def respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        raise Answer(422)


CONTRACTS_WITH_A_JOIN: list[dict[str, Any]] = [
    {
        "kind": "ENTITY_SCHEMA",
        "id": "entity.author",
        "version": "1.0.0",
        "status": "ACTIVE",
        "entityType": "AUTHOR",
        "fields": [{"name": "name", "type": "string"}],
    },
    {
        "kind": "RULESET",
        "id": "ruleset.author",
        "version": "1.0.0",
        "status": "ACTIVE",
        "entityType": "AUTHOR",
        "slices": [{"type": "SUMMARY", "buildRules": {"type": "PassThrough", "fields": ["name"]}}],
    },
    {**CONTRACTS[0], "fields": [{"name": "text", "type": "string"}, {"name": "authorId", "type": "string"}]},
    {
        **CONTRACTS[1],
        "slices": [
            {
                "type": "TEXT",
                "buildRules": {"type": "PassThrough", "fields": ["text", "author"]},
                "joins": [
                    {
                        "name": "author",
                        "type": "LOOKUP",
                        "sourceFieldPath": "authorId",
                        "targetEntityType": "AUTHOR",
                        "targetSliceType": "SUMMARY",
                    }
                ],
            }
        ],
        "indexes": [{"type": "author", "selector": "authorId", "references": "AUTHOR"}],
    },
]


@contextmanager
def closing_server(server: LocalServer) -> Iterator[LocalServer]:
    try:
        yield server
    finally:
        server.stop()


def change(store: Store, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Run a statement on the store's own database; `?` stands for values."""
    if store.url.startswith("postgresql:"):
        with connect(store.url, autocommit=True) as connection:
            found = connection.execute(statement.replace("?", "%s"), values)
            return found.fetchall() if found.description else []
    with closing(sqlite3.connect(Path(store.url) / "catalog.db", isolation_level=None)) as connection:
        return connection.execute(statement, values).fetchall()


def damage(store: Store, version: int) -> None:
    """Have a version's document not be what it was: so many versions were there before it."""
    rows = change(store, "SELECT version FROM raw ORDER BY version")
    change(store, "UPDATE raw SET hash = ? WHERE version = ?", b"x" * 32, rows[version][0])


def drained(store: Store) -> tuple[int, int]:
    """What a worker of its own delivers and gives up."""
    with store.open() as app:
        counts = app.worker(2).drain()
    return counts.delivered, counts.dead


def begun(store: Store, *texts: str, broken: int) -> None:
    """A store with versions of one note, one of which cannot be compiled."""
    with store.open() as app:
        app.contracts.load(CONTRACTS)
        for text in texts:
            app.tenant("shop").ingest("NOTE", "1", {"text": text})
    damage(store, broken)


def shown(store: Store) -> Any:
    with store.open() as app:
        return app.tenant("shop").view("view.note").get("1").data["TEXT"]["text"]


def command(store: Store, *arguments: str) -> tuple[int, str, str]:
    done = user_of(store).run(*arguments)
    return done.returncode, done.stdout, done.stderr


def test_a_newer_version_frees_the_lane_of_one_that_cannot_be_compiled(store: Store) -> None:
    begun(store, "first", "broken", broken=1)
    assert drained(store) == (1, 1) and shown(store) == "first"
    with store.open() as app:
        app.tenant("shop").ingest("NOTE", "1", {"text": "corrected"})
    drained(store)
    assert shown(store) == "corrected"
    with store.open() as app:
        status = app.outbox.status()
        assert (status.health, status.dead, status.parked, status.lanes, status.discarded) == ("ok", 0, 0, 0, 1)


def test_what_was_given_up_for_a_newer_version_says_so(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    begun(store, "broken", broken=0)
    drained(store)
    with store.open() as app:
        (letter,) = app.outbox.dead_letters().entries
        newer = app.tenant("shop").ingest("NOTE", "1", {"text": "corrected"}).version
        caplog.clear()
        app.worker(1).drain()
        left = app.outbox.get(letter.id)
        assert left.discarded and left.failure_reason is not None
        assert "corrupt" in left.failure_reason and newer in left.failure_reason
    (told,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert newer in told.getMessage() and "NOTE#shop#1" in told.getMessage()


def test_a_version_that_cannot_be_compiled_does_not_hold_up_one_that_waits_already(store: Store) -> None:
    begun(store, "broken", "good", broken=0)
    assert drained(store) == (2, 0)
    assert shown(store) == "good"


def test_a_newer_version_that_comes_while_one_is_given_up_is_not_parked_with_it(store: Store) -> None:
    begun(store, "broken", broken=0)
    with store.open() as app, store.open() as other:
        shop = other.tenant("shop")
        with failpoints.call("outbox.before_acknowledge", lambda: shop.ingest("NOTE", "1", {"text": "late"})):
            app.worker(1).drain()
        assert app.outbox.status().dead == 0
    assert shown(store) == "late"


def test_an_older_version_that_cannot_be_compiled_is_not_given_up_for_what_is_compiled(store: Store) -> None:
    with store.open() as app:
        app.contracts.load(CONTRACTS)
        shop = app.tenant("shop")
        shop.ingest("NOTE", "1", {"text": "newest"})
        app.worker(1).drain()
        shop.ingest("NOTE", "1", {"text": "older"}, version="0HZX000000000")
    damage(store, 0)
    assert drained(store) == (0, 1)
    with store.open() as app:
        assert app.outbox.status().dead == 1
        app.tenant("shop").ingest("NOTE", "1", {"text": "newer still"})
    drained(store)
    assert shown(store) == "newer still"


def test_an_older_version_does_not_make_the_newest_one_go_away(store: Store) -> None:
    begun(store, "broken", broken=0)
    drained(store)
    with store.open() as app:
        app.tenant("shop").ingest("NOTE", "1", {"text": "older"}, version="0HZX000000000")
    assert drained(store) == (0, 1)
    with store.open() as app:
        assert app.outbox.status().dead == 1


def test_a_deploy_behind_a_dead_compile_goes_on(store: Store) -> None:
    begun(store, "broken", broken=0)
    drained(store)
    with store.open() as app:
        deploy = app.tenant("shop").deploy("NOTE", "1", {"text": "deployed"}, compile="async")
        app.worker(1).drain()
        assert app.tenant("shop").deploys.get(deploy.id).state.value == "DONE"
    assert shown(store) == "deployed"


def test_a_dead_letter_is_logged_as_an_error(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    begun(store, "broken", broken=0)
    drained(store)
    (told,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert told.name == "analemma.outbox"
    assert "RawDataIngested" in told.getMessage() and "NOTE#shop#1" in told.getMessage()
    assert "corrupt" in told.getMessage()


def test_what_a_sink_refused_is_logged_as_an_error_and_the_sink_is_not_ok(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with closing_server(Refusing()) as receiver, store.open() as app:
        app.contracts.load([*CONTRACTS, sink(receiver.url)])
        app.tenant("shop").ingest("NOTE", "1", {"text": "first"})
        assert [each.state for each in app.sinks.list()] == ["ok"]
        app.worker(1).drain()
        (status,) = app.sinks.list()
        assert (status.dead, status.state) == (1, "dead")
        assert app.outbox.status().health == "warning"
        (told,) = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert "ShipRequested" in told.getMessage() and "sink.note" in told.getMessage()
        code, out, _ = command(store, "sinks", "list", "--tenant", "shop")
        assert code == 1 and "  dead  " in out
        assert command(store, "worker", "--drain")[0] == 1


def test_a_change_frees_a_fanout_that_is_parked(store: Store) -> None:
    """What joins an entity follows its newest state, whatever became of an event before."""
    with store.open() as app:
        app.contracts.load(CONTRACTS_WITH_A_JOIN)
        shop = app.tenant("shop")
        shop.ingest("AUTHOR", "a", {"name": "Lem"})
        shop.ingest("NOTE", "1", {"text": "first", "authorId": "a"})
        app.worker(2).drain()
        shop.ingest("AUTHOR", "a", {"name": "S. Lem"})
        shop.compile("AUTHOR", "a")
        change(store, "UPDATE outbox SET status = 'DEAD' WHERE aggregatetype = 'CHANGESET' AND processed_at IS NULL")
        change(store, "UPDATE lane SET parked = true WHERE aggregatetype = 'CHANGESET' AND due_at IS NOT NULL")
        app.worker(2).drain()
        assert app.outbox.status().dead == 1
        shop.ingest("AUTHOR", "a", {"name": "Stanislaw Lem"})
        app.worker(2).drain()
        data = shop.slices("NOTE", "1")["TEXT"].data
        assert data is not None and data["author"]["name"] == "Stanislaw Lem"
        assert app.outbox.status().health == "ok"


def test_a_status_with_one_dead_letter_is_not_ok(store: Store) -> None:
    begun(store, "broken", broken=0)
    drained(store)
    with store.open() as app:
        status = app.outbox.status()
        assert status.health == "warning" and any("1 event is dead" in each for each in status.problems)


def test_commands_fail_while_something_is_dead(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a process of its own, where nobody else takes what is logged.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    begun(store, "broken", broken=0)
    code, out, errors = command(store, "worker", "--drain")
    assert code == 1 and "1 dead" in out and "corrupt" in errors
    code, out, _ = command(store, "outbox", "status")
    assert code == 1 and "1 event is dead" in out
    # Nothing is left to deliver: it is still not well.
    code, out, _ = command(store, "worker", "--drain")
    assert code == 1 and "1 event is dead" in out and "analemma outbox dead" in out
    code, out, _ = command(store, "worker", "--drain", "--json")
    assert code == 1 and json.loads(out)["parked"] == 1
    with store.open() as app:
        app.tenant("shop").ingest("NOTE", "1", {"text": "corrected"})
    code, out, _ = command(store, "worker", "--drain")
    assert code == 0 and "dead" not in out
    assert command(store, "outbox", "status")[0] == 0
    assert shown(store) == "corrected"


def test_a_worker_of_one_tenant_is_not_blamed_for_another(store: Store) -> None:
    begun(store, "broken", broken=0)
    with store.open() as app:
        app.tenant("other").ingest("NOTE", "1", {"text": "good"})
    assert command(store, "worker", "--drain", "--tenant", "other")[0] == 0
    assert command(store, "worker", "--drain", "--tenant", "shop")[0] == 1
