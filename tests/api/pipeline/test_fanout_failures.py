"""Fanouts that do not go well: failed compiles, others who do the same, events that are lost, repeated or forged."""

from __future__ import annotations

from typing import Any

import pytest

from analemma import Event, FanoutState
from analemma.catalog.engine import Transaction
from analemma.errors import Conflict, Invalid, Unavailable
from analemma.pipeline.handlers import handlers
from tests.api.pipeline.fanout_shop import change, go_on, names, query_one, shop_with_books, slice_rows
from tests.api.pipeline.shop import put_author, put_book
from tests.api.pipeline.tables import query
from tests.stores import Store


def test_one_that_cannot_be_compiled_is_a_dead_letter_and_the_others_go_on(store: Store) -> None:
    with shop_with_books(store, 5) as shop:
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
        result = app.fanouts.get("AUTHOR", "lem", tenant="shop")
        assert (result.status, result.affected, result.processed, result.failed) == (FanoutState.DONE, 5, 4, 1)
        (letter,) = app.outbox.dead_letters(type="CompileRequested").entries
        assert letter.aggregate_id == "shop:BOOK#shop#002"
        assert letter.failure_reason is not None and letter.failure_reason.startswith("corrupt")
        assert names(shop, 5) == {"Stanislaw", "Lem"}


def test_a_page_that_failed_often_is_asked_for_one_by_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with shop_with_books(store, 12) as shop:
        change(shop, "Stanislaw")
        compiler = shop.pipeline.fanout._compiler

        def refuse(*_: Any) -> Any:
            raise Unavailable("out of reach")

        with monkeypatch.context() as patched:
            patched.setattr(compiler, "evaluate", refuse)
            with pytest.raises(Unavailable):
                go_on(shop, attempts=1)
            result = go_on(shop, attempts=2)
            assert (result.failed, result.processed) == (10, 0)
        asked = query(store, "SELECT count(*) FROM outbox WHERE type = 'CompileRequested' AND status = 'PENDING'")
        assert asked == [(10,)]
        done = shop._app.worker(2).drain()
        assert (done.failed, done.dead) == (0, 0)
        assert names(shop, 12) == {"Stanislaw"}


