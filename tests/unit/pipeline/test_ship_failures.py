"""What happens when sinks fail: one document, or all; who waits, who goes on, and what is told about it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from analemma.app import App
from analemma.catalog.engine import Transaction
from analemma.catalog.outbox_producing import enqueue
from analemma.catalog.port import OutboxEvent
from analemma.catalog.sink_states import ShippedRow
from analemma.sinks.batching import Parcel
from analemma.sinks.port import SHIPPED, Shipped, refused, retry
from tests.scripted_sink import Script, install
from tests.sink_servers import OpenSearchLike
from tests.stores import Store
from tests.unit.pipeline.ship_shop import documents_of, drain, jsonl, lines_of, open_ship_shop, rows_of, rule, table
from tests.unit.pipeline.shop import put_book


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    return install(tmp_path, monkeypatch, "one")[0]


@pytest.fixture
def server() -> Iterator[OpenSearchLike]:
    server = OpenSearchLike()
    yield server
    server.stop()


def scripted(script: str = "one", sink: str = "sink.scripted", *, guards: bool = False, **more: Any) -> dict[str, Any]:
    return rule(sink, {"type": "SCRIPTED", "script": script, "guards": guards}, **more)


def opensearch(server: OpenSearchLike, **more: Any) -> dict[str, Any]:
    return rule("sink.search", {"type": "OPENSEARCH", "url": server.url, "index": "books"}, **more)


def put_books(app: App, count: int, **more: Any) -> None:
    shop = app.tenant("shop")
    for number in range(count):
        put_book(shop, f"{number:04}", **more)


def drain_until(app: App, is_done: Callable[[], bool], *, limit_s: float = 20) -> None:
    end = time.monotonic() + limit_s
    while not is_done():
        assert time.monotonic() < end, f"not done in time: {app.sinks.list()}"
        drain(app)
        time.sleep(0.02)


def answer_for(script: Script, answers: dict[str, list[Shipped]]) -> None:
    """Answer like this for the next states of these books, and SHIPPED for all else."""

    def answering(parcels: Sequence[Parcel]) -> list[Shipped]:
        waiting = [answers.get(parcel.document.doc_id.removeprefix("shop__")) for parcel in parcels]
        return [each.pop(0) if each else SHIPPED for each in waiting]

    script.answering = answering


def times_sent(script: Script) -> dict[str, int]:
    ids = [doc_id for doc_id, _ in script.states]
    return {doc_id.removeprefix("shop__"): ids.count(doc_id) for doc_id in ids}


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
        assert 25 < (status.resting_s or 0) <= 30
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


@pytest.mark.parametrize("status", [429, 503])
def test_a_sink_that_asks_to_be_left_alone_is(
    store: Store, tmp_path: Path, server: OpenSearchLike, status: int
) -> None:
    server.overloaded = True
    with open_ship_shop(store, tmp_path, opensearch(server)) as (app, _):
        put_books(app, 3)
        for _ in range(3):
            drain(app)
        assert len(server.requests) == 1
        [found] = app.sinks.list()
        # Retry-After is 7 seconds, and more than it would have rested.
        assert 5 < (found.resting_s or 0) <= 7 and "429" in (found.reason or "")


def test_a_dead_sink_costs_as_little_with_many_documents_as_with_few(
    store: Store, tmp_path: Path, script: Script
) -> None:
    down = retry("cannot be reached", is_down=True)
    script.answering = lambda parcels: [down] * len(parcels)
    small = {"batchSize": 20}
    with open_ship_shop(store, tmp_path, scripted(commit=small), ship_rest_s=60) as (app, _):
        put_books(app, 60)
        drain(app)
        before = dict(app.catalog.engine.statements)
        for _ in range(10):
            drain(app)
        claims = ("claim_lanes", "claim_lane", "finish_lanes", "finish_lane", "lane_events", "ship_states")
        spent = {name: app.catalog.engine.statements[name] - before.get(name, 0) for name in claims}
        # Ordinary lanes are looked for as ever; of the 60 that wait, none is touched.
        assert spent["ship_states"] == spent["claim_lane"] == spent["finish_lane"] == spent["finish_lanes"] == 0
        assert len(script.batches) == 1


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
    wrong = rule(
        "sink.wrong", {"type": "SCRIPTED", "script": "one", "apiKey": "${SHOP_KEY}", "nonsense": "${SHOP_KEY}"}
    )
    unset = rule("sink.unset", {"type": "SCRIPTED", "script": "${NO_SUCH_SCRIPT}"})
    with open_ship_shop(store, tmp_path, wrong, unset, jsonl(), ship_rest_s=60) as (app, _):
        put_books(app, 2)
        assert drain(app).dead == 0
        told = {each.id: each for each in app.sinks.list()}
        assert "nonsense" in (told["sink.wrong"].reason or "")
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


def test_an_older_state_after_a_delete_is_not_shipped_though_the_sink_would_take_it(
    store: Store, tmp_path: Path, server: OpenSearchLike
) -> None:
    versions = ["0000000000001", "0000000000002", "0000000000003"]
    with open_ship_shop(store, tmp_path, opensearch(server)) as (app, shop):
        shop.ingest("BOOK", "978", {"isbn": "978", "title": "a", "price": 1}, version=versions[0])
        shop.delete("BOOK", "978", version=versions[2])
        drain(app)
        server.forget_deletes()
        shop.ingest("BOOK", "978", {"isbn": "978", "title": "b", "price": 1}, version=versions[1])
        drain(app)
        shop.ship("BOOK", "978")
        drain(app)
        assert [held[1] for held in server.documents.values()] == [None]


def test_batches_have_the_size_that_the_rule_says(store: Store, tmp_path: Path, script: Script) -> None:
    with open_ship_shop(store, tmp_path, scripted(commit={"batchSize": 7})) as (app, _):
        put_books(app, 20)
        drain(app)
        assert [len(batch) for batch in script.batches] == [7, 7, 6]


def test_a_rate_limit_holds_for_all_workers(store: Store, tmp_path: Path, script: Script) -> None:
    with open_ship_shop(store, tmp_path, scripted(commit={"batchSize": 100, "perSecond": 25})) as (app, _):
        put_books(app, 50)
        started = time.monotonic()
        threads = [threading.Thread(target=lambda: app.worker(1).drain()) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        drain_until(app, lambda: len(script.parcels) == 50)
        # 25 at once, and the others when these have had their second.
        assert time.monotonic() - started >= 0.9
        assert max(len(batch) for batch in script.batches) <= 25


def test_the_lease_is_looked_at_again_before_an_unguarded_sink_is_asked(
    store: Store, tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody takes lanes over while documents are being made: they are his to ship."""
    from analemma.pipeline import shipping

    with open_ship_shop(store, tmp_path, scripted()) as (app, shop):
        put_books(app, 4)

        def steal(name: str) -> None:
            if name == shipping.AFTER_READ:
                monkeypatch.setattr(shipping, "hit", lambda name: None)
                key = {"tenant": shop.id, "aggregatetype": "SLICE", "aggregateid": "shop:BOOK#shop#0002#sink.scripted"}
                app.catalog.engine.execute("steal_lane", **key)

        monkeypatch.setattr(shipping, "hit", steal)
        install_statement(app, monkeypatch)
        done = drain(app)
        assert done.lost == 1
        assert sorted(times_sent(script)) == ["0000", "0001", "0003"]


