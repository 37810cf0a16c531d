"""What is no deploy: arguments that make no sense, and events that others wrote."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from analemma import App
from analemma.errors import Conflict, Invalid, NotFound
from analemma.testing.events import OutboxEvent, produce
from tests.api.pipeline.deploy_shop import title
from tests.api.pipeline.ship_shop import drain, jsonl, open_ship_shop
from tests.api.pipeline.shop import book
from tests.api.pipeline.tables import query, row_counts, rows_added
from tests.stores import Store

NUMBERS = itertools.count()


def test_what_cannot_be_a_deploy_is_refused_and_nothing_is_stored(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        before = row_counts(store)
        refused: list[tuple[type[Exception], dict[str, Any]]] = [
            (Invalid, {"compile": "later"}),
            (Invalid, {"cutover": "now"}),
            (Invalid, {"ship": "sink.file"}),
            (Invalid, {"ship": [7]}),
            (Invalid, {"ship": 7}),
            (NotFound, {"ship": iter(["sink.nope"])}),
            (NotFound, {"ship": ["sink.nope"]}),
            (Invalid, {"idempotency_key": ""}),
            (Invalid, {"idempotency_key": "x" * 600}),
            (Invalid, {"idempotency_key": "a\0b"}),
            (Invalid, {"version": "nope"}),
            (NotFound, {"schema": "entity.nope"}),
        ]
        for error, more in refused:
            with pytest.raises(error):
                shop.deploy("BOOK", "1", book("1"), **more)
        unlike: Any = b"x"
        with pytest.raises(Invalid, match="not a version"):
            shop.deploy("BOOK", "1", book("1"), version=unlike, idempotency_key="key")
        with pytest.raises(Invalid):
            shop.deploy("BOOK", "1", {"isbn": 7})
        with pytest.raises(Invalid):
            shop.deploy("BOOK", "", book("1"))
        with pytest.raises(NotFound):
            shop.deploy("NOPE", "1", {})
        assert rows_added(store, before) == {} and query(store, "SELECT count(*) FROM deploy") == [(0,)]
        assert app.deploys.list().deploys == []
        verbs: list[dict[str, Any]] = [{"until": "later"}, {"timeout_s": -1}, {"timeout_s": float("nan")}]
        deploy = shop.deploy("BOOK", "1", book("1"))
        for more in verbs:
            with pytest.raises(Invalid):
                shop.deploys.await_(deploy.id, **more)
        lists: list[dict[str, Any]] = [
            {"state": "NOPE"},
            {"limit": 0},
            {"limit": 10**9},
            {"cursor": "x"},
            {"entity_id": "1"},
            {"entity_type": "a\0b"},
            {"entity_type": "BOOK", "entity_id": "a\0b"},
        ]
        for more in lists:
            with pytest.raises(Invalid):
                shop.deploys.list(**more)
        with pytest.raises(Conflict, match="SINKING does not become QUEUED"):
            shop.deploys.retry(deploy.id)


def test_a_version_that_has_other_content_makes_no_deploy(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (_, shop):
        first = shop.deploy("BOOK", "1", book("1"))
        with pytest.raises(Conflict, match="other content"):
            shop.deploy("BOOK", "1", book("1", title="Other"), version=first.version)
        assert [each.id for each in shop.deploys.list().deploys] == [first.id]


def test_a_deploy_that_is_done_is_not_retried(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path) as (_, shop):
        done = shop.deploy("BOOK", "1", book("1"))
        with pytest.raises(Conflict, match="deploy again") as caught:
            shop.deploys.retry(done.id)
        assert (caught.value.state, caught.value.wanted) == ("DONE", "QUEUED")
        queued = shop.deploy("BOOK", "2", book("2"), compile="async")
        with pytest.raises(Conflict, match="only a FAILED one is retried"):
            shop.deploys.retry(queued.id)


def forge(app: App, tenant: str = "shop", **payload: Any) -> str:
    """An event that somebody else wrote; its id."""
    id = f"forged {next(NUMBERS)}"
    event = OutboxEvent(id, "RAW_DATA", id, "RawDataIngested", json.dumps(payload).encode())
    return produce(app, [event], tenant=tenant)[0]


def test_events_of_no_deploy_are_refused(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path) as (app, shop):
        version = shop.ingest("BOOK", "1", book("1")).version
        wrong: list[Any] = ["x", "0" * 33, 7, None, ["0" * 32], {"a": 1}]
        ids = [forge(app, entityKey="BOOK#shop#1", version=version, deployId=each) for each in wrong]
        assert drain(app).dead == len(wrong)
        reasons = [app.outbox.get(id).failure_reason or "" for id in ids]
        assert [each for each in reasons if "is of no deploy" not in each] == []


def test_an_event_cannot_go_on_with_a_deploy_of_something_else(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path) as (app, shop):
        deploy = shop.deploy("BOOK", "1", book("1"), compile="async")
        # Nothing is done for the deploy's own event.
        app.worker(1, handlers={"RawDataIngested": lambda event, settle: None}).drain()
        version = shop.ingest("BOOK", "2", book("2")).version
        ids = [
            forge(app, entityKey=f"BOOK#shop#{isbn}", version=named, deployId=deploy.id)
            for isbn, named in (("2", version), ("1", version), ("2", deploy.version))
        ]
        # Of another tenant, it is as if there were no such deploy.
        other = app.tenant("other").ingest("BOOK", "1", book("1")).version
        forge(app, "other", entityKey="BOOK#other#1", version=other, deployId=deploy.id)
        assert drain(app).dead == len(ids)
        reasons = [app.outbox.get(id).failure_reason or "" for id in ids]
        assert [each for each in reasons if "of another entity, or of another version" not in each] == []
        assert title(app.tenant("other")) == "Book 1"
        assert query(store, "SELECT state FROM deploy") == [("QUEUED",)]
