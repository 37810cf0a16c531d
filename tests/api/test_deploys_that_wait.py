"""Deploys that wait or fail: what readers, `explain` and the lists of sinks say of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from analemma.errors import NotFound, Timeout
from tests.cli.command_line import user_of
from tests.sink_servers import Answer, LocalServer
from tests.stores import Store

ACTIVE = {"version": "1.0.0", "status": "ACTIVE"}
AUTHOR: list[dict[str, Any]] = [
    {
        "kind": "ENTITY_SCHEMA",
        "id": "entity.author",
        "entityType": "AUTHOR",
        "fields": [{"name": "name", "type": "string"}],
        **ACTIVE,
    },
    {
        "kind": "RULESET",
        "id": "ruleset.author",
        "entityType": "AUTHOR",
        "slices": [{"type": "SUMMARY", "buildRules": {"type": "PassThrough", "fields": ["name"]}}],
        **ACTIVE,
    },
]
NOTE: list[dict[str, Any]] = [
    {
        "kind": "ENTITY_SCHEMA",
        "id": "entity.note",
        "entityType": "NOTE",
        "fields": [{"name": "text", "type": "string"}, {"name": "authorId", "type": "string"}],
        **ACTIVE,
    },
    {
        "kind": "RULESET",
        "id": "ruleset.note",
        "entityType": "NOTE",
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
                        "required": True,
                    }
                ],
            }
        ],
        "indexes": [{"type": "author", "selector": "authorId", "references": "AUTHOR"}],
        **ACTIVE,
    },
    {"kind": "VIEW_DEFINITION", "id": "view.note", "entityType": "NOTE", "requiredSlices": ["TEXT"], **ACTIVE},
]


def sink(url: str) -> dict[str, Any]:
    return {
        "kind": "SINKRULE",
        "id": "sink.note",
        "input": {"type": "SLICE", "entityTypes": ["NOTE"]},
        "target": {"type": "WEBHOOK", "url": url, "secret": "a secret of the test"},
        **ACTIVE,
    }


class Receiver(LocalServer):
    """Answers every document with one status."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status

    def respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        raise Answer(self.status)


@contextmanager
def receiving(status: int) -> Iterator[Receiver]:
    receiver = Receiver(status)
    try:
        yield receiver
    finally:
        receiver.stop()


@contextmanager
def shop_of(store: Store, receiver: Receiver | None = None, **settings: Any) -> Iterator[tuple[Any, Any]]:
    # The next try comes at a time up to an hour from now: not while a test looks.
    with store.open(outbox_backoff_base_s=3600, outbox_backoff_max_s=3600, **settings) as app:
        app.contracts.load([*AUTHOR, *NOTE, *([] if receiver is None else [sink(receiver.url)])])
        shop = app.tenant("shop")
        shop.ingest("AUTHOR", "lem", {"name": "Lem"})
        app.worker(1).drain()
        yield app, shop


def note(text: str, author: str = "lem") -> dict[str, Any]:
    return {"text": text, "authorId": author}


def command(store: Store, *arguments: str) -> tuple[int, str]:
    done = user_of(store).run(*arguments)
    return done.returncode, done.stdout


def unserved(shop: Any, entity_id: str = "1") -> list[NotFound]:
    """What readers hear of a note that is not served."""
    told = []
    asks: list[Callable[[], Any]] = [
        lambda: shop.view("view.note").get(entity_id),
        lambda: shop.slices("NOTE", entity_id),
    ]
    for ask in asks:
        with pytest.raises(NotFound) as caught:
            ask()
        told.append(caught.value)
    (listed,) = shop.view("view.note").many([entity_id]).unanswered
    # How long it is until the next try is told to a tenth of a second, and some time has passed.
    assert re.sub(r"in [\d.]+ s", "later", listed.reason) == re.sub(r"in [\d.]+ s", "later", told[0].message)
    return told


