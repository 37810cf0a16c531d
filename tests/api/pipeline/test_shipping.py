"""The chain from ingest to sinks, with a real worker: what is shipped, when, and under which number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analemma import ContractProblems
from analemma.errors import Invalid, NotFound
from tests.api.pipeline.ship_shop import (
    documents_of,
    drain,
    jsonl,
    lines_of,
    open_ship_shop,
    rows_of,
    rule,
    shop_contracts,
    table,
)
from tests.api.pipeline.shop import book, put_author, put_book
from tests.api.pipeline.tables import query
from tests.stores import Store


def requests_of(store: Store) -> list[tuple[str, str, Any]]:
    """Id, type and payload of every ship request of a book, in order."""
    rows = query(
        store,
        "SELECT id, type, payload FROM outbox WHERE aggregatetype = 'SLICE' AND aggregateid = ? ORDER BY seq",
        "shop:BOOK#shop#978#sink.file",
    )
    return [(id, kind, json.loads(bytes(payload))) for id, kind, payload in rows]


def test_what_is_ingested_reaches_every_sink(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl(), table(tmp_path / "t.db")) as (app, shop):
        shop.ingest("AUTHOR", "lem", {"name": "Lem", "country": "PL"})
        for isbn in ("978", "979"):
            shop.ingest("BOOK", isbn, book(isbn, authorId="lem"))
        drain(app)
        body = {
            "isbn": "978",
            "title": "Book 978",
            "amount": {"minor": 1200},
            "author": {"name": "Lem", "origin": {"country": "PL"}},
        }
        assert documents_of(tmp_path / "books.jsonl")["shop__978"] == body
        found = rows_of(tmp_path / "t.db")
        assert sorted(found) == ["shop__978", "shop__979"]
        assert found["shop__978"][1] == body
        assert app.outbox.status().pending == 0


def test_a_document_has_its_slices_in_the_order_of_the_ruleset(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        put_author(shop, "lem", "Lem")
        put_book(shop, "978", authorId="lem")
        drain(app)
        assert list(documents_of(tmp_path / "books.jsonl")["shop__978"]) == ["isbn", "title", "amount", "author"]


def test_a_compile_asks_for_the_sinks_whose_slices_changed(store: Store, tmp_path: Path) -> None:
    core = jsonl("sink.core", "core.jsonl")
    core["input"]["sliceTypes"] = ["CORE"]
    price = jsonl("sink.price", "price.jsonl")
    price["input"]["sliceTypes"] = ["PRICE"]
    with open_ship_shop(store, tmp_path, core, price) as (app, shop):
        shop.ingest("BOOK", "978", book("978"))
        first = shop.compile("BOOK", "978")
        shop.ingest("BOOK", "978", book("978", price=900))
        second = shop.compile("BOOK", "978")
        assert first.ships == ("sink.core", "sink.price") and second.ships == ("sink.price",)
        assert (first.ship_seq, second.ship_seq) == (1, 2)
        drain(app)
        # Both requests for the price were answered by one document.
        assert [line["shipSeq"] for line in lines_of(tmp_path / "price.jsonl")] == [2]
        assert [line["shipSeq"] for line in lines_of(tmp_path / "core.jsonl")] == [2]


def test_nothing_is_shipped_of_what_did_not_change(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        put_book(shop, "978")
        drain(app)
        shop.ingest("BOOK", "978", book("978", audit={"by": "ann"}))
        done = shop.compile("BOOK", "978")
        assert (done.no_change, done.ships, done.ship_seq) == (True, (), 1)
        assert shop.compile("BOOK", "978").up_to_date
        drain(app)
        assert len(lines_of(tmp_path / "books.jsonl")) == 1


def test_a_type_without_sink_rules_asks_for_nothing(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        put_author(shop, "lem", "Lem")
        assert shop.compile("AUTHOR", "lem").ships == ()
        assert drain(app).dead == 0
        assert not (tmp_path / "books.jsonl").exists()


def test_a_version_below_the_newest_ships_nothing(store: Store, tmp_path: Path) -> None:
    versions = ["0000000000001", "0000000000002", "0000000000003"]
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        for number in (0, 2, 1):
            shop.ingest("BOOK", "978", book("978", price=number), version=versions[number])
            shop.compile("BOOK", "978", versions[number])
        drain(app)
        assert [line["body"]["amount"] for line in lines_of(tmp_path / "books.jsonl")] == [{"minor": 2}]
        assert lines_of(tmp_path / "books.jsonl")[0]["shipSeq"] == 2


def test_requests_become_one_document_of_the_newest_state(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        for price in range(20):
            put_book(shop, "978", price=price)
        done = drain(app)
        assert [(line["shipSeq"], line["body"]["amount"]) for line in lines_of(tmp_path / "books.jsonl")] == [
            (20, {"minor": 19})
        ]
        assert done.delivered >= 20 and app.outbox.status().lanes == 0


def test_a_delete_is_shipped_and_so_is_what_comes_after_it(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl(), table(tmp_path / "t.db")) as (app, shop):
        put_book(shop, "978")
        drain(app)
        shop.delete("BOOK", "978")
        drain(app)
        assert rows_of(tmp_path / "t.db")["shop__978"] == (2, None)
        assert documents_of(tmp_path / "books.jsonl") == {}
        put_book(shop, "978", price=7)
        drain(app)
        assert rows_of(tmp_path / "t.db")["shop__978"][0] == 3
        assert documents_of(tmp_path / "books.jsonl")["shop__978"]["amount"] == {"minor": 7}


def test_an_entity_without_any_of_a_rules_slices_is_deleted_in_its_sink(store: Store, tmp_path: Path) -> None:
    contracts = shop_contracts(jsonl("sink.all"), enriched := jsonl("sink.enriched", "enriched.jsonl"))
    enriched["input"]["sliceTypes"] = ["ENRICHED"]
    for each in contracts:
        if each["kind"] == "RULESET" and each["entityType"] == "BOOK":
            next(kind for kind in each["slices"] if kind["type"] == "ENRICHED")["joins"][0]["required"] = True
    with store.open(ship_base=str(tmp_path)) as app:
        app.contracts.load(contracts)
        shop = app.tenant("shop")
        put_author(shop, "lem", "Lem")
        put_book(shop, "978", authorId="lem")
        drain(app)
        assert list(documents_of(tmp_path / "enriched.jsonl")) == ["shop__978"]
        shop.delete("AUTHOR", "lem")
        drain(app)
        assert [line["op"] for line in lines_of(tmp_path / "enriched.jsonl")] == ["upsert", "delete"]
        # The other one has slices left: it becomes a document without these.
        assert "author" not in documents_of(tmp_path / "books.jsonl")["shop__978"]


def test_a_request_says_where_to_look_and_no_more(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (_, shop):
        version = put_book(shop, "978")
        [(_, kind, payload)] = requests_of(store)
        assert kind == "ShipRequested"
        assert payload == {
            "payloadVersion": "1.0",
            "tenantId": "shop",
            "entityKey": "BOOK#shop#978",
            "version": version,
            "shipSeq": "1",
            "sink": "sink.file",
            "shipMode": "CHANGED",
        }


def test_what_a_sink_has_is_shipped_again_only_on_request(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        version = put_book(shop, "978")
        drain(app)
        asked = shop.ship("BOOK", "978", force=False)
        assert (asked.entity, asked.version, asked.ship_seq, asked.sinks) == (
            "BOOK#shop#978",
            version,
            1,
            ("sink.file",),
        )
        drain(app)
        assert [line["shipSeq"] for line in lines_of(tmp_path / "books.jsonl")] == [1]
        asked_again = shop.ship("BOOK", "978")
        drain(app)
        assert asked_again.ship_seq == 1
        assert [line["shipSeq"] for line in lines_of(tmp_path / "books.jsonl")] == [1, 1]
        for _ in range(2):
            shop.ship("BOOK", "978", sinks=["sink.file"])
            drain(app)
        assert len(lines_of(tmp_path / "books.jsonl")) == 4


def test_a_replayed_request_is_carried_out(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        put_book(shop, "978")
        drain(app)
        [(id, _, _)] = requests_of(store)
        assert app.outbox.replay(id, tenant="shop").copied == 1
        drain(app)
        assert len(lines_of(tmp_path / "books.jsonl")) == 2


def test_asking_for_what_cannot_be_shipped_is_not_found(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (_, shop):
        shop.ingest("BOOK", "978", book("978"))
        with pytest.raises(NotFound, match="is not compiled"):
            shop.ship("BOOK", "978")
        with pytest.raises(NotFound, match="there is no BOOK#shop#1"):
            shop.ship("BOOK", "1")
        with pytest.raises(NotFound, match="no sink rule other ships"):
            shop.ship("BOOK", "978", sinks=["other"])
        with pytest.raises(NotFound, match="no sink rule ships entities of type AUTHOR"):
            shop.ship("AUTHOR", "lem")
        with pytest.raises(Invalid):
            shop.ship("BOOK", "a#b")


def test_a_new_sink_rule_ships_what_is_compiled_from_then_on(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        put_book(shop, "978")
        app.contracts.load([jsonl("sink.late", "late.jsonl")])
        put_book(shop, "979")
        drain(app)
        assert sorted(documents_of(tmp_path / "late.jsonl")) == ["shop__979"]
        shop.ship("BOOK", "978", sinks=["sink.late"])
        drain(app)
        assert sorted(documents_of(tmp_path / "late.jsonl")) == ["shop__978", "shop__979"]


def test_a_rule_that_was_removed_ships_nothing_and_leaves_what_there_is(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        put_book(shop, "978")
        drain(app)
        put_book(shop, "978", price=7)
        app.contracts.load([{**jsonl(), "status": "ARCHIVED"}])
        assert drain(app).dead == 0
        assert app.outbox.status().lanes == 0
        put_book(shop, "979")
        drain(app)
        assert len(lines_of(tmp_path / "books.jsonl")) == 1


def test_a_rule_with_another_target_ships_there_from_then_on(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        put_book(shop, "978")
        drain(app)
        app.contracts.load([jsonl(name="other.jsonl", version="1.1.0")])
        put_book(shop, "979")
        shop.ship("BOOK", "978")
        drain(app)
        assert sorted(documents_of(tmp_path / "other.jsonl")) == ["shop__978", "shop__979"]
        assert len(lines_of(tmp_path / "books.jsonl")) == 1


@pytest.mark.parametrize("pattern", ["{tenantId}__{entityId}__{version}", "{entityId}-{shipSeq}"])
def test_a_document_id_with_the_version_is_refused(store: Store, tmp_path: Path, pattern: str) -> None:
    with store.open() as app, pytest.raises(ContractProblems, match="unknown placeholder"):
        app.contracts.load(shop_contracts(jsonl(docId={"pattern": pattern})))


def test_two_types_under_one_document_id_are_refused(store: Store, tmp_path: Path) -> None:
    both = {"type": "SLICE", "entityTypes": ["BOOK", "AUTHOR"]}
    with store.open() as app:
        with pytest.raises(ContractProblems, match="is the same for a BOOK and a AUTHOR of one id"):
            app.contracts.load(shop_contracts(jsonl(input=both)))
        # Where the target tells them apart, or the id does, this is not what is wrong.
        for told_apart in (
            jsonl(input=both, name="{entityType}.jsonl"),
            jsonl(input=both, docId={"pattern": "{entityType}.{entityId}"}),
        ):
            with pytest.raises(ContractProblems) as caught:
                app.contracts.load(shop_contracts(told_apart))
            assert "is the same for" not in str(caught.value)


def test_two_entities_of_one_document_id_do_not_share_it(store: Store, tmp_path: Path) -> None:
    """Tenants `a` and `a__b`: an entity of one could pass for one of the other."""
    with open_ship_shop(store, tmp_path, jsonl(), table(tmp_path / "t.db")) as (app, _):
        put_book(app.tenant("a__b"), "c", price=1)
        drain(app)
        put_book(app.tenant("a"), "b__c", price=2)
        assert drain(app).dead == 2
        assert rows_of(tmp_path / "t.db")["a__b__c"][1]["amount"] == {"minor": 1}
        assert len(lines_of(tmp_path / "books.jsonl")) == 1
        [dead, _] = app.outbox.dead_letters(tenant="a").entries
        assert "is that of another entity" in (dead.failure_reason or "")


def test_places_of_their_own_for_tenants_allow_one_document_id(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl(name="{tenantId}.jsonl", docId={"pattern": "{entityId}"})) as (app, _):
        for tenant in ("one", "two"):
            put_book(app.tenant(tenant), "978", title=tenant)
        drain(app)
        assert documents_of(tmp_path / "one.jsonl")["978"]["title"] == "one"
        assert documents_of(tmp_path / "two.jsonl")["978"]["title"] == "two"


def test_ship_names_rules_that_exist(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl(), jsonl("sink.other", "other.jsonl")) as (app, shop):
        with pytest.raises(NotFound, match="nowhere"):
            shop.deploy("BOOK", "978", book("978"), ship=["nowhere"])
        shop.deploy("BOOK", "978", book("978"), ship=["sink.other"])
        drain(app)
        assert list(documents_of(tmp_path / "other.jsonl")) == ["shop__978"]
        shop.deploy("BOOK", "978", book("978", price=5), ship=[])
        drain(app)
        assert len(lines_of(tmp_path / "other.jsonl")) == 1 and not (tmp_path / "books.jsonl").exists()


def test_a_rule_of_other_slices_is_a_rule_of_its_own(store: Store, tmp_path: Path) -> None:
    every = rule("sink.all", {"type": "JSONL", "path": "all.jsonl"}, input={"type": "SLICE", "entityTypes": ["BOOK"]})
    with open_ship_shop(store, tmp_path, every) as (app, shop):
        put_book(shop, "978")
        drain(app)
        assert set(documents_of(tmp_path / "all.jsonl")["shop__978"]) >= {"isbn", "title", "amount"}
