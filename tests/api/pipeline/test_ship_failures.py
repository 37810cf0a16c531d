"""What happens when sinks fail: one document, or all; who waits, who goes on, and what is told about it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest

from analemma import SHIPPED, Parcel, Shipped, refused, retry
from analemma.testing import failpoints
from tests.api.pipeline.scripted_shop import answer_for, drain_until, opensearch, put_books, scripted, times_sent
from tests.api.pipeline.ship_shop import documents_of, drain, jsonl, open_ship_shop, rule
from tests.api.pipeline.shop import put_book
from tests.scripted_sink import Script, install
from tests.sink_servers import OpenSearchLike
from tests.stores import Store


def test_only_what_failed_is_tried_again(store: Store, tmp_path: Path, script: Script) -> None:
    answer_for(script, {"0001": [retry("busy")], "0003": [retry("busy"), retry("busy")]})
    with open_ship_shop(store, tmp_path, scripted()) as (app, _):
        put_books(app, 5)
        drain(app)
        drain_until(app, lambda: app.outbox.status().lanes == 0)
        assert times_sent(script) == {"0000": 1, "0001": 2, "0002": 1, "0003": 3, "0004": 1}
        assert app.outbox.status().dead == 0
        assert app.sinks.list()[0].state == "ok"


def test_only_the_failed_items_of_a_bulk_are_sent_again(store: Store, tmp_path: Path, server: OpenSearchLike) -> None:
    server.failing = {"shop__0001": [503, 429], "shop__0002": [409]}
    with open_ship_shop(store, tmp_path, opensearch(server)) as (app, _):
        put_books(app, 4)
        drain(app)
        drain_until(app, lambda: app.outbox.status().lanes == 0)
        bodies = [body for _, path, _, body in server.requests if path == "/_bulk"]
        actions = [
            orjson.loads(line)["index"]["_id"] for body in bodies for line in body.splitlines() if b'"index"' in line
        ]
        assert sorted(actions) == sorted([*(f"shop__000{number}" for number in range(4)), "shop__0001", "shop__0001"])
        # What the sink had in a newer state is done, too.
        assert sorted(doc_id for _, doc_id in server.documents) == ["shop__0000", "shop__0001", "shop__0003"]


def test_what_a_sink_refuses_is_a_dead_letter_with_the_reason(store: Store, tmp_path: Path, script: Script) -> None:
    answer_for(script, {"0001": [refused("too many fields")]})
    with open_ship_shop(store, tmp_path, scripted()) as (app, shop):
        put_books(app, 3)
        assert drain(app).dead == 1
        [dead] = app.outbox.dead_letters().entries
        assert dead.failure_reason == "too many fields" and dead.aggregate_id == "shop:BOOK#shop#0001#sink.scripted"
        assert [each.dead for each in app.sinks.list()] == [1]
        # A newer state is worth another try, and takes the place of the one that was refused.
        put_book(shop, "0001", price=7)
        drain(app)
        assert app.outbox.status().dead == 0 and app.outbox.status().lanes == 0
        assert script.states[-1] == ("shop__0001", 2)


def test_a_refused_document_can_be_replayed(store: Store, tmp_path: Path, script: Script) -> None:
    answer_for(script, {"0000": [refused("no")]})
    with open_ship_shop(store, tmp_path, scripted()) as (app, _):
        put_books(app, 1)
        drain(app)
        assert app.outbox.replay(tenant="shop").revived == 1
        drain(app)
        assert times_sent(script) == {"0000": 2} and app.outbox.status().lanes == 0


def test_a_document_that_always_fails_while_others_do_not_is_dead_in_the_end(
    store: Store, tmp_path: Path, script: Script
) -> None:
    answer_for(script, {"0000": [retry("never mind")] * 99})
    with open_ship_shop(store, tmp_path, scripted(), ship_max_attempts=3, outbox_backoff_base_s=0) as (app, shop):
        put_books(app, 2)
        for price in range(50):
            drain(app)
            if app.outbox.status().dead:
                break
            put_book(shop, "0001", price=price)
        [dead] = app.outbox.dead_letters().entries
        assert (dead.attempts, dead.failure_reason) == (3, "never mind")


def test_a_sink_that_is_down_rests_and_nobody_is_blamed(store: Store, tmp_path: Path, script: Script) -> None:
    down = retry("cannot be reached", is_down=True)
    script.answering = lambda parcels: [down] * len(parcels)
    with open_ship_shop(store, tmp_path, scripted(), ship_rest_s=30, ship_rest_max_s=30) as (app, _):
        put_books(app, 30)
        for _ in range(5):
            drain(app)
        # It was asked once, for all of them, and then left alone.
        assert [len(batch) for batch in script.batches] == [30]
        [status] = app.sinks.list()
        assert status.state == "resting" and status.reason == "cannot be reached" and status.failures == 1
        assert 0 < (status.resting_s or 0) <= 30
        assert {each.attempts for each in app.outbox.failed().entries} == {0}
        assert app.sinks.wake("sink.scripted") and app.sinks.list()[0].state == "ok"


def test_a_sink_that_is_back_is_tried_with_a_few_first(store: Store, tmp_path: Path, script: Script) -> None:
    down = retry("cannot be reached", is_down=True)
    script.answering = lambda parcels: [down] * len(parcels)
    with open_ship_shop(store, tmp_path, scripted()) as (app, _):
        put_books(app, 40)
        drain(app)
        time.sleep(0.1)
        drain(app)
        assert len(script.batches[0]) == 40 and all(len(batch) <= 10 for batch in script.batches[1:])
        script.answering = lambda parcels: [SHIPPED] * len(parcels)
        drain_until(app, lambda: app.outbox.status().lanes == 0)
        assert app.sinks.list()[0].state == "ok" and app.sinks.list()[0].failures == 0
        assert app.outbox.status().dead == 0


def test_a_sink_that_asks_to_be_left_alone_is(store: Store, tmp_path: Path, server: OpenSearchLike) -> None:
    server.overloaded = True
    with open_ship_shop(store, tmp_path, opensearch(server)) as (app, _):
        put_books(app, 3)
        for _ in range(3):
            drain(app)
        assert len(server.requests) == 1
        [found] = app.sinks.list()
        # Retry-After is 7 seconds, and more than it would have rested.
        assert 1 < (found.resting_s or 0) <= 7 and "429" in (found.reason or "")


def test_a_dead_sink_is_asked_once_however_many_documents_wait(store: Store, tmp_path: Path, script: Script) -> None:
    down = retry("cannot be reached", is_down=True)
    script.answering = lambda parcels: [down] * len(parcels)
    small = {"batchSize": 20}
    with open_ship_shop(store, tmp_path, scripted(commit=small), ship_rest_s=60) as (app, _):
        put_books(app, 60)
        drain(app)
        for _ in range(10):
            drain(app)
        # Of the 60 that wait, none is touched.
        assert len(script.batches) == 1 and {each.attempts for each in app.outbox.failed(limit=100).entries} <= {0}


def test_a_sink_that_fails_while_a_worker_looks_for_work_is_asked_once(
    store: Store, tmp_path: Path, script: Script
) -> None:
    looked = threading.Event()

    def fail(parcels: Sequence[Parcel]) -> list[Shipped]:
        assert looked.wait(30)
        return [retry("cannot be reached", is_down=True)] * len(parcels)

    def end_meanwhile() -> None:
        looked.set()
        end = time.monotonic() + 30
        while any(each.name.startswith("analemma-channel-") for each in threading.enumerate()):
            assert time.monotonic() < end
            time.sleep(0.001)

    script.answering = fail
    with open_ship_shop(store, tmp_path, scripted(commit={"batchSize": 20}), ship_rest_s=60) as (app, _):
        put_books(app, 60)
        # Its thread ends between what the worker reads of the channel, while that holds 20 of 60, and what it does.
        failpoints.arm("outbox.after_due:2", end_meanwhile)
        try:
            drain(app)
        finally:
            failpoints.arm(None)
        assert looked.is_set() and len(script.batches) == 1


def test_a_slow_sink_delays_neither_others_nor_compiles(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = install(tmp_path, monkeypatch, "slow", "quick")
    release, begun = threading.Event(), threading.Event()

    def hang(parcels: Sequence[Parcel]) -> list[Shipped]:
        begun.set()
        assert release.wait(30)
        return [SHIPPED] * len(parcels)

    slow.answering = hang
    with open_ship_shop(store, tmp_path, scripted("slow", "sink.slow"), scripted("quick", "sink.quick")) as (app, shop):
        worker = app.worker(1)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            put_book(shop, "0000")
            assert begun.wait(20)
            for number in range(20):
                shop.ingest("BOOK", f"9{number}", {"isbn": f"9{number}", "title": "t", "price": 1})
            end = time.monotonic() + 20
            while len(quick.states) < 21 and time.monotonic() < end:
                time.sleep(0.01)
            assert len({doc_id for doc_id, _ in quick.states}) == 21
            assert len(slow.batches) == 1
        finally:
            release.set()
            end = time.monotonic() + 20
            while len({doc_id for doc_id, _ in slow.states}) < 21 and time.monotonic() < end:
                time.sleep(0.01)
            worker.stop()
            thread.join()
        assert len({doc_id for doc_id, _ in slow.states}) == 21


def test_a_sink_that_cannot_be_opened_rests_and_shows_no_secret(
    store: Store, tmp_path: Path, script: Script, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_KEY", "hunter2-hunter2")
    wrong = rule("sink.wrong", {"type": "SCRIPTED", "script": "one", "apiKey": "${SHOP_KEY}", "guards": "${SHOP_KEY}"})
    unset = rule("sink.unset", {"type": "SCRIPTED", "script": "${NO_SUCH_SCRIPT}"})
    with open_ship_shop(store, tmp_path, wrong, unset, jsonl(), ship_rest_s=60) as (app, _):
        put_books(app, 2)
        assert drain(app).dead == 0
        told = {each.id: each for each in app.sinks.list()}
        assert "guards" in (told["sink.wrong"].reason or "")
        assert "NO_SUCH_SCRIPT" in (told["sink.unset"].reason or "")
        assert len(documents_of(tmp_path / "books.jsonl")) == 2
        shown = [repr(app.sinks.list()), repr(app.sinks.health()), repr(app.outbox.failed().entries), caplog.text]
        assert not any("hunter2" in each for each in shown)


def test_a_sink_that_raises_shows_no_secret(
    store: Store, tmp_path: Path, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    def burst(parcels: Sequence[Parcel]) -> list[Shipped]:
        raise RuntimeError("could not connect to https://ann:hunter2@example.org")

    script.answering = burst
    with open_ship_shop(store, tmp_path, scripted(), ship_rest_s=60) as (app, _):
        put_books(app, 2)
        drain(app)
        assert app.sinks.list()[0].reason == "the sink failed (RuntimeError)"
        assert app.outbox.status().dead == 0
        shown = [repr(app.sinks.list()), repr(app.outbox.failed().entries), caplog.text]
        assert not any("hunter2" in each for each in shown)


def test_a_sink_that_answers_for_too_few_rests(store: Store, tmp_path: Path, script: Script) -> None:
    script.answering = lambda parcels: [SHIPPED]
    with open_ship_shop(store, tmp_path, scripted(), ship_rest_s=60) as (app, _):
        put_books(app, 3)
        drain(app)
        assert "1 answers for 3 documents" in (app.sinks.list()[0].reason or "")
        assert app.outbox.status().dead == 0


def test_an_unreachable_server_is_one_that_rests(store: Store, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nowhere = rule("sink.search", {"type": "OPENSEARCH", "url": f"http://127.0.0.1:{port}", "index": "books"})
    with open_ship_shop(store, tmp_path, nowhere, jsonl(), ship_rest_s=60) as (app, _):
        put_books(app, 3)
        drain(app)
        assert len(documents_of(tmp_path / "books.jsonl")) == 3
        told = {each.id: each.state for each in app.sinks.list()}
        assert told == {"sink.file": "ok", "sink.search": "resting"}
        assert {each.id: each.is_healthy for each in app.sinks.health()} == {"sink.file": True, "sink.search": False}
