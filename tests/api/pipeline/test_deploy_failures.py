"""Deploys that fail: what cannot be compiled, sinks that refuse or are gone, dead events; and what a retry does."""

from __future__ import annotations

from pathlib import Path

import pytest

from analemma import DeployState
from analemma.errors import Corrupt, Timeout
from tests.api.pipeline.deploy_shop import hook, title, working
from tests.api.pipeline.ship_shop import drain, jsonl, lines_of, open_ship_shop, shop_contracts
from tests.api.pipeline.shop import book, book_rules
from tests.api.pipeline.tables import damaged, query
from tests.sink_servers import Answer, WebhookReceiver
from tests.stores import Store


def test_a_compile_that_cannot_be_fails_the_deploy_and_nobody_else(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        shop.deploy("BOOK", "1", book("1", title="Good"), ship=[])
        for compiling in "sync", "async":
            with damaged(store):
                bad = shop.deploy("BOOK", "1", book("1", title=compiling), compile=compiling, ship=[])
                drain(app)
            failed = shop.deploys.get(bad.id)
            assert failed.state is DeployState.FAILED and failed.error is not None
            assert failed.error.kind == "corrupt" and "hash" in failed.error.message
            with pytest.raises(Corrupt, match="hash") as caught:
                failed.check()
            assert caught.value.deploy == bad.id
            assert shop.deploys.explain(bad.id).steps[-1].reason == str(failed.error)
        assert title(shop) == "Good"
        # Its event is settled: what comes after it is not held up.
        good = shop.deploy("BOOK", "1", book("1", title="Better"), compile="async", ship=[])
        drain(app)
        assert shop.deploys.get(good.id).state is DeployState.DONE and title(shop) == "Better"
        assert app.outbox.dead_letters().entries == []


def test_a_retry_goes_on_when_the_contract_is_mended(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        app.contracts.load(book_rules("1.0.1", ignore=lambda paths: [*paths, "/weight"]))
        shop.deploy("BOOK", "1", book("1", title="Good"))
        bad = shop.deploy("BOOK", "1", book("1", title="Odd", weight=7), compile="async")
        app.contracts.load(book_rules("1.0.2"))
        drain(app)
        failed = shop.deploys.get(bad.id)
        assert failed.state is DeployState.FAILED and failed.error is not None
        assert failed.error.kind == "invalid" and "/weight" in failed.error.message
        app.contracts.load(book_rules("1.0.3", ignore=lambda paths: [*paths, "/weight"]))
        again = app.deploys.retry(bad.id)
        assert (again.state, again.attempt, again.error) == ("QUEUED", 2, None)
        drain(app)
        assert shop.deploys.get(bad.id).state is DeployState.DONE and title(shop) == "Odd"
        explained = shop.deploys.explain(bad.id)
        told = [(step.state.value, step.attempt) for step in explained.steps]
        assert told == [
            *(("QUEUED", 1), ("RUNNING", 1), ("FAILED", 1)),
            *(("QUEUED", 2), ("RUNNING", 2), ("READY", 2), ("SINKING", 2), ("DONE", 2)),
        ]


def test_a_sink_that_refuses_fails_the_deploy_and_a_retry_asks_it_again(
    store: Store, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    with open_ship_shop(store, tmp_path, jsonl(), hook(receiver)) as (app, shop):
        shop.deploy("BOOK", "1", book("1", title="Old"))
        drain(app)
        receiver.statuses = [Answer(422, {"error": "not such a title"})]
        bad = shop.deploy("BOOK", "1", book("1", title="New"), cutover="done")
        drain(app)
        failed = shop.deploys.get(bad.id)
        assert failed.state is DeployState.FAILED and failed.error is not None
        assert (failed.error.sink, failed.error.slices) == ("sink.hook", ("CORE",))
        assert "422" in failed.error.message and not failed.served
        assert title(shop) == "Old"
        shop.deploys.retry(bad.id)
        drain(app)
        done = shop.deploys.get(bad.id)
        assert (done.state, done.served, done.error) == ("DONE", True, None)
        assert title(shop) == "New" and receiver.documents["shop__1"]["body"]["title"] == "New"
        # The one that had answered was not asked again.
        assert len(lines_of(tmp_path / "books.jsonl")) == 2
        assert app.outbox.dead_letters().entries == []


def test_a_request_that_was_given_up_on_fails_the_deploy(
    store: Store, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    with open_ship_shop(store, tmp_path, hook(receiver), ship_max_attempts=1) as (app, shop):
        shop.deploy("BOOK", "2", book("2"))
        drain(app)
        receiver.statuses = [Answer(500)]
        deploy = shop.deploy("BOOK", "1", book("1"), cutover="done")
        drain(app)
        failed = app.deploys.get(deploy.id)
        assert failed.state is DeployState.FAILED and failed.error is not None and failed.error.sink == "sink.hook"
        shop.deploys.retry(deploy.id)
        drain(app)
        assert shop.deploys.get(deploy.id).state is DeployState.DONE


def test_a_retry_asks_again_though_the_request_was_discarded(
    store: Store, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    with open_ship_shop(store, tmp_path, hook(receiver)) as (app, shop):
        shop.deploy("BOOK", "1", book("1", title="Old"))
        drain(app)
        receiver.statuses = [Answer(422)]
        deploy = shop.deploy("BOOK", "1", book("1", title="New"), cutover="done")
        drain(app)
        assert app.outbox.discard(app.outbox.dead_letters().entries[0].id) == 1
        shop.deploys.retry(deploy.id)
        drain(app)
        assert shop.deploys.get(deploy.id).state is DeployState.DONE and title(shop) == "New"
        assert receiver.documents["shop__1"]["body"]["title"] == "New"


def test_a_sink_that_owes_an_earlier_answer_is_waited_for(
    store: Store, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    with open_ship_shop(store, tmp_path, hook(receiver)) as (app, shop):
        shop.ingest("BOOK", "1", book("1", title="Old"))
        drain(app)
        receiver.is_down = True
        shop.ingest("BOOK", "1", book("1", title="New"))
        drain(app)
        # Nothing changes for the sink, but it has not even what was before.
        deploy = shop.deploy("BOOK", "1", book("1", title="New", stock={"sites": []}), cutover="done")
        (sink,) = shop.deploys.explain(deploy.id).sinks
        assert deploy.state is DeployState.SINKING and sink.why == "it has not answered an earlier request"
        receiver.is_down = False
        with working(app):
            assert shop.deploys.await_(deploy.id).served
        assert receiver.documents["shop__1"]["body"]["title"] == "New"
        # Now it has.
        again = shop.deploy("BOOK", "1", book("1", title="New", stock={"sites": [1]}), cutover="done")
        assert again.state is DeployState.DONE
        assert shop.deploys.explain(again.id).sinks[0].why == "none of its slices changed"


def test_a_sink_rule_that_is_gone_fails_those_that_wait_for_it(
    store: Store, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    with open_ship_shop(store, tmp_path, hook(receiver)) as (app, shop):
        deploy = shop.deploy("BOOK", "1", book("1"), cutover="done")
        app.contracts.load(shop_contracts({**hook(receiver), "version": "2.0.0", "status": "ARCHIVED"}))
        app.contracts.load(shop_contracts({**hook(receiver), "status": "ARCHIVED"}))
        drain(app)
        failed = shop.deploys.get(deploy.id)
        assert failed.state is DeployState.FAILED and failed.error is not None
        assert "ended without an answer" in failed.error.message
        # Asked once more, there is nobody left to wait for.
        shop.deploys.retry(deploy.id)
        drain(app)
        assert shop.deploys.get(deploy.id).state is DeployState.DONE and title(shop) == "Book 1"


def test_an_event_that_killed_its_workers_is_replayed_by_a_retry(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        deploy = shop.deploy("BOOK", "1", book("1"), compile="async")
        ((event,),) = query(store, "SELECT event FROM deploy")
        query(
            store,
            "UPDATE outbox SET status = 'DEAD', attempts = 5, failure_reason = 'its worker died' WHERE id = ?",
            event,
        )
        query(store, "UPDATE lane SET parked = true, due_at = NULL WHERE aggregatetype = 'RAW_DATA'")
        failed = shop.deploys.await_(deploy.id)
        assert failed.state is DeployState.FAILED and failed.error is not None
        assert "its worker died" in failed.error.message
        shop.deploys.retry(deploy.id)
        assert query(store, "SELECT event, state FROM deploy") == [(event, "QUEUED")]
        drain(app)
        assert shop.deploys.get(deploy.id).state is DeployState.DONE


def test_a_discarded_event_fails_its_deploy(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        deploy = shop.deploy("BOOK", "1", book("1"), compile="async")
        query(store, "UPDATE outbox SET status = 'DEAD', failure_reason = 'no'")
        query(store, "UPDATE lane SET parked = true, due_at = NULL")
        ((event,),) = query(store, "SELECT event FROM deploy")
        app.outbox.discard(event, reason="not wanted")
        assert "not wanted" in str(shop.deploys.get(deploy.id).error)
        shop.deploys.retry(deploy.id)
        drain(app)
        assert shop.deploys.get(deploy.id).state is DeployState.DONE


def test_it_says_when_it_waits_behind_somebody_elses_dead_letter(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        shop.deploy("BOOK", "1", book("1"), ship=[])
        drain(app)
        version = shop.ingest("BOOK", "1", book("1", title="Bad")).version
        query(store, "UPDATE raw SET hash = ? WHERE version = (SELECT max(version) FROM raw)", b"x" * 32)
    # Of the same version: a newer one would take its place.
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        drain(app)
        deploy = shop.deploy("BOOK", "1", book("1", title="Bad"), compile="async", ship=[])
        assert deploy.version == version
        drain(app)
        assert shop.deploys.get(deploy.id).state is DeployState.QUEUED
        waits_for = shop.deploys.explain(deploy.id).waits_for
        assert waits_for is not None and waits_for.startswith("the dead letter") and "corrupt" in waits_for
        with pytest.raises(Timeout, match="is QUEUED after 0 s") as caught:
            shop.deploys.await_(deploy.id, timeout_s=0)
        assert caught.value.hint == f"it waits for {waits_for}"
        app.outbox.discard(app.outbox.dead_letters().entries[0].id)
        drain(app)
        assert shop.deploys.get(deploy.id).state is DeployState.FAILED
