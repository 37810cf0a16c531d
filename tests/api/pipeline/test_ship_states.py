"""What is known of sinks, and what becomes of requests that meet each other: documents that two entities want, states
that change while a sink is asked, workers that fail together, and leases that are lost in the middle of a call."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from analemma import SHIPPED, Parcel, Shipped, load_contracts, refused, retry
from analemma.errors import Invalid
from tests.api.pipeline.scripted_shop import scripted
from tests.api.pipeline.ship_shop import (
    documents_of,
    drain,
    jsonl,
    lines_of,
    open_ship_shop,
    rows_of,
    shop_contracts,
    table,
)
from tests.api.pipeline.shop import book, put_book
from tests.api.pipeline.tables import query
from tests.scripted_sink import Script, install
from tests.stores import Store

BY_ENTITY = {"pattern": "{entityId}"}


def answer_once(script: Script, first: Any) -> None:
    """Have the first call do this and give its answer; all others are SHIPPED."""
    calls = iter([first])

    def answering(parcels: Sequence[Parcel]) -> list[Shipped]:
        act = next(calls, None)
        answer = SHIPPED if act is None else act()
        return [answer] * len(parcels)

    script.answering = answering


def shipped_at(store: Store, isbn: str) -> list[int]:
    """When what is known of an entity's documents was recorded."""
    known = "SELECT shipped_at FROM sink_state JOIN entity ON entity.id = sink_state.entity WHERE entity.key = ?"
    return [row[0] for row in query(store, f"{known} AND sink_state.ship_seq >= 0", isbn)]


def test_two_entities_of_one_document_id_meet_in_one_batch(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, table(tmp_path / "t.db", docId=BY_ENTITY)) as (app, _):
        put_book(app.tenant("a"), "978", price=1)
        put_book(app.tenant("b"), "978", price=2)
        put_book(app.tenant("b"), "979", price=3)
        assert drain(app).dead == 1
        found = rows_of(tmp_path / "t.db")
        assert {isbn: held[1]["amount"]["minor"] for isbn, held in found.items()} == {"978": 1, "979": 3}
        [dead] = app.outbox.dead_letters().entries
        assert dead.tenant == "b" and "is that of another entity" in (dead.failure_reason or "")
        assert app.sinks.list()[0].state == "dead"
        put_book(app.tenant("a"), "978", price=4)
        put_book(app.tenant("b"), "978", price=5)
        assert drain(app).dead == 1
        assert rows_of(tmp_path / "t.db")["978"][1]["amount"] == {"minor": 4}


def test_a_document_is_an_entitys_before_it_is_shipped(store: Store, tmp_path: Path, script: Script) -> None:
    """Another worker ships an entity of the same document id while the first one's call is under way."""
    with open_ship_shop(store, tmp_path, scripted(docId=BY_ENTITY)) as (app, _):

        def meanwhile() -> Shipped:
            put_book(app.tenant("b"), "978", price=2)
            assert drain(app).dead == 1
            return SHIPPED

        answer_once(script, meanwhile)
        put_book(app.tenant("a"), "978", price=1)
        drain(app)
        assert [parcel.document.tenant for parcel in script.parcels] == ["a"]


def test_a_document_that_was_taken_and_not_shipped_is_not_known_to_be_there(
    store: Store, tmp_path: Path, script: Script
) -> None:
    answer_once(script, lambda: refused("no"))
    with open_ship_shop(store, tmp_path, scripted()) as (app, shop):
        put_book(shop, "978")
        assert drain(app).dead == 1
        assert shipped_at(store, "978") == []
        shop.ship("BOOK", "978", force=False)
        drain(app)
        assert script.states == [("shop__978", 1)] * 2 and len(shipped_at(store, "978")) == 1


def test_a_rule_that_does_not_tell_tenants_apart_is_odd() -> None:
    [warning] = load_contracts(shop_contracts(jsonl(docId=BY_ENTITY))).warnings
    assert "is the same for entities of one id in two tenants" in warning.reason
    for even in (jsonl(), jsonl(docId=BY_ENTITY, name="{tenantId}.jsonl")):
        assert not load_contracts(shop_contracts(even)).warnings


def test_what_is_refused_does_not_park_what_was_asked_for_meanwhile(
    store: Store, tmp_path: Path, script: Script
) -> None:
    with open_ship_shop(store, tmp_path, scripted()) as (app, shop):

        def meanwhile() -> Shipped:
            put_book(shop, "978", title="good")
            return refused("bad title")

        answer_once(script, meanwhile)
        put_book(shop, "978", title="bad")
        assert drain(app).dead == 0
        assert [(parcel.document.body or {}).get("title") for parcel in script.parcels] == ["bad", "good"]
        assert app.outbox.status().lanes == 0


