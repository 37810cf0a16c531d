"""Fanouts that do not go well: failed compiles, events that are lost, repeated or forged."""

from __future__ import annotations

import json
from typing import Any

from analemma import App, FanoutState
from analemma.errors import Unavailable
from analemma.testing.events import OutboxEvent, produce
from tests.api.pipeline.fanout_shop import failing, fanout_of, names, rename, shop_with_books, slice_rows
from tests.api.pipeline.tables import query
from tests.stores import Store


def lose_the_next_page(app: App) -> None:
    """The fanout is begun, and the event is lost that has it go on."""
    app.worker(1, handlers={"FanoutContinued": lambda event, settle: None}).drain()


def forge(app: App, type: str, lane: str, tenant: str = "shop", **payload: Any) -> str:
    """An event that somebody else wrote; its id."""
    named = {"tenantId": tenant, "entityKey": "AUTHOR#shop#lem", "version": "0000000000001", **payload}
    event = OutboxEvent(f"forged {lane}", "CHANGESET", lane, type, json.dumps(named).encode())
    return produce(app, [event], tenant=tenant)[0]


def test_one_that_cannot_be_compiled_is_a_dead_letter_and_the_others_go_on(store: Store) -> None:
    with shop_with_books(store, 5):
        pass
    query(
        store,
        "UPDATE raw SET hash = ? WHERE entity = (SELECT id FROM entity WHERE type = 'BOOK' AND key = '002')",
        b"x" * 32,
    )
    with store.open() as app:
        shop = app.tenant("shop")
        shop.ingest("AUTHOR", "lem", {"name": "Stanislaw"})
        done = app.worker(2).drain()
        assert done.dead == 1
        result = fanout_of(app)
        assert (result.status, result.affected, result.processed, result.failed) == (FanoutState.DONE, 5, 4, 1)
        (letter,) = app.outbox.dead_letters(type="CompileRequested").entries
        assert letter.aggregate_id == "shop:BOOK#shop#002"
        assert letter.failure_reason is not None and letter.failure_reason.startswith("corrupt")
        assert names(shop, 5) == {"Stanislaw", "Lem"}


def test_a_page_that_failed_often_is_asked_for_one_by_one(store: Store) -> None:
    with shop_with_books(store, 12) as (app, shop):
        rename(shop, "Stanislaw")
        with failing("fanout.before_transaction", Unavailable("out of reach"), times=2):
            done = app.worker(1).drain()
        assert (done.failed, done.dead) == (2, 0)
        result = fanout_of(app)
        assert (result.status, result.failed, result.processed) == (FanoutState.DONE, 10, 2)
        asked = query(store, "SELECT count(*) FROM outbox WHERE type = 'CompileRequested' AND status = 'PROCESSED'")
        assert asked == [(10,)]
        assert names(shop, 12) == {"Stanislaw"}


def test_a_page_and_its_acknowledgement_are_one(store: Store) -> None:
    with shop_with_books(store, 3) as (app, shop):
        before = slice_rows(store)["ENRICHED"]
        rename(shop, "Stanislaw")
        seen: list[Any] = []
        with failing("fanout.before_commit", Unavailable("out of reach"), times=1):
            app.worker(1, handlers={"CompileRequested": lambda event, settle: seen.append(event)}).drain()
        assert seen == []
        assert (fanout_of(app).processed, slice_rows(store)["ENRICHED"]) == (3, before + 3)


def test_a_change_and_its_acknowledgement_are_one(store: Store) -> None:
    with shop_with_books(store, 3) as (app, shop):
        rename(shop, "Stanislaw")
        with failing("fanout.asked", Unavailable("out of reach"), times=1):
            assert app.worker(1).drain().failed == 1
        assert (fanout_of(app).passes, fanout_of(app).processed) == (1, 3)
        assert names(shop, 3) == {"Stanislaw"}


def test_a_fanout_whose_event_was_discarded_is_resumed(store: Store) -> None:
    with shop_with_books(store, 5) as (app, shop):
        rename(shop, "Stanislaw")
        lose_the_next_page(app)
        app.worker(1).drain()
        assert fanout_of(app).status is FanoutState.QUEUED
        assert app.fanouts.resume("AUTHOR", "lem", tenant="shop").status is FanoutState.QUEUED
        app.worker(1).drain()
        assert names(shop, 5) == {"Stanislaw"}
        # Nothing is under way: nothing is added.
        app.fanouts.resume("AUTHOR", "lem", tenant="shop")
        assert app.worker(1).drain().delivered == 0


def test_another_change_makes_it_go_on_whatever_became_of_the_event_before(store: Store) -> None:
    with shop_with_books(store, 5) as (app, shop):
        rename(shop, "Second")
        lose_the_next_page(app)
        shop.ingest("AUTHOR", "lem", {"name": "Third"})
        app.worker(1).drain()
        assert names(shop, 5) == {"Third"}


def test_events_that_go_on_from_nowhere_are_refused(store: Store) -> None:
    with shop_with_books(store, 1) as (app, _):
        app.tenant("other")
        wrong: list[Any] = [None, 1, "", "-1", "1 or 1=1", "9" * 19, "x", ["1"]]
        ids = [forge(app, "FanoutContinued", f"lane {at}", step=step) for at, step in enumerate(wrong)]
        other = forge(app, "FanoutContinued", "lane of another", tenant="other", step="1")
        assert app.worker(1).drain().dead == len(wrong) + 1
        told = {id: app.outbox.get(id).failure_reason or "" for id in (*ids, other)}
        assert "another tenant" in told.pop(other)
        assert [id for id, reason in told.items() if "goes on from nowhere" not in reason] == []


def test_steps_that_are_over_and_entities_that_are_not_there_do_nothing(store: Store) -> None:
    with shop_with_books(store, 3) as (app, shop):
        rename(shop, "Stanislaw")
        lose_the_next_page(app)
        before = slice_rows(store)
        ((step,),) = query(store, "SELECT step FROM fanout")
        for wrong in step - 1, step + 1, 10**17:
            forge(app, "FanoutContinued", f"lane {wrong}", step=str(wrong))
        forge(app, "FanoutContinued", "lane of nobody", step="1", entityKey="AUTHOR#shop#nobody")
        done = app.worker(1).drain()
        assert (done.delivered, done.failed, done.dead) == (4, 0, 0)
        assert (fanout_of(app).status, slice_rows(store)) == (FanoutState.QUEUED, before)


def test_an_event_of_an_earlier_release_tells_all_again(store: Store) -> None:
    with shop_with_books(store, 3) as (app, shop):
        rename(shop, "Stanislaw")
        # Nothing is done for those of today.
        app.worker(1, handlers={"FanoutRequested": lambda event, settle: None}).drain()
        assert names(shop, 3) == {"Lem"}
        version = shop.slices("AUTHOR", "lem")["SUMMARY"].version
        forge(app, "FanoutRequested", "lane", version=version, cursor="2", sliceTypes=["SUMMARY"])
        app.worker(1).drain()
        assert names(shop, 3) == {"Stanislaw"}