def install_statement(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim by another worker, as a statement."""
    from analemma.catalog import postgres_transaction, statements

    text = (
        "-- steal_lane --\n-- For a test.\nUPDATE lane SET fence = fence + 1 "
        "WHERE tenant = :tenant AND aggregatetype = :aggregatetype AND aggregateid = :aggregateid\n"
    )
    dialect = app.catalog.engine.dialect
    found = statements.parse(text, dialect)["steal_lane"]
    monkeypatch.setitem(statements.load(dialect), "steal_lane", found)
    if dialect == "postgres":
        monkeypatch.setitem(postgres_transaction._queries(), "steal_lane", found.sql.encode())


HOSTILE = [
    {},
    {"entityKey": "BOOK#other#978"},
    {"entityKey": "BOOK#shop#979"},
    {"entityKey": ["BOOK"]},
    {"entityKey": "BOOK#shop"},
    {"version": 7},
    {"version": "zzzzzzzzzzzzz"},
    {"shipSeq": 1},
    {"shipSeq": "-1"},
    {"shipSeq": "9" * 40},
    {"sink": "sink.other"},
    {"sink": None},
    {"shipMode": "SOMEHOW"},
    {"shipMode": {"a": []}},
]


@pytest.mark.parametrize("change", HOSTILE, ids=range(len(HOSTILE)))
def test_requests_that_others_wrote_are_read_with_care(
    store: Store, tmp_path: Path, script: Script, change: dict[str, Any]
) -> None:
    right = {
        "entityKey": "BOOK#shop#978",
        "version": "0000000000001",
        "shipSeq": "1",
        "sink": "sink.scripted",
        "shipMode": "CHANGED",
    }
    payload = orjson.dumps({**right, **change} if change else {})
    with open_ship_shop(store, tmp_path, scripted()) as (app, shop):
        put_book(shop, "979")
        lane = "shop:BOOK#shop#978#sink.scripted"
        event = OutboxEvent("x", "SLICE", lane, "ShipRequested", payload, channel="sink.scripted")
        app.catalog.engine.write(lambda tx: enqueue(tx, shop.id, [event], now_us=app.catalog.clock.now_us()))
        done = drain(app)
        assert done.dead == 1
        assert times_sent(script) == {"979": 1}


def test_what_is_not_json_is_a_dead_letter(store: Store, tmp_path: Path, script: Script) -> None:
    with open_ship_shop(store, tmp_path, scripted()) as (app, shop):
        put_book(shop, "978")
        lane = "shop:BOOK#shop#978#sink.scripted"
        wrong = OutboxEvent("x", "SLICE", lane, "ShipRequested", b"\xff{", channel="sink.scripted")
        app.catalog.engine.write(lambda tx: enqueue(tx, shop.id, [wrong], now_us=app.catalog.clock.now_us()))
        done = drain(app)
        # What came before it is shipped.
        assert (done.dead, times_sent(script)) == (1, {"978": 1})


def test_a_damaged_slice_does_not_keep_others_back(store: Store, tmp_path: Path, script: Script) -> None:
    with open_ship_shop(store, tmp_path, scripted()) as (app, _):
        put_books(app, 3)
    with store.open(ship_base=str(tmp_path)) as app:
        shop = app.tenant("shop")
        number = app.catalog.engine.one("entity", tenant=shop.id, type="BOOK", key="0001")
        assert number is not None
        install_damage(app, number[0])
        assert drain(app).dead == 1
        assert sorted(times_sent(script)) == ["0000", "0002"]
        [dead] = app.outbox.dead_letters().entries
        assert "is not what its hash says" in (dead.failure_reason or "")


def install_damage(app: App, number: int) -> None:
    import sqlite3

    wrong = b"\1" * 32
    if app.catalog.engine.dialect == "sqlite":
        with sqlite3.connect(Path(str(app.info()["url"])) / "catalog.db") as connection:
            connection.execute("UPDATE slice SET hash = ? WHERE entity = ? AND type = 'CORE'", (wrong, number))
        return
    import psycopg

    with psycopg.connect(app._place.url) as postgres:
        postgres.execute("UPDATE slice SET hash = %s WHERE entity = %s AND type = 'CORE'", (wrong, number))


def test_listeners_hear_what_became_of_documents_in_the_same_transaction(
    store: Store, tmp_path: Path, script: Script
) -> None:
    heard: list[ShippedRow] = []

    def listen(tx: Transaction, rows: Sequence[ShippedRow]) -> None:
        heard.extend(rows)
        assert [row.entity for row in rows] == sorted(row.entity for row in rows)
        if len(heard) == 3:
            # Whatever fails in here undoes what was recorded: it comes again.
            raise RuntimeError("not now")

    answer_for(script, {"0001": [refused("no"), refused("no")]})
    with open_ship_shop(store, tmp_path, scripted()) as (app, _):
        app.on_shipped(listen)
        put_books(app, 3)
        drain(app)
        assert app.outbox.status().dead == 0 and app.sinks.list()[0].reason == "RuntimeError: not now"
        drain_until(app, lambda: app.outbox.status().lanes == 1)
        assert [(row.doc_id, row.outcome, row.ship_seq) for row in heard[3:]] == [
            ("shop__0000", "shipped", 1),
            ("shop__0001", "refused", 1),
            ("shop__0002", "shipped", 1),
        ]


def test_sinks_are_opened_once_and_closed_in_the_end(store: Store, tmp_path: Path, script: Script) -> None:
    with open_ship_shop(store, tmp_path, scripted()) as (app, shop):
        for price in range(3):
            put_book(shop, "978", price=price)
            drain(app)
        assert (script.opened, script.closed) == (1, 0)
        app.contracts.load([scripted(version="1.1.0", description="another version")])
        put_book(shop, "978", price=9)
        drain(app)
        assert (script.opened, script.closed) == (2, 1)
    assert script.closed == 2


def test_two_workers_ship_each_state_in_order(store: Store, tmp_path: Path, script: Script) -> None:
    with open_ship_shop(store, tmp_path, scripted(commit={"batchSize": 3}), jsonl(), table(tmp_path / "t.db")) as (
        app,
        shop,
    ):
        workers = [app.worker(2) for _ in range(2)]
        threads = [threading.Thread(target=worker.run) for worker in workers]
        for thread in threads:
            thread.start()
        try:
            for price in range(15):
                for isbn in range(4):
                    put_book(shop, f"{isbn:04}", price=price)
            end = time.monotonic() + 30
            while app.outbox.status().lanes and time.monotonic() < end:
                time.sleep(0.02)
        finally:
            for worker in workers:
                worker.stop()
            for thread in threads:
                thread.join()
        assert app.outbox.status().lanes == 0
        for isbn in range(4):
            seqs = [seq for doc_id, seq in script.states if doc_id == f"shop__{isbn:04}"]
            assert seqs == sorted(seqs) and seqs[-1] == 15
            found = [
                line["shipSeq"] for line in lines_of(tmp_path / "books.jsonl") if line["docId"] == f"shop__{isbn:04}"
            ]
            assert found == sorted(found) and found[-1] == 15
            assert rows_of(tmp_path / "t.db")[f"shop__{isbn:04}"][0] == 15


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