def test_readers_hear_which_deploy_holds_an_entity_back_and_what_it_waits_for(store: Store) -> None:
    with receiving(500) as receiver, shop_of(store, receiver) as (app, shop):
        deploy = shop.deploy("NOTE", "1", note("first"), cutover="done")
        for told in unserved(shop):
            assert f"deploy {deploy.id}" in told.message and "SINKING" in told.message and "sink.note" in told.message
            assert "not compiled" not in told.message and told.hint is not None and "compile it" not in told.hint
            assert (told.facts["deploy"], told.facts["state"]) == (deploy.id, "SINKING")
        app.worker(1).drain()
        assert "500" in unserved(shop)[0].message
        receiver.status = 200
        app.sinks.wake("sink.note")
        app.worker(1).drain()
        assert shop.view("view.note").get("1").data["TEXT"]["text"] == "first"


def test_readers_hear_of_a_deploy_that_nobody_has_begun(store: Store) -> None:
    with shop_of(store) as (_, shop):
        deploy = shop.deploy("NOTE", "1", note("first"), compile="async")
        for told in unserved(shop):
            assert deploy.id in told.message and "QUEUED" in told.message and "a worker" in told.message


def test_readers_hear_why_the_deploy_failed_that_holds_an_entity_back(store: Store) -> None:
    with receiving(422) as receiver, shop_of(store, receiver) as (app, shop):
        deploy = shop.deploy("NOTE", "1", note("first"), cutover="done")
        app.worker(1).drain()
        for told in unserved(shop):
            assert deploy.id in told.message and "FAILED" in told.message and "422" in told.message
            assert told.hint is not None and "retry" in told.hint


def test_what_was_ingested_and_no_deploy_holds_back_is_told_as_before(store: Store) -> None:
    with shop_of(store) as (_, shop):
        shop.ingest("NOTE", "1", note("first"))
        told = unserved(shop)
        assert "not compiled" in told[0].message and "deploy" not in told[0].message


@pytest.mark.parametrize("cutover", ["ready", "done"])
@pytest.mark.parametrize("compiling", ["sync", "async"])
def test_a_deploy_whose_required_join_is_missing_fails_and_changes_nothing(
    store: Store, compiling: str, cutover: str
) -> None:
    with receiving(200) as receiver, shop_of(store, receiver) as (app, shop):
        shop.deploy("NOTE", "1", note("first"))
        app.worker(1).drain()
        shipped = len(receiver.requests)
        failed = shop.deploy("NOTE", "1", note("second", "nobody"), compile=compiling, cutover=cutover)
        app.worker(1).drain()
        failed = app.deploys.get(failed.id)
        assert (failed.state.value, failed.served) == ("FAILED", False)
        assert failed.error.kind == "not_found" and failed.error.slices == ("TEXT",)
        assert "author" in failed.error.message and "nobody" in failed.error.message
        assert "retry" in failed.error.hint
        with pytest.raises(NotFound, match="nobody"):
            failed.check()
        assert shop.view("view.note").get("1").data["TEXT"]["text"] == "first"
        assert len(receiver.requests) == shipped and app.outbox.status().dead == 0
        assert any("nobody" in (step.reason or "") for step in app.deploys.explain(failed.id).steps)
        shop.ingest("AUTHOR", "nobody", {"name": "Nobody"})
        app.worker(1).drain()
        app.deploys.retry(failed.id)
        app.worker(1).drain()
        assert app.deploys.get(failed.id).state.value == "DONE"
        assert shop.view("view.note").get("1").data["TEXT"] == {"text": "second", "author": {"name": "Nobody"}}


def test_a_deploy_of_what_was_ingested_without_its_required_join_fails_too(store: Store) -> None:
    with shop_of(store) as (app, shop):
        shop.ingest("NOTE", "1", note("first", "nobody"))
        app.worker(1).drain()
        failed = shop.deploy("NOTE", "1", note("first", "nobody"))
        assert (failed.created, failed.state.value) == (False, "FAILED") and "nobody" in failed.error.message