def test_whoever_is_compiled_by_others_meanwhile_is_compiled_from_what_is_then(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop_with_books(store, 5) as shop, store.open() as elsewhere:
        other = elsewhere.tenant("shop")
        change(shop, "Second")
        compiler = shop.pipeline.fanout._compiler
        tries: list[frozenset[int]] = []
        write = compiler.write

        def write_later(*arguments: Any, **options: Any) -> frozenset[int]:
            overtaken = write(*arguments, **options)
            tries.append(overtaken)
            return overtaken

        evaluate = compiler.evaluate

        def evaluate_and_wait(rows: Any) -> Any:
            page = evaluate(rows)
            put_book(other, "001", authorId="lem", title="Meanwhile")
            put_book(other, "002", authorId="other")
            put_author(other, "lem", "Third")
            return page

        monkeypatch.setattr(compiler, "write", write_later)
        monkeypatch.setattr(compiler, "evaluate", evaluate_and_wait)
        result = go_on(shop)
        assert (result.status, len(tries[0]), len(tries[-1])) == (FanoutState.DONE, 5, 0)
        for number in (0, 1, 3, 4):
            data = shop.slices("BOOK", f"{number:03}")["ENRICHED"].data
            assert data is not None and data["author"]["name"] == "Third"
        assert shop.slices("BOOK", "002")["ENRICHED"].data == {}
        core = shop.slices("BOOK", "001")["CORE"].data
        assert core is not None and core["title"] == "Meanwhile"
        monkeypatch.undo()
        shop._app.worker(2).drain()
        assert shop._app.fanouts.get("AUTHOR", "lem", tenant="shop").status is FanoutState.DONE


def test_two_who_go_on_with_one_step_make_it_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with shop_with_books(store, 15) as shop, store.open(fanout_page=10) as elsewhere:
        change(shop, "Stanislaw")
        compiler = shop.pipeline.fanout._compiler
        evaluate = compiler.evaluate
        settled: list[Transaction] = []

        def after_the_other(rows: Any) -> Any:
            page = evaluate(rows)
            monkeypatch.undo()
            elsewhere.tenant("shop").pipeline.fanout.advance("AUTHOR", "lem", step)
            return page

        (step,) = query_one(shop, "SELECT step FROM fanout")
        before = slice_rows(store)["ENRICHED"]
        monkeypatch.setattr(compiler, "evaluate", after_the_other)
        result = shop.pipeline.fanout.advance("AUTHOR", "lem", step, within=settled.append)
        assert (result.processed, result.skipped, len(settled)) == (10, 0, 1)
        assert slice_rows(store)["ENRICHED"] == before + 10
        shop._app.worker(2).drain()
        assert shop._app.fanouts.get("AUTHOR", "lem", tenant="shop").processed == 15


def test_a_page_and_its_acknowledgement_are_one(store: Store) -> None:
    with shop_with_books(store, 3) as shop:
        change(shop, "Stanislaw")
        before = query(store, "SELECT step, progress FROM fanout"), slice_rows(store)

        def refuse(tx: Transaction) -> None:
            raise Conflict("the lease is lost")

        with pytest.raises(Conflict):
            go_on(shop, within=refuse)
        assert (query(store, "SELECT step, progress FROM fanout"), slice_rows(store)) == before
        version = put_author(shop, "lem", "Third")
        asked = query(store, "SELECT asked FROM fanout")
        with pytest.raises(Conflict):
            shop.pipeline.fanout.on_entity_change("AUTHOR", "lem", version, within=refuse)
        assert query(store, "SELECT asked FROM fanout") == asked


def test_a_fanout_whose_event_was_discarded_is_resumed(store: Store) -> None:
    with shop_with_books(store, 5) as shop:
        app = shop._app
        change(shop, "Stanislaw")
        query(store, "UPDATE lane SET done_seq = next_seq - 1, due_at = NULL")
        query(store, "UPDATE outbox SET status = 'DEAD', processed_at = 1 WHERE processed_at IS NULL")
        app.worker(1).drain()
        assert app.fanouts.get("AUTHOR", "lem", tenant="shop").status is FanoutState.QUEUED
        assert app.fanouts.resume("AUTHOR", "lem", tenant="shop").status is FanoutState.QUEUED
        app.worker(1).drain()
        assert names(shop, 5) == {"Stanislaw"}
        # Nothing is under way: nothing is added.
        app.fanouts.resume("AUTHOR", "lem", tenant="shop")
        assert app.worker(1).drain().delivered == 0


def test_another_change_makes_it_go_on_whatever_became_of_the_event_before(store: Store) -> None:
    with shop_with_books(store, 5) as shop:
        change(shop, "Second")
        query(store, "UPDATE lane SET done_seq = next_seq - 1, due_at = NULL")
        shop.ingest("AUTHOR", "lem", {"name": "Third"})
        shop._app.worker(1).drain()
        assert names(shop, 5) == {"Third"}


@pytest.mark.parametrize("step", [None, 1, "", "-1", "1 or 1=1", "9" * 19, "x", ["1"]])
def test_events_that_go_on_from_nowhere_are_refused(store: Store, step: Any) -> None:
    with shop_with_books(store, 1) as shop:
        found = handlers(lambda name: shop.pipeline)
        payload = {"tenantId": "shop", "entityKey": "AUTHOR#shop#lem", "version": "0000000000001", "step": step}
        event = Event("e", "shop", "CHANGESET", "", 1, "FanoutContinued", payload)
        with pytest.raises(Invalid, match="goes on from nowhere"):
            found["FanoutContinued"](event, lambda tx: None)
        other = Event("e", "other", "CHANGESET", "", 1, "FanoutContinued", {**payload, "step": "1"})
        with pytest.raises(Invalid, match="another tenant"):
            found["FanoutContinued"](other, lambda tx: None)


def test_steps_that_are_over_and_entities_that_are_not_there_do_nothing(store: Store) -> None:
    with shop_with_books(store, 3) as shop:
        fanout = shop.pipeline.fanout
        change(shop, "Stanislaw")
        (step,) = query_one(shop, "SELECT step FROM fanout")
        before = slice_rows(store)
        for wrong in step - 1, step + 1, 10**17:
            assert fanout.advance("AUTHOR", "lem", wrong).status is FanoutState.QUEUED
        assert fanout.advance("AUTHOR", "nobody", 1).status is FanoutState.NOTHING
        assert slice_rows(store) == before


def test_an_event_of_an_earlier_release_tells_all_again(store: Store) -> None:
    with shop_with_books(store, 3) as shop:
        version = put_author(shop, "lem", "Stanislaw")
        found = handlers(lambda name: shop.pipeline)
        payload = {"tenantId": "shop", "entityKey": "AUTHOR#shop#lem", "version": version, "cursor": "2"}
        event = Event("e", "shop", "CHANGESET", "", 1, "FanoutRequested", {**payload, "sliceTypes": ["SUMMARY"]})
        found["FanoutRequested"](event, lambda tx: None)
        shop._app.worker(1).drain()
        assert names(shop, 3) == {"Stanislaw"}
