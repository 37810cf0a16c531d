"""Events of the pipeline: who follows whom, exactly once, and in pages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from analemma import App, EntityKey, Event, Tenant, load_contracts
from analemma.catalog.engine import Transaction
from analemma.errors import Conflict, Invalid
from analemma.pipeline.handlers import handlers
from tests.api.pipeline.shop import book, book_rules, open_shop, put_author, put_book, without_joins
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
    with open_shop(store) as shop:
        worker = shop._app.worker
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
    with open_shop(store) as shop:
        put_author(shop, "lem", "Lem")
        put_book(shop, "1", authorId="lem")
        shop._app.contracts.load([newer, bound])
        shop.ingest("AUTHOR", "lem", {"name": "Stanislaw"})
        shop._app.worker(1).drain()
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


def test_an_effect_and_its_acknowledgement_are_one(store: Store) -> None:
    with open_shop(store) as shop:
        version = shop.ingest("BOOK", "1", book("1")).version
        found = handlers(lambda name: shop.pipeline)
        payload = {"tenantId": "shop", "entityKey": "BOOK#shop#1", "version": version}
        event = Event("e", "shop", "RAW_DATA", "shop:BOOK#shop#1", 1, "RawDataIngested", payload)

        def refuse(tx: Transaction) -> None:
            raise Conflict("the lease is lost")

        before = row_counts(store)
        with pytest.raises(Conflict):
            found["RawDataIngested"](event, refuse)
        assert rows_added(store, before) == {}
        settled: list[Transaction] = []
        found["RawDataIngested"](event, settled.append)
        assert len(settled) == 1 and rows_added(store, before)["compile"] == 1
        # What is done already is settled by whoever delivers it.
        found["RawDataIngested"](event, refuse)
        with pytest.raises(Invalid):
            found["RawDataIngested"](Event("e", "shop", "RAW_DATA", "", 1, "RawDataIngested", {}), refuse)
        other = Event("e", "other", "RAW_DATA", "", 1, "RawDataIngested", payload)
        with pytest.raises(Invalid):
            found["RawDataIngested"](other, refuse)


def test_a_change_that_nothing_accounts_for_any_more_is_a_dead_letter(store: Store) -> None:
    with open_shop(store) as shop:
        shop._app.contracts.load(book_rules("1.0.1", ignore=lambda paths: [*paths, "/surprise"]))
        put_book(shop, "1")
        shop._app.worker(1).drain()
        shop.ingest("BOOK", "1", book("1", surprise=1))
        shop._app.contracts.load(book_rules("1.0.2"))
        done = shop._app.worker(1).drain()
        assert (done.dead, done.failed) == (1, 0)


def test_a_compile_that_read_an_old_author_does_not_stay_stale(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_shop(store) as shop, store.open() as elsewhere:
        other = elsewhere.tenant("shop")
        put_author(shop, "lem", "Lem")
        shop._app.worker(1).drain()
        shop.ingest("BOOK", "1", book("1", authorId="lem"))
        slices = shop.pipeline.slicing._slices
        tries: list[bool] = []
        write = slices.write

        def write_later(*arguments: Any, **options: Any) -> bool:
            if not tries:
                # The author changes and its fanout finds no book, after this one was built and before it is written.
                put_author(other, "lem", "Stanislaw")
                elsewhere.worker(1, tenant="shop", handlers={"RawDataIngested": lambda event, settle: None}).drain()
            written = write(*arguments, **options)
            tries.append(written)
            return written

        monkeypatch.setattr(slices, "write", write_later)
        shop.compile("BOOK", "1")
        assert tries == [False, True]
        assert author_name(shop, "1") == "Stanislaw"


def test_what_joins_by_contracts_that_came_a_moment_ago_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open() as app, store.open() as elsewhere:
        app.contracts.load(without_joins())
        shop, other = app.tenant("shop"), elsewhere.tenant("shop")
        put_author(shop, "lem", "Lem")
        put_book(shop, "1", authorId="lem")
        app.worker(1).drain()
        hold_contracts(app, monkeypatch)
        elsewhere.contracts.load(EXAMPLE)
        other.compile("BOOK", "1")
        assert author_name(other, "1") == "Lem"
        # By what this one knows, nobody joins an author.
        put_author(shop, "lem", "Stanislaw")
        elsewhere.worker(1).drain()
        assert author_name(other, "1") == "Stanislaw"
        assert elsewhere.backfills.verify({"tenant": "shop"}).ok


@pytest.mark.parametrize("together", [False, True])
def test_nothing_is_compiled_by_contracts_that_were_replaced(
    together: bool, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = book_rules(
        "2.0.0", indexes=lambda indexes: [*indexes, {"type": "title", "selector": "$.title", "references": None}]
    )
    with open_shop(store) as shop, store.open() as elsewhere:
        other = elsewhere.tenant("shop")
        put_author(shop, "lem", "Lem")
        put_book(shop, "1", authorId="lem")
        shop._app.worker(1).drain()
        hold_contracts(shop._app, monkeypatch)
        elsewhere.contracts.load(newer)
        elsewhere.backfill({"tenant": "shop"})
        if together:
            version = put_author(other, "lem", "Stanislaw")
            shop.pipeline.fanout.on_entity_change("AUTHOR", "lem", version)
            shop.pipeline.fanout.run("AUTHOR", "lem")
            assert author_name(other, "1") == "Stanislaw"
        else:
            shop.compile("BOOK", "1", mode="full")
        assert other.slices("BOOK", "1")["CORE"].ruleset == "ruleset.book.v1@2.0.0"
        assert elsewhere.backfills.verify({"tenant": "shop"}).ok


@pytest.mark.parametrize("together", [False, True])
def test_contracts_that_others_load_cost_one_attempt_more(
    together: bool, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_shop(store) as shop, store.open() as elsewhere:
        put_author(shop, "lem", "Lem")
        for isbn in ("1", "2", "3"):
            put_book(shop, isbn, authorId="lem")
        shop._app.worker(1).drain()
        monkeypatch.setattr(shop._app.contracts, "_poll_s", float("inf"))
        waits: list[float] = []
        monkeypatch.setattr(shop._app._clock, "sleep", waits.append)
        if together:
            version = put_author(shop, "lem", "Stanislaw")
            shop.pipeline.fanout.on_entity_change("AUTHOR", "lem", version)
        else:
            shop.ingest("BOOK", "1", book("1", title="Another", authorId="lem"))
        elsewhere.contracts.load(book_rules("2.0.0"))
        if together:
            shop.pipeline.fanout.run("AUTHOR", "lem")
            assert [author_name(shop, isbn) for isbn in ("1", "2", "3")] == ["Stanislaw"] * 3
        else:
            shop.compile("BOOK", "1")
        assert shop.slices("BOOK", "1")["CORE"].ruleset == "ruleset.book.v1@2.0.0"
        # Whoever is refused waits, and tries again.
        assert len(waits) == 1


def hold_contracts(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a process look for contracts of others only once it has waited for something."""
    contracts = app.contracts
    monkeypatch.setattr(contracts, "_poll_s", float("inf"))
    monkeypatch.setattr(app._clock, "sleep", lambda seconds: monkeypatch.setattr(contracts, "_poll_s", 0.0))