def test_explain_says_why_a_sink_has_not_answered(store: Store) -> None:
    with receiving(500) as receiver, shop_of(store, receiver) as (app, shop):
        deploy = shop.deploy("NOTE", "1", note("first"))
        (asked,) = app.deploys.explain(deploy.id).sinks
        assert asked.waiting is not None
        assert (asked.waiting.attempts, asked.waiting.failure, asked.waiting.next_attempt_us) == (0, None, None)
        app.worker(1).drain()
        told = app.deploys.explain(deploy.id)
        (asked,) = told.sinks
        assert asked.waiting is not None and asked.waiting.attempts == 1
        assert "500" in asked.waiting.failure and asked.waiting.next_attempt_us is not None
        assert "sink.note" in told.waits_for and "500" in told.waits_for and "1 time" in told.waits_for
        with pytest.raises(Timeout) as late:
            app.deploys.await_(deploy.id, timeout_s=0)
        assert late.value.hint is not None and "500" in late.value.hint
        code, out = command(store, "deploys", "explain", deploy.id, "--tenant", "shop")
        assert code == 0 and "500" in out
        code, out = command(store, "deploys", "explain", deploy.id, "--tenant", "shop", "--json")
        assert json.loads(out)["explanation"]["sinks"][0]["waiting"]["attempts"] == 1


def test_explain_says_that_a_sink_rests_and_why(store: Store) -> None:
    with receiving(500) as receiver, shop_of(store, receiver) as (app, shop):
        receiver.is_down = True
        deploys = [shop.deploy("NOTE", str(number), note("first")) for number in range(2)]
        app.worker(1).drain()
        told = app.deploys.explain(deploys[0].id)
        waiting = told.sinks[0].waiting
        assert waiting is not None and waiting.resting_until_us is not None and waiting.resting_reason
        assert "left alone" in told.waits_for


def test_explain_names_the_dead_letter_that_a_sink_left(store: Store) -> None:
    with receiving(500) as receiver, shop_of(store, receiver, ship_max_attempts=1) as (app, shop):
        deploy = shop.deploy("NOTE", "1", note("first"))
        app.worker(1).drain()
        (letter,) = app.outbox.dead_letters().entries
        told = app.deploys.explain(deploy.id)
        assert told.deploy.state.value == "FAILED" and told.sinks[0].waiting is not None
        assert told.sinks[0].waiting.dead_letter == letter.id
        assert "500" in told.sinks[0].waiting.failure


def test_one_failure_of_a_sink_is_told_everywhere_with_its_reason_and_the_next_try(store: Store) -> None:
    with receiving(500) as receiver, shop_of(store, receiver) as (app, shop):
        shop.ingest("NOTE", "1", note("first"))
        assert [each.state for each in app.sinks.list()] == ["ok"]
        app.worker(1).drain()
        for found in (app.sinks.list(), app.sinks.list(tenant="shop")):
            (status,) = found
            assert (status.state, status.failed) == ("failing", 1)
            assert "500" in status.reason and status.next_attempt_s is not None
        (health,) = app.sinks.health()
        assert health.state == "failing" and "500" in health.reason
        events = app.outbox.status()
        assert events.health == "warning" and events.failing == ("sink.note",)
        assert any("sink.note" in each and "500" in each for each in events.problems)
        for arguments in (["sinks", "list"], ["sinks", "health"], ["outbox", "status"]):
            code, out = command(store, *arguments, "--tenant", "shop")
            assert code == 1 and "sink.note" in out and "500" in out
        receiver.status = 200
        assert app.sinks.wake("sink.note")
        app.worker(1).drain()
        assert not app.sinks.wake("sink.note")
        assert [each.state for each in app.sinks.list()] == ["ok"] and app.outbox.status().health == "ok"


def test_a_tenant_is_not_told_what_a_sink_said_of_another(store: Store) -> None:
    with receiving(500) as receiver, shop_of(store, receiver) as (app, shop):
        app.tenant("other").ingest("AUTHOR", "eco", {"name": "Eco"})
        shop.ingest("NOTE", "1", note("first"))
        app.worker(1).drain()
        (own,) = app.sinks.list(tenant="other")
        assert (own.state, own.failed, own.reason) == ("ok", 0, None)
        assert app.outbox.status("other").failing == ()
