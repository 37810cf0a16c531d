"""Events of the pipeline: who follows whom, exactly once, and in pages."""

from __future__ import annotations

import json
from typing import Any

from analemma import EntityKey, Tenant, load_contracts
from analemma.testing.events import OutboxEvent, produce
from tests.api.pipeline.shop import book, book_rules, open_shop, open_store, put_author, put_book
from tests.api.pipeline.tables import query, row_counts, rows_added
from tests.core.contracts.bookshop import EXAMPLE
from tests.stores import Store

AUTHOR = EntityKey("AUTHOR", "shop", "lem")


def events(store: Store, kind: str | None = None) -> list[tuple[str, str, str, dict[str, Any]]]:
    rows = query(
        store, "SELECT type, aggregatetype, aggregateid, payload FROM outbox ORDER BY created_at, aggregateid, seq"
    )
    found = [(one, lane, name, json.loads(bytes(payload))) for one, lane, name, payload in rows]
    return [each for each in found if kind in (None, each[0])]


def author_name(shop: Tenant, isbn: str) -> Any:
    data = shop.slices("BOOK", isbn)["ENRICHED"].data or {}
    return data.get("author", {}).get("name")


def test_events_name_what_happened_and_hold_no_data(store: Store) -> None:
    with open_shop(store) as shop:
        made = shop.ingest("BOOK", "1", book("1", authorId="lem"))
        written = shop.ingest("AUTHOR", "lem", {"name": "Lem"})
        shop.compile("AUTHOR", "lem")
        common = {"payloadVersion": "1.0", "tenantId": "shop"}
        by_type = {(kind, name): (lane, payload) for kind, lane, name, payload in events(store)}
        assert by_type == {
            ("RawDataIngested", "shop:BOOK#shop#1"): (
                "RAW_DATA",
                {**common, "entityKey": "BOOK#shop#1", "version": made.version},
            ),
            ("RawDataIngested", "shop:AUTHOR#shop#lem"): (
                "RAW_DATA",
                {**common, "entityKey": str(AUTHOR), "version": written.version},
            ),
            ("FanoutRequested", "shop:AUTHOR#shop#lem"): (
                "CHANGESET",
                {**common, "entityKey": str(AUTHOR), "version": written.version, "sliceTypes": ["SUMMARY"]},
            ),
        }


def test_only_a_changed_slice_that_somebody_joins_is_fanned_out(store: Store) -> None:
    with open_shop(store) as shop:
        put_author(shop, "lem", "Lem")
        assert len(events(store, "FanoutRequested")) == 1
        shop.ingest("AUTHOR", "lem", {"name": "Lem", "country": "PL", "bio": "long"})
        assert shop.compile("AUTHOR", "lem").written == ("PROFILE",)
        put_book(shop, "1", authorId="lem")
        assert len(events(store, "FanoutRequested")) == 1


def test_a_worker_compiles_what_comes_and_whoever_joins_it(store: Store) -> None:
    with open_store(store) as (app, shop):
        worker = app.worker
        shop.ingest("BOOK", "1", book("1", authorId="lem"))
        shop.ingest("BOOK", "2", book("2", authorId="other"))
        worker(2).drain()
        assert author_name(shop, "1") is None
        # It is referred to before it exists.
        shop.ingest("AUTHOR", "lem", {"name": "Lem"})
        done = worker(2).drain()
        assert (done.failed, done.dead) == (0, 0)
        assert (author_name(shop, "1"), author_name(shop, "2")) == ("Lem", None)
        assert shop.slices("BOOK", "1")["ENRICHED"].revision == 2
        shop.ingest("AUTHOR", "lem", {"name": "Stanislaw"})
        worker(2).drain()
        assert author_name(shop, "1") == "Stanislaw"
        shop.delete("AUTHOR", "lem")
        worker(2).drain()
        assert author_name(shop, "1") is None
        before = row_counts(store)
        assert worker(2).drain().delivered == 0
        assert rows_added(store, before) == {}


def test_dependants_compiled_by_an_older_ruleset_are_told(store: Store) -> None:
    """Their entries are in an index that the ruleset of today calls otherwise."""
    documents = [each.document for each in load_contracts(EXAMPLE).contracts]
    (ruleset,) = [each for each in documents if each["kind"] == "RULESET" and each["entityType"] == "BOOK"]
    renamed = [{**each, "type": "writer"} if each["type"] == "author" else each for each in ruleset["indexes"]]
    newer = {**ruleset, "version": "2.0.0", "indexes": renamed}
    (schema,) = [each for each in documents if each["kind"] == "ENTITY_SCHEMA" and each["entityType"] == "BOOK"]
    bound = {**schema, "version": "2.0.0", "ruleSetRef": {"id": ruleset["id"], "version": "2.0.0"}}
    with open_store(store) as (app, shop):
        put_author(shop, "lem", "Lem")
        put_book(shop, "1", authorId="lem")
        app.contracts.load([newer, bound])
        shop.ingest("AUTHOR", "lem", {"name": "Stanislaw"})
        app.worker(1).drain()
        assert author_name(shop, "1") == "Stanislaw"


def test_a_type_without_a_ruleset_is_kept_and_not_compiled(store: Store) -> None:
    documents = [each.document for each in load_contracts(EXAMPLE).contracts]
    (schema,) = [each for each in documents if each["kind"] == "ENTITY_SCHEMA" and each["entityType"] == "AUTHOR"]
    alone = {name: value for name, value in schema.items() if name not in ("ruleSetRef", "checksum")}
    with store.open() as app:
        app.contracts.load(alone)
        shop = app.tenant("shop")
        shop.ingest("AUTHOR", "lem", {"name": "Lem"})
        done = app.worker(1).drain()
        assert (done.delivered, done.failed, done.dead) == (1, 0, 0)


def test_a_change_that_nothing_accounts_for_any_more_is_a_dead_letter(store: Store) -> None:
    with open_store(store) as (app, shop):
        app.contracts.load(book_rules("1.0.1", ignore=lambda paths: [*paths, "/surprise"]))
        put_book(shop, "1")
        app.worker(1).drain()
        shop.ingest("BOOK", "1", book("1", surprise=1))
        app.contracts.load(book_rules("1.0.2"))
        done = app.worker(1).drain()
        assert (done.dead, done.failed) == (1, 0)


def test_events_that_name_nothing_of_their_tenant_are_dead_letters(store: Store) -> None:
    with open_store(store) as (app, shop):
        version = shop.ingest("BOOK", "1", book("1")).version
        right = {"tenantId": "shop", "entityKey": "BOOK#shop#1", "version": version}
        wrong: list[tuple[str, Any]] = [
            ("shop", {}),
            ("other", right),
            ("shop", {**right, "version": 7}),
            ("shop", {**right, "version": None}),
            ("shop", {**right, "entityKey": "BOOK"}),
            ("shop", {**right, "deployId": "x"}),
            ("shop", {**right, "deployId": 5}),
            ("shop", {**right, "compileMode": "SOMEHOW"}),
        ]
        for at, (tenant, payload) in enumerate(wrong):
            lane = f"lane {at}"
            event = OutboxEvent(lane, "RAW_DATA", lane, "RawDataIngested", json.dumps(payload).encode())
            produce(app, [event], tenant=tenant)
        done = app.worker(1).drain()
        assert (done.failed, done.dead) == (0, len(wrong))
        assert {each.id for each in app.outbox.dead_letters().entries} == {f"lane {at}" for at in range(len(wrong))}