def test_a_request_that_is_covered_leaves_what_is_known_as_it_is(store: Store, tmp_path: Path) -> None:
    heard: list[str] = []
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        app.on_shipped(lambda tx, rows: heard.extend(row.outcome for row in rows))
        put_book(shop, "978")
        drain(app)
        before = shipped_at(store, "978")
        time.sleep(0.01)
        shop.ship("BOOK", "978", force=False)
        drain(app)
        assert shipped_at(store, "978") == before and heard == ["shipped", "stale"]
        assert len(lines_of(tmp_path / "books.jsonl")) == 1


def test_waking_a_sink_tries_it_at_once(store: Store, tmp_path: Path, script: Script) -> None:
    down = retry("down", 60, is_down=True)
    script.answering = lambda parcels: [down] * len(parcels)
    with open_ship_shop(store, tmp_path, scripted(), scripted(sink="sink.other"), ship_rest_s=60) as (app, shop):
        put_book(shop, "978")
        drain(app)
        script.answering = lambda parcels: [SHIPPED] * len(parcels)
        drain(app)
        assert len(script.batches) == 2
        assert app.sinks.wake("sink.scripted")
        assert drain(app).delivered == 1
        assert len(script.batches) == 3
        assert {each.id: each.failed for each in app.sinks.list()} == {"sink.scripted": 0, "sink.other": 1}


def test_a_sink_always_rests_for_some_time(store: Store) -> None:
    for wrong in ("ship_rest_s", "ship_rest_max_s"):
        with pytest.raises(Invalid, match=wrong):
            store.open(**{wrong: 0})


