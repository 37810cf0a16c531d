"""What no sink is asked for: requests that others wrote, damaged slices, states that are older than a delete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from analemma.testing.events import OutboxEvent, produce
from tests.api.pipeline.scripted_shop import opensearch, put_books, scripted, times_sent
from tests.api.pipeline.ship_shop import drain, open_ship_shop
from tests.api.pipeline.shop import put_book
from tests.api.pipeline.tables import query
from tests.scripted_sink import Script
from tests.sink_servers import OpenSearchLike
from tests.stores import Store


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


HOSTILE: list[dict[str, Any]] = [
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


LANE = "shop:BOOK#shop#978#sink.scripted"


def test_requests_that_others_wrote_are_read_with_care(store: Store, tmp_path: Path, script: Script) -> None:
    right = {
        "entityKey": "BOOK#shop#978",
        "version": "0000000000001",
        "shipSeq": "1",
        "sink": "sink.scripted",
        "shipMode": "CHANGED",
    }
    with open_ship_shop(store, tmp_path, scripted()) as (app, shop):
        put_book(shop, "979")
        for number, change in enumerate(HOSTILE):
            payload = json.dumps({**right, **change} if change else {}).encode()
            event = OutboxEvent(
                f"{number}", "SLICE", f"{LANE}{number}", "ShipRequested", payload, channel="sink.scripted"
            )
            produce(app, [event], tenant="shop")
        assert drain(app).dead == len(HOSTILE)
        assert times_sent(script) == {"979": 1}


def test_what_is_not_json_is_a_dead_letter(store: Store, tmp_path: Path, script: Script) -> None:
    with open_ship_shop(store, tmp_path, scripted()) as (app, shop):
        put_book(shop, "978")
        wrong = OutboxEvent("x", "SLICE", LANE, "ShipRequested", b"\xff{", channel="sink.scripted")
        produce(app, [wrong], tenant="shop")
        done = drain(app)
        # What came before it is shipped.
        assert (done.dead, times_sent(script)) == (1, {"978": 1})


def test_a_damaged_slice_does_not_keep_others_back(store: Store, tmp_path: Path, script: Script) -> None:
    with open_ship_shop(store, tmp_path, scripted()) as (app, _):
        put_books(app, 3)
    damage = "UPDATE slice SET hash = ? WHERE entity = (SELECT id FROM entity WHERE key = '0001') AND type = 'CORE'"
    query(store, damage, b"\1" * 32)
    with store.open(ship_base=str(tmp_path)) as app:
        assert drain(app).dead == 1
        assert sorted(times_sent(script)) == ["0000", "0002"]
        [dead] = app.outbox.dead_letters().entries
        assert "is not what its hash says" in (dead.failure_reason or "")
