"""Fanouts as jobs: pages, changes that come meanwhile, the limit, several levels, and what is told of them."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from analemma import FanoutState, load_contracts, retry
from analemma.errors import Invalid, NotFound
from tests.api.pipeline.fanout_shop import (
    COUNT,
    drain_by_pages,
    fanout_of,
    names,
    rename,
    shop_with_books,
    slice_rows,
)
from tests.api.pipeline.scripted_shop import scripted
from tests.api.pipeline.ship_shop import shop_contracts
from tests.api.pipeline.shop import book, put_author
from tests.api.pipeline.tables import query
from tests.core.contracts.bookshop import EXAMPLE
from tests.scripted_sink import Script
from tests.stores import Store


def test_a_fanout_compiles_its_dependants_in_pages_and_nothing_else(store: Store) -> None:
    with shop_with_books(store) as (app, shop):
        before = slice_rows(store)
        rename(shop, "Stanislaw")
        counted = drain_by_pages(app)
        assert [each.processed for each in counted] == [10, 20, 25]
        assert [each.status for each in counted] == [FanoutState.RUNNING, FanoutState.RUNNING, FanoutState.DONE]
        done = counted[-1]
        assert (done.affected, done.processed, done.skipped, done.failed, done.passes) == (25, 25, 0, 0, 1)
        (part,) = done.dependencies
        assert (part.entity_type, part.index_type, part.affected, part.processed) == ("BOOK", "author", 25, 25)
        assert (part.limit, part.deferred, part.finished, done.alert) == (10_000, False, True, None)
        assert names(shop) == {"Stanislaw"}
        after = slice_rows(store)
        assert {kind: after[kind] - before[kind] for kind in after} == {
            "SUMMARY": 1,
            "PROFILE": 1,
            "ENRICHED": 25,
            "CORE": 0,
            "PRICE": 0,
            "INVENTORY": 0,
        }


def test_two_renames_in_quick_succession_end_with_the_second(store: Store) -> None:
    with shop_with_books(store) as (app, shop):
        for name in "Second", "Third":
            shop.ingest("AUTHOR", "lem", {"name": name})
        done = app.worker(2).drain()
        assert (done.failed, done.dead) == (0, 0)
        assert names(shop) == {"Third"}
        result = fanout_of(app)
        assert result.status is FanoutState.DONE
        assert result.processed + result.skipped <= 2 * COUNT


def test_changes_while_nothing_moves_are_one_pass(store: Store) -> None:
    with shop_with_books(store) as (app, shop):
        for number in range(7):
            rename(shop, f"Name {number}")
        app.worker(1).drain()
        result = fanout_of(app)
        assert (result.passes, result.processed, result.skipped) == (1, COUNT, 0)
        assert names(shop) == {"Name 6"}


def test_a_change_on_the_way_goes_around_once_more_from_there(store: Store) -> None:
    with shop_with_books(store) as (app, shop):
        rename(shop, "Second")
        later = iter(["Third", "Fourth"])

        def rename_all() -> None:
            for name in later:
                rename(shop, name)

        drain_by_pages(app, rename_all)
        result = fanout_of(app)
        assert (result.status, result.passes) == (FanoutState.DONE, 2)
        # Ten had seen the second name; the others see the last one only.
        assert result.processed == COUNT + 10
        assert names(shop) == {"Fourth"}


def test_whoever_nobody_joins_has_no_fanout(store: Store) -> None:
    with shop_with_books(store, 1) as (app, shop):
        put_author(shop, "other", "Other")
        app.worker(1).drain()
        with pytest.raises(NotFound, match="AUTHOR#shop#other has no fanout"):
            app.fanouts.get("AUTHOR", "other", tenant="shop")


def test_beyond_the_limit_the_rest_waits_with_an_alert_and_is_done(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    contracts = [each.document for each in load_contracts(EXAMPLE).contracts]
    (ruleset,) = [each for each in contracts if each["id"] == "ruleset.book.v1"]
    limited = {**ruleset, "indexes": [{**ruleset["indexes"][0], "maxFanout": 12}, ruleset["indexes"][1]]}
    limited.pop("checksum", None)
    chosen = [limited if each["id"] == "ruleset.book.v1" else each for each in contracts]
    due = "SELECT aggregateid, priority FROM lane WHERE due_at IS NOT NULL AND channel = '' ORDER BY 2"
    with shop_with_books(store, contracts=chosen) as (app, shop):
        rename(shop, "Stanislaw")
        caplog.clear()
        told: list[Any] = []
        with caplog.at_level(logging.WARNING, "analemma.pipeline"):
            counted = drain_by_pages(
                app, lambda: told.append((app.fanouts.status(), app.fanouts.alerts("shop"), query(store, due)))
            )
        (said,) = [each.getMessage() for each in caplog.records]
        assert said.startswith("fanout of AUTHOR#shop#lem: 25 BOOK.author follow it, of which 12 at once")
        assert counted[0].status is FanoutState.RUNNING
        assert (counted[1].status, counted[1].processed, counted[1].priority) == (FanoutState.DEFERRED, 12, 100)
        status, page, lanes = told[1]
        (alerted,) = page.fanouts
        assert alerted.alert is not None and alerted.alert in said
        assert (status.deferred, status.running, status.alerts, status.visited, status.affected) == (1, 0, 1, 12, 25)
        assert status.alerts_under_way == 1
        # It comes after everything else.
        assert ("shop:AUTHOR#shop#lem#deferred", 100) in lanes
        assert names(shop) == {"Stanislaw"}
        done = fanout_of(app)
        assert (done.status, done.processed, done.alert) == (FanoutState.DONE, 25, alerted.alert)
        assert len(app.fanouts.alerts().fanouts) == 1 and not app.fanouts.list(under_way=True).fanouts
        assert (app.fanouts.status().alerts, app.fanouts.status().alerts_under_way) == (1, 0)


def test_the_limit_of_the_settings_is_for_indexes_without_one(store: Store) -> None:
    documents = three_levels(required=False)
    with store.open(fanout_page=2, fanout_limit=3) as app:
        app.contracts.load(documents)
        shop = app.tenant("shop")
        shop.ingest_many([("TOWN", str(number), {"name": "x", "landId": "l"}) for number in range(7)])
        app.worker(1).drain()
        shop.ingest("LAND", "l", {"name": "Land"})
        app.worker(1).drain()
        result = app.fanouts.get("LAND", "l", tenant="shop")
        assert (result.status, result.processed) == (FanoutState.DONE, 7)
        assert result.alert == "7 TOWN.land follow it, of which 3 at once and the others when there is time"


def three_levels(*, required: bool) -> list[dict[str, Any]]:
    """A house is in a town, which is in a land."""
    common = {"version": "1.0.0", "status": "ACTIVE"}
    fields = [{"name": each, "type": "string"} for each in ("name", "landId", "townId")]

    def ruleset(kind: str, joined: str | None) -> dict[str, Any]:
        slices: dict[str, Any] = {"type": "OWN", "buildRules": {"type": "PassThrough", "fields": ["name"]}}
        made: dict[str, Any] = {"kind": "RULESET", "id": f"ruleset.{kind.lower()}.v1", "entityType": kind, **common}
        if joined is None:
            return {**made, "slices": [{**slices, "type": "ALL"}, slices], "ignore": ["/landId", "/townId"]}
        field = f"{joined.lower()}Id"
        join = {
            "name": joined.lower(),
            "type": "LOOKUP",
            "sourceFieldPath": field,
            "targetEntityType": joined,
            "targetSliceType": "ALL",
            "targetKeyPattern": f"{joined}#{{tenantId}}#{{value}}",
            "required": required,
        }
        rules = {"type": "PassThrough", "fields": ["name", joined.lower()]}
        other = "/townId" if joined == "LAND" else "/landId"
        return {
            **made,
            "slices": [{"type": "ALL", "buildRules": rules, "joins": [join]}, slices],
            "indexes": [{"type": joined.lower(), "selector": f"$.{field}", "references": joined}],
            "ignore": [other],
        }

    kinds = {"LAND": None, "TOWN": "LAND", "HOUSE": "TOWN"}
    schemas = [
        {"kind": "ENTITY_SCHEMA", "id": f"entity.{kind.lower()}.v1", "entityType": kind, "fields": fields, **common}
        for kind in kinds
    ]
    return [*schemas, *(ruleset(kind, joined) for kind, joined in kinds.items())]


@pytest.mark.parametrize("required", [False, True])
def test_a_change_arrives_through_several_levels(store: Store, required: bool) -> None:
    with store.open(fanout_page=2) as app:
        app.contracts.load(three_levels(required=required))
        shop = app.tenant("shop")
        # Everything before what it refers to.
        for number in range(5):
            shop.ingest("HOUSE", str(number), {"name": f"h{number}", "townId": str(number % 3)})
        for number in range(3):
            shop.ingest("TOWN", str(number), {"name": f"t{number}", "landId": "l"})
        app.worker(2).drain()

        def land_of(house: int) -> Any:
            data = shop.slices("HOUSE", str(house))["ALL"].data
            assert data is not None
            return data["town"].get("land")

        if required:
            assert all(shop.slices("HOUSE", str(number))["ALL"].tombstone for number in range(5))
        else:
            assert [land_of(number) for number in range(5)] == [None] * 5
        shop.ingest("LAND", "l", {"name": "Poland"})
        app.worker(2).drain()
        assert [land_of(number) for number in range(5)] == [{"name": "Poland"}] * 5
        shop.ingest("LAND", "l", {"name": "Polska"})
        app.worker(2).drain()
        assert [land_of(number) for number in range(5)] == [{"name": "Polska"}] * 5
        shop.delete("LAND", "l")
        app.worker(2).drain()
        if required:
            assert all(shop.slices("HOUSE", str(number))["ALL"].tombstone for number in range(5))
            assert all(shop.slices("TOWN", str(number))["ALL"].tombstone for number in range(3))
        else:
            assert [land_of(number) for number in range(5)] == [None] * 5
        shop.ingest("LAND", "l", {"name": "Again"})
        app.worker(2).drain()
        assert [land_of(number) for number in range(5)] == [{"name": "Again"}] * 5


def test_what_is_served_and_what_is_newest_both_follow(store: Store, script: Script) -> None:
    with shop_with_books(store, 3, shop_contracts(scripted()), ship_rest_s=600, ship_rest_max_s=600) as (app, shop):
        served = shop.slices("BOOK", "001")["CORE"].version
        script.answering = lambda parcels: [retry("down", is_down=True)] * len(parcels)
        # Readers get it when the sink has it.
        newer = shop.deploy("BOOK", "001", book("001", authorId="lem", title="Newer"), cutover="done").version
        app.worker(1).drain()
        rename(shop, "Stanislaw")
        app.worker(1).drain()
        result = fanout_of(app)
        assert (result.status, result.processed) == (FanoutState.DONE, 3)
        for version in None, served, newer:
            data = shop.slices("BOOK", "001", version)["ENRICHED"].data
            assert data is not None and data["author"]["name"] == "Stanislaw"
        core = shop.slices("BOOK", "001")["CORE"].data
        assert core is not None and core["title"] == "Book 001"


def test_tenants_have_fanouts_of_their_own(store: Store) -> None:
    with shop_with_books(store, 2) as (app, shop):
        other = app.tenant("other")
        other.ingest("AUTHOR", "lem", {"name": "Theirs"})
        other.ingest("BOOK", "000", book("000", authorId="lem"))
        app.worker(1).drain()
        shop.ingest("AUTHOR", "lem", {"name": "Ours"})
        app.worker(1).drain()
        data = other.slices("BOOK", "000")["ENRICHED"].data
        assert data is not None and data["author"]["name"] == "Theirs"
        assert names(shop, 2) == {"Ours"}
        assert {each.key.tenant for each in app.fanouts.list("shop").fanouts} == {"shop"}
        assert {each.key.tenant for each in app.fanouts.list().fanouts} <= {"shop", "other"}
        with pytest.raises(NotFound):
            app.fanouts.get("AUTHOR", "lem", tenant="nobody")
        with pytest.raises(NotFound):
            app.fanouts.list("nobody")


def test_lists_go_on_where_they_ended_and_housekeeping_forgets_what_is_done(store: Store) -> None:
    with store.open() as app:
        app.contracts.load(EXAMPLE)
        shop = app.tenant("shop")
        for name in "abcde":
            shop.ingest("BOOK", name, book(name, authorId=name))
        app.worker(1).drain()
        for name in "abcde":
            shop.ingest("AUTHOR", name, {"name": name})
        app.worker(1).drain()
        found, cursor = [], None
        while True:
            page = app.fanouts.list("shop", limit=2, cursor=cursor)
            found += [each.key.id for each in page.fanouts]
            cursor = page.cursor
            if cursor is None:
                break
        assert sorted(found) == list("abcde")
        page = app.fanouts.list("shop", limit=2)
        with pytest.raises(Invalid):
            app.fanouts.list(limit=2, cursor=page.cursor)
        with pytest.raises(Invalid):
            app.fanouts.list(limit=0)
        assert app.fanouts.housekeep() == 0
        assert app.fanouts.housekeep(done_after_s=-60) == 5
        assert not app.fanouts.list().fanouts


def test_the_record_is_json(store: Store) -> None:
    with shop_with_books(store, 2) as (app, shop):
        rename(shop, "Stanislaw")
        app.worker(1).drain()
        told = json.loads(json.dumps(fanout_of(app).as_dict()))
        assert (told["key"], told["status"], told["processed"]) == ("AUTHOR#shop#lem", "DONE", 2)
        assert told["dependencies"][0]["index_type"] == "author"
