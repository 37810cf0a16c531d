"""How workers ship: sizes and rates of batches, leases, order, listeners, and sinks that are opened once."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analemma import refused
from tests.api.pipeline.scripted_shop import answer_for, drain_until, put_books, scripted
from tests.api.pipeline.ship_shop import drain, jsonl, lines_of, open_ship_shop, rows_of, table
from tests.api.pipeline.shop import put_book
from tests.scripted_sink import Script
from tests.stores import Store


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


def test_listeners_hear_what_became_of_documents_in_the_same_transaction(
    store: Store, tmp_path: Path, script: Script
) -> None:
    heard: list[Any] = []
    failing = True

    def listen(tx: Any, rows: Sequence[Any]) -> None:
        heard.extend(rows)
        assert [row.entity for row in rows] == sorted(row.entity for row in rows)
        if failing:
            # Whatever fails in here undoes what was recorded: it comes again.
            raise RuntimeError("not now")

    answer_for(script, {"0001": [refused("no")] * 1000})
    with open_ship_shop(store, tmp_path, scripted()) as (app, _):
        app.on_shipped(listen)
        put_books(app, 3)
        drain(app)
        assert app.outbox.status().dead == 0 and app.sinks.list()[0].reason == "RuntimeError: not now"
        assert {row.doc_id for row in heard} == {"shop__0000", "shop__0001", "shop__0002"}
        failing = False
        heard.clear()
        drain_until(app, lambda: app.outbox.status().lanes == 1)
        assert [(row.doc_id, row.outcome, row.ship_seq) for row in heard] == [
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