def test_a_sink_that_takes_long_to_open_keeps_nobody_waiting(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = install(tmp_path, monkeypatch, "slow", "quick")
    begun, release = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        assert release.wait(30)

    slow.opening = hang
    with open_ship_shop(store, tmp_path, scripted("slow", "sink.slow"), scripted("quick", "sink.quick")) as (app, shop):
        put_book(shop, "978")
        worker = app.worker(1)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            assert begun.wait(20)
            end = time.monotonic() + 20
            while not quick.batches and time.monotonic() < end:
                time.sleep(0.01)
            assert quick.states == [("shop__978", 1)] and not slow.batches
        finally:
            release.set()
            end = time.monotonic() + 20
            while not slow.batches and time.monotonic() < end:
                time.sleep(0.01)
            worker.stop()
            thread.join()
        assert slow.states == [("shop__978", 1)] and slow.opened == 1


def test_whatever_a_sinks_library_raises_shows_no_secret(
    store: Store, tmp_path: Path, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    def burst(*_: object) -> Any:
        raise ValueError("cannot connect to amqp://ann:hunter2@example.org")

    def leave(parcels: Sequence[Parcel]) -> list[Shipped]:
        raise SystemExit("amqp://ann:hunter2@example.org")

    caplog.set_level("DEBUG")
    with open_ship_shop(store, tmp_path, scripted(), ship_rest_s=60) as (app, shop):
        script.opening = burst
        put_book(shop, "978")
        drain(app)
        told = [app.sinks.list()[0].reason or ""]
        shown = [repr(app.sinks.list()), repr(app.sinks.health()), repr(app.outbox.failed().entries)]
        script.opening, script.answering = lambda: None, leave
        app.sinks.wake("sink.scripted")
        drain(app)
        told.append(app.sinks.list()[0].reason or "")
        shown += [repr(app.sinks.list()), repr(app.outbox.failed().entries), repr(app.outbox.status())]
        script.answering, script.closing = lambda parcels: [SHIPPED] * len(parcels), burst
        app.sinks.wake("sink.scripted")
        drain(app)
        app.contracts.load([scripted(version="1.1.0", description="another version")])
        put_book(shop, "978", price=9)
        # That the old one cannot be closed is nobody's business: what was shipped is shipped.
        assert drain(app).dead == 0 and app.sinks.list()[0].state == "ok"
        assert script.states[-1] == ("shop__978", 2) and app.outbox.status().lanes == 0
    assert "cannot be opened (ValueError)" in told[0] and "failed (SystemExit)" in told[1]
    assert not any("hunter2" in each for each in [*shown, caplog.text])


def test_what_is_queued_for_a_rule_that_is_gone_is_dropped_at_full_speed(
    store: Store, tmp_path: Path, script: Script
) -> None:
    down = retry("down", is_down=True)
    script.answering = lambda parcels: [down] * len(parcels)
    with open_ship_shop(store, tmp_path, scripted()) as (app, shop):
        put_book(shop, "978")
        drain(app)
        app.contracts.load([{**scripted(), "status": "ARCHIVED"}])
        end = time.monotonic() + 20
        while app.outbox.status().lanes and time.monotonic() < end:
            drain(app)
            time.sleep(0.02)
        assert app.outbox.status().lanes == 0 and len(script.batches) == 1
        assert query(store, "SELECT failures FROM channel WHERE name = 'sink.scripted'") in ([], [(0,)])


def test_a_tenant_does_not_hear_what_a_sink_said_of_anothers_documents(
    store: Store, tmp_path: Path, script: Script
) -> None:
    script.answering = lambda parcels: [retry(f"choked on {parcels[0].document.doc_id}", is_down=True)] * len(parcels)
    with open_ship_shop(store, tmp_path, scripted(), jsonl(), ship_rest_s=60) as (app, _):
        put_book(app.tenant("a"), "978")
        drain(app)
        put_book(app.tenant("b"), "979")
        app.tenant("c")
        assert "choked on a__978" in repr(app.outbox.status().problems)
        seen = app.outbox.status("b")
        assert seen.resting == ("sink.scripted",) and seen.problems == ("sink.scripted did not answer 1 times",)
        assert app.outbox.status("c").resting == ()
        reasons = [{each.id: each.reason for each in app.sinks.list(tenant=name)} for name in (None, "b")]
        assert reasons[0]["sink.scripted"] == "choked on a__978" and reasons[1]["sink.scripted"] is None


def test_a_slice_that_the_ruleset_no_longer_has_leaves_the_document(store: Store, tmp_path: Path) -> None:
    contracts = shop_contracts(every := jsonl())
    del every["input"]["sliceTypes"]
    with open_ship_shop(store, tmp_path, every) as (app, shop):
        shop.ingest("BOOK", "978", book("978"))
        drain(app)
        assert "amount" in documents_of(tmp_path / "books.jsonl")["shop__978"]
        [rules] = [each for each in contracts if each["kind"] == "RULESET" and each["entityType"] == "BOOK"]
        kept = {
            "slices": [each for each in rules["slices"] if each["type"] != "PRICE"],
            "impactMap": {kind: found for kind, found in rules["impactMap"].items() if kind != "PRICE"},
        }
        [schema] = [each for each in contracts if each["kind"] == "ENTITY_SCHEMA" and each["entityType"] == "BOOK"]
        bound = {**schema, "version": "1.1.0", "ruleSetRef": {"id": rules["id"], "version": "2.0.0"}}
        app.contracts.load([{**rules, "version": "2.0.0", **kept}, bound])
        assert shop.compile("BOOK", "978").ships == ("sink.file",)
        drain(app)
        assert "amount" not in documents_of(tmp_path / "books.jsonl")["shop__978"]
        assert [line["shipSeq"] for line in lines_of(tmp_path / "books.jsonl")] == [1, 2]


def test_each_rest_is_longer_than_the_one_before_up_to_the_longest(
    store: Store, tmp_path: Path, script: Script
) -> None:
    script.answering = lambda parcels: [retry("down", is_down=True)] * len(parcels)
    with open_ship_shop(store, tmp_path, scripted(), ship_rest_s=100, ship_rest_max_s=500) as (app, shop):
        put_book(shop, "978")
        rests = []
        for _ in range(5):
            drain(app)
            [told] = app.sinks.list()
            rests.append((told.failures, round((told.resting_s or 0) / 100)))
            # As if it had rested.
            query(store, "UPDATE channel SET rest_until = 1")
            query(store, "UPDATE lane SET due_at = 1 WHERE channel <> '' AND due_at IS NOT NULL")
        assert rests == [(1, 1), (2, 2), (3, 4), (4, 5), (5, 5)]


def test_a_rest_is_as_long_as_was_asked_for(store: Store, tmp_path: Path, script: Script) -> None:
    script.answering = lambda parcels: [retry("busy", 700, is_down=True)] * len(parcels)
    with open_ship_shop(store, tmp_path, scripted(), ship_rest_s=10, ship_rest_max_s=50) as (app, shop):
        put_book(shop, "978")
        drain(app)
        assert 600 < (app.sinks.list()[0].resting_s or 0) <= 700
