"""Deploys: stored, compiled, served and shipped, by the call or by a worker; repeated, and waited for."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from analemma import DeployState
from analemma.errors import Conflict, Invalid, NotFound, Timeout
from tests.api.pipeline.deploy_shop import hook, states, title, working
from tests.api.pipeline.ship_shop import documents_of, drain, jsonl, lines_of, open_ship_shop, shop_contracts
from tests.api.pipeline.shop import book, book_rules
from tests.api.pipeline.tables import query, row_counts, rows_added
from tests.sink_servers import WebhookReceiver
from tests.stores import Store


def test_a_deploy_that_ships_nothing_is_done_when_the_call_returns(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        before = row_counts(store)
        done = shop.deploy("BOOK", "1", book("1", title="A"), ship=[])
        assert (done.state, done.created, done.served, done.error) == ("DONE", True, True, None)
        assert title(shop) == "A" and done.version == shop.slices("BOOK", "1")["CORE"].version
        assert states(shop, done.id) == ["QUEUED", "RUNNING", "READY", "DONE"]
        assert rows_added(store, before)["raw"] == 1
        # The event that another would have gone on by finds that all is done.
        assert drain(app).delivered == 1
        assert (documents_of(tmp_path / "books.jsonl"), shop.deploys.get(done.id)) == ({}, done)


def test_sinks_are_asked_and_their_answer_ends_it(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        begun = shop.entity("BOOK", "1").deploy(book("1", title="A"))
        assert (begun.state, begun.served) == ("SINKING", True)
        assert title(shop) == "A"
        drain(app)
        done = app.deploys.get(begun.id)
        assert done.state is DeployState.DONE and done.finished_at_us is not None
        assert documents_of(tmp_path / "books.jsonl")["shop__1"]["title"] == "A"
        assert states(shop, done.id) == ["QUEUED", "RUNNING", "READY", "SINKING", "DONE"]


def test_a_worker_does_what_is_not_done_in_the_call(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        queued = shop.deploy("BOOK", "1", book("1", title="A"), compile="async")
        assert queued.state is DeployState.QUEUED and title(shop) is None
        assert shop.deploys.explain(queued.id).waits_for == "a worker"
        with working(app):
            ready = shop.deploys.await_(queued.id, until="ready", timeout_s=30)
            assert ready.state.is_compiled and title(shop) == "A"
            assert shop.deploys.await_(queued.id, timeout_s=30).state is DeployState.DONE
        assert states(shop, queued.id) == ["QUEUED", "RUNNING", "READY", "SINKING", "DONE"]


def test_an_unchanged_document_is_done_without_asking_sinks_again(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        first = shop.deploy("BOOK", "1", book("1"))
        drain(app)
        again = shop.deploy("BOOK", "1", book("1"))
        assert again.id != first.id and again.version == first.version
        assert (again.state, again.created, again.served) == ("DONE", False, True)
        drain(app)
        assert len(lines_of(tmp_path / "books.jsonl")) == 1
        (sink,) = shop.deploys.explain(again.id).sinks
        assert (sink.asked, sink.why) == (False, "it has this state already")


def test_an_unchanged_document_waits_for_sinks_that_do_not_have_it(
    store: Store, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    with open_ship_shop(store, tmp_path, hook(receiver)) as (app, shop):
        shop.ingest("BOOK", "1", book("1"))
        receiver.is_down = True
        drain(app)
        deploy = shop.deploy("BOOK", "1", book("1"), compile="async", cutover="done")
        drain(app)
        assert shop.deploys.get(deploy.id).state is DeployState.SINKING
        receiver.is_down = False
        with working(app):
            assert shop.deploys.await_(deploy.id).state is DeployState.DONE


def test_a_sink_rule_that_is_new_gets_what_did_not_change(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        shop.deploy("BOOK", "1", book("1"))
        drain(app)
        app.contracts.load(shop_contracts(jsonl(), jsonl("sink.other", "other.jsonl")))
        deploy = shop.deploy("BOOK", "1", book("1"))
        drain(app)
        assert shop.deploys.get(deploy.id).state is DeployState.DONE
        assert len(lines_of(tmp_path / "books.jsonl")) == len(lines_of(tmp_path / "other.jsonl")) == 1


def test_only_the_sinks_named_are_asked(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl(), jsonl("sink.other", "other.jsonl")) as (app, shop):
        deploy = shop.deploy("BOOK", "1", book("1"), ship=["sink.other", "sink.other"])
        assert deploy.ship == ("sink.other",)
        drain(app)
        assert shop.deploys.get(deploy.id).state is DeployState.DONE
        # However they are named.
        assert shop.deploy("BOOK", "2", book("2"), ship=iter(["sink.other"]), compile="async").ship == ("sink.other",)  # type: ignore[arg-type]
        assert shop.ship("BOOK", "1", sinks=iter(["sink.other"])).sinks == ("sink.other",)  # type: ignore[arg-type]
        assert lines_of(tmp_path / "books.jsonl") == [] and len(lines_of(tmp_path / "other.jsonl")) == 1
        told = {each.rule: (each.asked, each.why) for each in shop.deploys.explain(deploy.id).sinks}
        assert told == {
            "sink.file": (False, "the deploy names others"),
            "sink.other": (True, "its slices changed"),
        }


@pytest.mark.parametrize("compiling", ["sync", "async"])
def test_the_same_key_is_the_same_deploy(compiling: str, store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        first = shop.deploy("BOOK", "1", book("1"), compile=compiling, idempotency_key="k")
        shop.ingest("BOOK", "1", book("1", title="Newer"))
        before = row_counts(store)
        again = shop.deploy("BOOK", "1", book("1"), compile=compiling, idempotency_key="k")
        assert again == first and rows_added(store, before) == {}
        others: list[tuple[Any, dict[str, Any]]] = [
            (book("1", title="Other"), {}),
            (book("1"), {"cutover": "done"}),
            (book("1"), {"ship": []}),
        ]
        for payload, more in others:
            with pytest.raises(Conflict, match="'k' was used for another deploy") as caught:
                shop.deploy("BOOK", "1", payload, **{"compile": compiling, "idempotency_key": "k", **more})
            assert caught.value.deploy == first.id
        assert rows_added(store, before) == {}
        # A key is of one tenant.
        assert app.tenant("other").deploy("BOOK", "1", book("1"), idempotency_key="k").id != first.id


def test_the_same_key_is_the_same_deploy_whatever_contracts_say_now(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        asked: dict[str, Any] = {"ship": ["sink.file"], "compile": "async", "idempotency_key": "k"}
        first = shop.deploy("BOOK", "1", book("1"), **asked)
        rules, schema = book_rules("2.0.0")
        schema["fields"] = [*schema["fields"], {"name": "pages", "type": "int", "required": True}]
        app.contracts.load([rules, schema, {**jsonl(), "status": "ARCHIVED"}])
        with pytest.raises(NotFound):
            shop.deploy("BOOK", "1", book("1"), ship=["sink.file"])
        with pytest.raises(Invalid):
            shop.deploy("BOOK", "1", book("1"))
        assert shop.deploy("BOOK", "1", book("1"), **asked).id == first.id
        with pytest.raises(Conflict, match="'k' was used for another deploy"):
            shop.deploy("BOOK", "1", book("1", pages=7), **asked)


def test_many_who_use_one_key_at_once_get_one_deploy(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (_, shop):
        found: list[str] = []

        def deploy() -> None:
            found.append(shop.deploy("BOOK", "1", book("1"), compile="async", idempotency_key="k").id)

        threads = [threading.Thread(target=deploy) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8 and len(set(found)) == 1
        assert query(store, "SELECT count(*) FROM deploy") == query(store, "SELECT count(*) FROM raw") == [(1,)]
        assert query(store, "SELECT count(*) FROM outbox") == [(1,)]


def test_a_call_that_died_is_gone_on_with_by_a_worker(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):

        class Died(BaseException):
            pass

        def die(*_: Any) -> None:
            raise Died

        with monkeypatch.context() as patched:
            patched.setattr(shop.pipeline.deploying, "_compile", die)
            with pytest.raises(Died):
                shop.deploy("BOOK", "1", book("1"), idempotency_key="k")
        (left,) = shop.deploys.list().deploys
        assert left.state is DeployState.RUNNING and title(shop) is None
        drain(app)
        assert shop.deploys.get(left.id).state is DeployState.DONE and title(shop) == "Book 1"


def test_waiting_ends_in_time_and_says_how_far_it_is(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        deploy = shop.deploy("BOOK", "1", book("1"), compile="async")
        begun = time.monotonic()
        with pytest.raises(Timeout, match=f"deploy {deploy.id} is QUEUED after 0.3 s, and not done") as caught:
            app.deploys.await_(deploy.id, timeout_s=0.3)
        assert time.monotonic() - begun >= 0.3
        assert (caught.value.state, caught.value.deploy, caught.value.until) == ("QUEUED", deploy.id, "done")
        sinking = shop.deploy("BOOK", "2", book("2"))
        assert shop.deploys.await_(sinking.id, until="ready", timeout_s=0).state is DeployState.SINKING
        with pytest.raises(Timeout, match="is SINKING"):
            shop.deploys.await_(sinking.id, timeout_s=0)
