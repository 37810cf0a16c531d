"""Deploys: stored, compiled, served and shipped, with what readers get before and after."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from analemma.app import App, Tenant
from analemma.catalog.deploy_states import DeployState
from analemma.catalog.sink_states import ShippedRow
from analemma.errors import Conflict, Invalid, NotFound, Timeout
from analemma.pipeline.deploy_serving import DeployAnswers
from analemma.pipeline.events import Events
from tests.sink_servers import Answer, WebhookReceiver
from tests.stores import Store
from tests.unit.pipeline.ship_shop import documents_of, drain, jsonl, lines_of, open_ship_shop, rule, shop_contracts
from tests.unit.pipeline.shop import VIEW, book
from tests.unit.pipeline.tables import query, row_counts, rows_added

SECRET = "the secret of the tests"


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    server = WebhookReceiver(SECRET)
    yield server
    server.stop()


def hook(receiver: WebhookReceiver, sink: str = "sink.hook", **more: Any) -> dict[str, Any]:
    return rule(sink, {"type": "WEBHOOK", "url": receiver.url, "secret": SECRET}, **more)


def title(shop: Tenant, isbn: str = "1") -> str | None:
    """What readers get who name no version; None: nothing."""
    try:
        found: str = shop.view(VIEW).get(isbn).data["CORE"]["title"]
    except NotFound:
        return None
    return found


def states(shop: Tenant, id: str) -> list[str]:
    return [step.state.value for step in shop.deploys.explain(id).steps]


@contextmanager
def working(app: App) -> Iterator[None]:
    """A worker in the background."""
    worker = app.worker(2)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


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


@pytest.mark.parametrize("compiling", ["sync", "async"])
def test_at_cutover_done_readers_get_it_when_the_sinks_have_it(
    compiling: str, store: Store, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    with open_ship_shop(store, tmp_path, jsonl(), hook(receiver)) as (app, shop):
        old = shop.deploy("BOOK", "1", book("1", title="Old", tags=["old", "both"]))
        drain(app)
        receiver.is_down = True
        new = shop.deploy("BOOK", "1", book("1", title="New", tags=["new", "both"]), cutover="done", compile=compiling)
        drain(app)
        # One sink has it, the other does not answer: readers get the old one, and by version both.
        assert documents_of(tmp_path / "books.jsonl")["shop__1"]["title"] == "New"
        assert shop.deploys.get(new.id).state is DeployState.SINKING
        assert shop.deploys.explain(new.id).waits_for == "an answer of sink.hook"
        assert title(shop) == "Old"
        view = shop.view(VIEW)
        assert view.get("1", old.version).data["CORE"]["title"] == "Old"
        assert view.get("1", new.version).data["CORE"]["title"] == "New"
        assert view.get("1").meta.staleness.is_stale
        found = {tag: [each.entity_id for each in view.search("tag", tag)] for tag in ("old", "new", "both")}
        assert found == {"old": ["1"], "new": [], "both": ["1"]}
        assert [view.count(index="tag", value=tag) for tag in ("old", "new", "both")] == [1, 0, 1]
        receiver.is_down = False
        with working(app):
            done = shop.deploys.await_(new.id, timeout_s=30)
        assert (done.state, done.served, done.superseded_by) == ("DONE", True, None)
        assert title(shop) == "New" and receiver.documents["shop__1"]["body"]["title"] == "New"
        found = {tag: [each.entity_id for each in view.search("tag", tag)] for tag in ("old", "new", "both")}
        assert found == {"old": [], "new": ["1"], "both": ["1"]}
        assert query(store, "SELECT count(*) FROM index_entry WHERE waiting <> 0") == [(0,)]


def test_without_sinks_cutover_done_is_at_once(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (_, shop):
        done = shop.deploy("BOOK", "1", book("1", title="A"), ship=[], cutover="done")
        assert (done.state, done.served) == ("DONE", True) and title(shop) == "A"


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
        assert lines_of(tmp_path / "books.jsonl") == [] and len(lines_of(tmp_path / "other.jsonl")) == 1
        told = {each.rule: (each.asked, each.why) for each in shop.deploys.explain(deploy.id).sinks}
        assert told == {
            "sink.file": (False, "the deploy names others"),
            "sink.other": (True, "its slices changed"),
        }


def test_a_newer_version_that_is_served_stays(store: Store, tmp_path: Path, receiver: WebhookReceiver) -> None:
    with open_ship_shop(store, tmp_path, hook(receiver)) as (app, shop):
        receiver.is_down = True
        late = shop.deploy("BOOK", "1", book("1", title="Late"), cutover="done")
        newer = shop.ingest("BOOK", "1", book("1", title="Newer"))
        drain(app)
        assert title(shop) == "Newer"
        receiver.is_down = False
        with working(app):
            done = shop.deploys.await_(late.id)
        assert (done.state, done.served, done.superseded_by) == ("DONE", False, newer.version)
        assert title(shop) == "Newer"
        assert shop.deploys.explain(late.id).steps[-1].reason == "superseded"


def test_of_two_that_wait_the_newer_one_is_served(store: Store, tmp_path: Path, receiver: WebhookReceiver) -> None:
    with open_ship_shop(store, tmp_path, hook(receiver)) as (app, shop):
        receiver.is_down = True
        first = shop.deploy("BOOK", "1", book("1", title="First"), cutover="done")
        second = shop.deploy("BOOK", "1", book("1", title="Second"), cutover="done")
        assert title(shop) is None
        receiver.is_down = False
        with working(app):
            ended = [shop.deploys.await_(each.id) for each in (first, second)]
        assert [(each.state, each.superseded_by) for each in ended] == [("DONE", second.version), ("DONE", None)]
        assert title(shop) == "Second"


def test_an_older_version_is_superseded_at_once(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        newest = shop.deploy("BOOK", "1", book("1", title="Newest"))
        drain(app)
        old = shop.deploy("BOOK", "1", book("1", title="Old"), version="0000000000001")
        assert (old.state, old.served, old.superseded_by) == ("DONE", False, newest.version)
        assert title(shop) == "Newest"
        (sink,) = shop.deploys.explain(old.id).sinks
        assert (sink.asked, sink.why) == (False, "a newer version is compiled, and sinks follow that one")


def test_who_joins_a_document_follows_at_its_cutover(store: Store, tmp_path: Path, receiver: WebhookReceiver) -> None:
    authors = {**hook(receiver), "input": {"type": "SLICE", "sliceTypes": ["SUMMARY"], "entityTypes": ["AUTHOR"]}}
    with open_ship_shop(store, tmp_path, authors) as (app, shop):

        def author() -> str:
            name: str = shop.view(VIEW).get("1").data["ENRICHED"]["author"]["name"]
            return name

        shop.ingest("AUTHOR", "lem", {"name": "Lem"})
        shop.ingest("BOOK", "1", book("1", authorId="lem"))
        drain(app)
        receiver.is_down = True
        deploy = shop.deploy("AUTHOR", "lem", {"name": "Stanislaw"}, cutover="done")
        drain(app)
        # Also who is compiled meanwhile joins what is served.
        shop.ingest("BOOK", "1", book("1", title="Again", authorId="lem"))
        drain(app)
        assert (author(), title(shop)) == ("Lem", "Again")
        receiver.is_down = False
        with working(app):
            shop.deploys.await_(deploy.id)
        drain(app)
        assert author() == "Stanislaw"
        assert shop.deploys.explain(deploy.id).told == ("PROFILE", "SUMMARY")


def test_both_versions_follow_what_they_join_and_only_a_cutover_serves(
    store: Store, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    with open_ship_shop(store, tmp_path, hook(receiver)) as (app, shop):
        for author in "ab":
            shop.ingest("AUTHOR", author, {"name": author})
        old = shop.ingest("BOOK", "1", book("1", title="Old", authorId="a"))
        drain(app)
        receiver.is_down = True
        new = shop.deploy("BOOK", "1", book("1", title="New", authorId="b"), cutover="done")
        for author in "ab":
            shop.ingest("AUTHOR", author, {"name": author.upper()})
        drain(app)
        view = shop.view(VIEW)
        assert title(shop) == "Old"
        assert view.get("1", old.version).data["ENRICHED"]["author"]["name"] == "A"
        assert view.get("1", new.version).data["ENRICHED"]["author"]["name"] == "B"
        receiver.is_down = False
        with working(app):
            assert shop.deploys.await_(new.id).served
        assert title(shop) == "New"
        assert receiver.documents["shop__1"]["body"]["author"]["name"] == "B"


def test_a_compile_that_cannot_be_fails_the_deploy_and_nobody_else(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        shop.deploy("BOOK", "1", book("1", title="Good"), ship=[])
        for compiling in "sync", "async":
            bad = shop.deploy("BOOK", "1", book("1", weight=compiling), compile=compiling, ship=[])
            drain(app)
            failed = shop.deploys.get(bad.id)
            assert failed.state is DeployState.FAILED and failed.error is not None
            assert failed.error.kind == "invalid" and "/weight" in failed.error.message
            with pytest.raises(Invalid, match="/weight") as caught:
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
        shop.deploy("BOOK", "1", book("1", title="Good"))
        bad = shop.deploy("BOOK", "1", book("1", title="Odd", weight=7), compile="async")
        drain(app)
        assert shop.deploys.get(bad.id).state is DeployState.FAILED
        mended = shop_contracts(jsonl())
        for contract in mended:
            if contract["kind"] == "RULESET" and contract["entityType"] == "BOOK":
                contract["ignore"] = [*contract["ignore"], "/weight"]
                contract["version"] = "1.0.1"
            if "ruleSetRef" in contract and contract["entityType"] == "BOOK":
                contract["ruleSetRef"] = {**contract["ruleSetRef"], "version": "1.0.1"}
                contract["version"] = "1.0.1"
        app.contracts.load(mended)
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
        shop.ingest("BOOK", "1", book("1", weight=1))
        deploy = shop.deploy("BOOK", "1", book("1", title="Good"), compile="async", ship=[])
        drain(app)
        assert shop.deploys.get(deploy.id).state is DeployState.QUEUED
        waits_for = shop.deploys.explain(deploy.id).waits_for
        assert waits_for is not None and waits_for.startswith("the dead letter") and "/weight" in waits_for
        with pytest.raises(Timeout, match="is QUEUED after 0 s") as caught:
            shop.deploys.await_(deploy.id, timeout_s=0)
        assert caught.value.hint == f"it waits for {waits_for}"
        app.outbox.discard(app.outbox.dead_letters().entries[0].id)
        drain(app)
        assert shop.deploys.get(deploy.id).state is DeployState.DONE


def test_of_two_sinks_that_answer_at_the_same_moment_the_second_ends_it(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl(), jsonl("sink.other", "other.jsonl")) as (app, shop):
        shop.deploy("BOOK", "1", book("1", title="Old"), ship=[])
        deploy = shop.deploy("BOOK", "1", book("1", title="New"), cutover="done")
        engine, answers = app.catalog.engine, DeployAnswers(Events(app._entropy), clock=app._clock)
        ((entity, ship_seq),) = query(store, "SELECT id, ship_seq FROM entity")

        def answer(sink: str, seq: int, outcome: Any = "shipped") -> ShippedRow:
            return ShippedRow(shop.id, entity, sink, "", "shop__1", 1, seq, False, outcome)

        # What a sink took before that answers nothing.
        engine.write(lambda tx: answers(tx, [answer("sink.file", ship_seq - 1), answer("sink.nope", ship_seq)]))
        assert shop.deploys.explain(deploy.id).waits_for == "an answer of sink.file, sink.other"
        second = threading.Thread(
            target=lambda: engine.write(lambda tx: answers(tx, [answer("sink.other", ship_seq + 1, "stale")]))
        )
        with engine.transaction(write=True) as first:
            answers(first, [answer("sink.file", ship_seq)])
            second.start()
            second.join(0.3)
            # Neither would know of the other, and both would go on waiting.
            assert second.is_alive()
        second.join()
        done = shop.deploys.get(deploy.id)
        assert (done.state, done.served) == ("DONE", True) and title(shop) == "New"
        told = {each.rule: (each.answered_seq, each.reason) for each in shop.deploys.explain(deploy.id).sinks}
        assert told == {"sink.file": (ship_seq, "shipped"), "sink.other": (ship_seq + 1, "stale")}


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
        assert 0.3 <= time.monotonic() - begun < 5
        assert (caught.value.state, caught.value.deploy, caught.value.until) == ("QUEUED", deploy.id, "done")
        sinking = shop.deploy("BOOK", "2", book("2"))
        assert shop.deploys.await_(sinking.id, until="ready", timeout_s=0).state is DeployState.SINKING
        with pytest.raises(Timeout, match="is SINKING"):
            shop.deploys.await_(sinking.id, timeout_s=0)


def test_waiting_costs_little_while_nothing_happens(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        deploy = shop.deploy("BOOK", "1", book("1"), compile="async")
        before = app.catalog.engine.statements["deploy_by_id"]
        with pytest.raises(Timeout):
            shop.deploys.await_(deploy.id, timeout_s=1.5)
        # Twice as long each time, up to a second: not a poll every few milliseconds.
        assert app.catalog.engine.statements["deploy_by_id"] - before <= 12


def test_everything_about_a_deploy_is_explained(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        shop.deploy("BOOK", "1", book("1", title="Old"))
        drain(app)
        deploy = shop.deploy("BOOK", "1", book("1", title="New", price=5))
        drain(app)
        told = shop.deploys.explain(deploy.id)
        assert (told.ruleset, told.mode, told.revision) == ("ruleset.book.v1@1.0.0", "INCREMENTAL", 1)
        assert {each.type: (each.outcome, each.why) for each in told.slices} == {
            "CORE": ("written", ("/title",)),
            "PRICE": ("written", ("/price",)),
            "ENRICHED": ("unchanged", ()),
            "INVENTORY": ("unchanged", ()),
        }
        (sink,) = told.sinks
        assert (sink.rule, sink.asked, sink.slices, sink.state) == ("sink.file", True, ("CORE", "PRICE"), "ANSWERED")
        assert sink.ship_seq == sink.answered_seq == 2
        assert sink.asked_at_us is not None and sink.answered_at_us is not None
        assert sink.asked_at_us <= sink.answered_at_us
        times = [step.at_us for step in told.steps]
        assert times == sorted(times) and told.waits_for is None
        assert told.as_dict()["deploy"]["state"] == "DONE"


def test_very_many_changed_paths_are_counted_and_not_all_kept(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (_, shop):
        shop.deploy("BOOK", "1", book("1", stock={"a": 1}), ship=[])
        deploy = shop.deploy("BOOK", "1", book("1", stock={f"k{n}": n for n in range(500)}), ship=[])
        (stock,) = [each for each in shop.deploys.explain(deploy.id).slices if each.type == "INVENTORY"]
        assert len(stock.why) == 50 and stock.more == 451


def test_lists_are_newest_first_and_paged(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path) as (app, shop):
        made = [shop.deploy("BOOK", str(number % 3), book("0", title=f"{number}")) for number in range(7)]
        author = shop.deploy("AUTHOR", "lem", {"name": "Lem"}, compile="async")
        foreign = app.tenant("other").deploy("BOOK", "1", book("1"))
        ids = [each.id for each in [*made, author]][::-1]
        found, cursor = [], None
        while True:
            page = shop.deploys.list(limit=3, cursor=cursor)
            found += [each.id for each in page.deploys]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert found == ids
        assert [each.id for each in shop.deploys.list(state="QUEUED").deploys] == [author.id]
        assert [each.id for each in shop.deploys.list(entity_type="AUTHOR").deploys] == [author.id]
        one = shop.deploys.list(entity_type="BOOK", entity_id="1").deploys
        assert [each.id for each in one] == [made[4].id, made[1].id]
        assert shop.deploys.list(entity_type="BOOK", entity_id="nope").deploys == []
        assert [each.id for each in app.deploys.list().deploys] == [foreign.id, *ids]
        assert app.deploys.list().deploys[0].tenant == "other"
        with pytest.raises(Invalid, match="not a cursor"):
            shop.deploys.list(limit=3, state="DONE", cursor=shop.deploys.list(limit=3).next_cursor)


def test_old_ones_are_forgotten_when_they_are_over(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl(), deploy_keep_s=3600) as (app, shop):
        kept = shop.deploy("BOOK", "1", book("1"))
        done = shop.deploy("BOOK", "2", book("2"), ship=[], idempotency_key="k")
        assert app.deploys.housekeep() == 0
        assert app.deploys.housekeep(older_than_s=-1) == 1
        assert shop.deploys.get(kept.id).state is DeployState.SINKING
        with pytest.raises(NotFound, match=f"there is no deploy '{done.id}'"):
            shop.deploys.get(done.id)
        assert query(store, "SELECT count(DISTINCT deploy) FROM deploy_step") == [(1,)]
        # The event of a deploy that is gone is that of a version.
        drain(app)
        assert shop.deploys.get(kept.id).state is DeployState.DONE
        assert shop.deploy("BOOK", "2", book("2"), ship=[], idempotency_key="k").id != done.id


def test_unknown_ids_are_not_found(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path) as (app, shop):
        deploy = shop.deploy("BOOK", "1", book("1"))
        other = app.tenant("other")
        ids: list[Any] = ["0" * 32, "", "nope", "x\0y", "\ud800", deploy.id.upper(), f"{deploy.id} ", 7, None]
        for id in ids:
            for deploys in app.deploys, shop.deploys:
                for verb in (deploys.get, deploys.await_, deploys.explain, deploys.retry):
                    with pytest.raises(NotFound, match="there is no deploy"):
                        verb(id)
        with pytest.raises(NotFound):
            other.deploys.get(deploy.id)
        assert app.deploys.get(deploy.id) == deploy


def test_what_cannot_be_a_deploy_is_refused_and_nothing_is_stored(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        before = row_counts(store)
        refused: list[tuple[type[Exception], dict[str, Any]]] = [
            (Invalid, {"compile": "later"}),
            (Invalid, {"cutover": "now"}),
            (Invalid, {"ship": "sink.file"}),
            (Invalid, {"ship": [7]}),
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


@pytest.mark.parametrize("forged", ["x", "0" * 33, 7, None, ["0" * 32], {"a": 1}])
def test_events_of_no_deploy_are_refused(forged: Any, store: Store, tmp_path: Path) -> None:
    from analemma.outbox.handlers import Event
    from analemma.pipeline.handlers import handlers

    with open_ship_shop(store, tmp_path) as (app, shop):
        version = shop.ingest("BOOK", "1", book("1")).version
        payload = {"entityKey": "BOOK#shop#1", "version": version, "deployId": forged}
        event = Event("e", "shop", "RAW_DATA", "shop:BOOK#shop#1", 1, "RawDataIngested", payload)
        with pytest.raises(Invalid, match="is of no deploy"):
            handlers(lambda name: app.tenant(name).pipeline)[event.type](event, lambda tx: None)


def test_an_event_cannot_go_on_with_a_deploy_of_something_else(store: Store, tmp_path: Path) -> None:
    from analemma.outbox.handlers import Event
    from analemma.pipeline.handlers import handlers

    with open_ship_shop(store, tmp_path) as (app, shop):
        deploy = shop.deploy("BOOK", "1", book("1"), compile="async")
        version = shop.ingest("BOOK", "2", book("2")).version
        handle = handlers(lambda name: app.tenant(name).pipeline)["RawDataIngested"]

        def forge(tenant: str, isbn: str, version: str) -> Event:
            payload = {"entityKey": f"BOOK#{tenant}#{isbn}", "version": version, "deployId": deploy.id}
            return Event("e", tenant, "RAW_DATA", f"{tenant}:BOOK", 1, "RawDataIngested", payload)

        for isbn, named in (("2", version), ("1", version), ("2", deploy.version)):
            with pytest.raises(Invalid, match="of another entity, or of another version"):
                handle(forge("shop", isbn, named), lambda tx: None)
        # Of another tenant, it is as if there were no such deploy.
        other = app.tenant("other").ingest("BOOK", "1", book("1")).version
        handle(forge("other", "1", other), lambda tx: None)
        assert title(app.tenant("other")) == "Book 1"
        assert shop.deploys.get(deploy.id).state is DeployState.QUEUED
