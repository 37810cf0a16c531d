"""A page of entities is compiled together while somebody else compiles one of them, or what they join, or loads other
contracts: each ends as it would have, had it been compiled alone and last."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.testing import failpoints
from tests.postgres_locks import beside, wait_for_waiting
from tests.stores import Store

CONTRACTS = Path(__file__).parents[2] / "examples/bookshop/contracts.yaml"
BOOKS = [f"{number}" for number in range(4)]
EVALUATED = "backfill.before_transaction"


def book(isbn: str, **more: Any) -> dict[str, Any]:
    return {"isbn": isbn, "title": f"Book {isbn}", "price": 1200, "authorId": "lem", **more}


def fill(app: analemma.App, contracts: Path = CONTRACTS) -> None:
    """An author who is compiled, and books of his that are not: nobody knows yet that they are his."""
    app.contracts.load(contracts)
    app.default.ingest("AUTHOR", "lem", {"name": "Lem"})
    app.worker(1).drain()
    app.default.ingest_many(("BOOK", isbn, book(isbn)) for isbn in BOOKS)
    leave_to_backfill(app)


def leave_to_backfill(app: analemma.App) -> None:
    """Nobody else compiles what was ingested."""
    app.worker(1, handlers={"RawDataIngested": lambda event, settle: None}).drain()


def backfill(app: analemma.App, entity_type: str = "BOOK") -> Callable[[], Any]:
    return lambda: app.backfills.execute({"types": (entity_type,)}, executor="threads:1")


def compiling(app: analemma.App, entity_type: str, id: str, how: str) -> AbstractContextManager[Any]:
    """A compile that is evaluated and not written: of a page, or of one entity alone."""
    if how == "in a page":
        return failpoints.paused(EVALUATED, backfill(app, entity_type))
    return failpoints.paused("compile.before_transaction", lambda: app.default.compile(entity_type, id, mode="full"))


def rename(app: analemma.App) -> None:
    """Give the author another name, and have every book follow that is known to be his."""
    app.default.ingest("AUTHOR", "lem", {"name": "Stanisław Lem"})
    app.default.compile("AUTHOR", "lem")
    app.worker(1).drain()


def authors(app: analemma.App) -> set[object]:
    found = [app.default.slices("BOOK", isbn)["ENRICHED"].data or {} for isbn in BOOKS]
    return {each.get("author", {}).get("name") for each in found}


def prices(app: analemma.App) -> list[object]:
    found = [app.default.slices("BOOK", isbn)["PRICE"].data or {} for isbn in BOOKS]
    return [each["amount"]["minor"] for each in found]


def test_a_join_that_changed_before_a_page_was_written_is_read_again(store: Store) -> None:
    """Guard: a page is written only if nothing that it joined was compiled since."""
    with store.open() as app, store.open() as other:
        fill(app)
        with failpoints.paused(EVALUATED, backfill(app)) as held:
            rename(other)
            done = held.go_on()
        assert authors(app) == {"Stanisław Lem"}
        assert (done.counts.done, done.counts.changed) == (len(BOOKS), len(BOOKS))


def test_nobody_compiles_what_a_page_joins_before_that_is_committed(migrated_url: str, tmp_path: Path) -> None:
    """Guard: a page on PostgreSQL locks what it joins. Whoever looked for the books of the author before they are
    committed would not find them, and they would stay as they are."""
    store = Store(migrated_url, str(tmp_path / "objects"))
    with store.open() as app, store.open() as other:
        fill(app)
        with (
            failpoints.paused("backfill.before_advance", backfill(app)) as held,
            beside(lambda: rename(other)) as renaming,
        ):
            wait_for_waiting(store.url, renaming)
            held.go_on()
        other.worker(1).drain()
        assert authors(app) == {"Stanisław Lem"}


def test_what_somebody_compiled_meanwhile_is_not_replaced_by_a_page(store: Store) -> None:
    """Guard: a page is written only if none of its entities was compiled since it was read."""
    with store.open() as app, store.open() as other:
        fill(app)
        with failpoints.paused(EVALUATED, backfill(app)) as held:
            other.default.ingest("BOOK", "2", book("2", price=1, tags=["new"]))
            other.default.compile("BOOK", "2")
            done = held.go_on()
        assert prices(app) == [1200, 1200, 1, 1200]
        assert [each.entity_id for each in app.default.view("view.book.detail.v1").search("tag", "new")] == ["2"]
        assert (done.counts.done, done.counts.failed) == (len(BOOKS), 0)
        assert app.backfills.verify().ok


def test_nobody_compiles_an_entity_of_a_page_before_that_is_committed(migrated_url: str, tmp_path: Path) -> None:
    """Guard: a page on PostgreSQL holds what it compiles until it is committed. Whoever came between would have an
    older version written over his."""
    store = Store(migrated_url, str(tmp_path / "objects"))
    with store.open() as app, store.open() as other:
        fill(app)

        def change_price() -> None:
            other.default.ingest("BOOK", "2", book("2", price=1))
            other.default.compile("BOOK", "2")

        with (
            failpoints.paused("backfill.before_advance", backfill(app)) as held,
            beside(change_price) as changing,
        ):
            wait_for_waiting(store.url, changing)
            assert held.go_on().counts.failed == 0
        assert prices(app) == [1200, 1200, 1, 1200]
        assert app.backfills.verify().ok


@pytest.mark.parametrize("how", ["in a page", "alone"])
def test_what_others_join_by_contracts_that_came_meanwhile_tells_them(store: Store, tmp_path: Path, how: str) -> None:
    """Guard: compiles are written only by the contracts that are loaded. By others, nobody who joins their entities by
    now would hear of them."""
    older = tmp_path / "older.yaml"
    # Only authors: nobody joins them.
    older.write_text("---\n".join(CONTRACTS.read_text().split("---\n")[:2]))
    with store.open() as app, store.open() as other:
        app.contracts.load(older)
        app.default.ingest("AUTHOR", "lem", {"name": "Lem"})
        leave_to_backfill(app)
        with compiling(app, "AUTHOR", "lem", how) as held:
            other.contracts.load(CONTRACTS)
            other.default.ingest_many(("BOOK", isbn, book(isbn)) for isbn in BOOKS)
            other.worker(1).drain()
            assert authors(other) == {None}
            held.go_on()
        app.worker(1).drain()
        assert authors(app) == {"Lem"}


@pytest.mark.parametrize("how", ["in a page", "alone"])
def test_nothing_is_compiled_by_contracts_that_were_replaced(store: Store, how: str) -> None:
    """Guard: the same, for those who would read what is compiled."""
    with store.open() as app, store.open() as other:
        fill(app)
        held: AbstractContextManager[Any]
        if how == "in a page":
            backfill(app)()
            app.default.ingest("AUTHOR", "lem", {"name": "S. Lem"})
            held = failpoints.paused("fanout.before_transaction", lambda: app.worker(1).drain())
        else:
            held = compiling(app, "BOOK", "2", how)
        with held as late:
            rules = other.contracts.get("ruleset.book.v1").document
            rules |= {"version": "2.0.0", "indexes": [*rules["indexes"], {"type": "title", "selector": "$.title"}]}
            schema = other.contracts.get("entity.book.v1").document
            schema |= {"version": "2.0.0", "ruleSetRef": {"id": rules["id"], "version": "2.0.0"}}
            other.contracts.load([rules, schema])
            backfill(other)()
            late.go_on()
        app.worker(1).drain()
        assert {str(app.default.slices("BOOK", isbn)["CORE"].ruleset) for isbn in BOOKS} == {"ruleset.book.v1@2.0.0"}
        assert app.backfills.verify().ok


@pytest.mark.parametrize("who", ["the same author", "a book"])
def test_a_fanout_overtaken_in_its_page_leaves_nobody_behind(store: Store, who: str) -> None:
    """Guard: the page of a fanout, too, is written only if nothing of it was compiled since it was read."""
    with store.open() as app, store.open() as other:
        fill(app)
        backfill(app)()
        app.default.ingest("AUTHOR", "lem", {"name": "S. Lem"})
        with failpoints.paused("fanout.before_transaction", lambda: app.worker(1).drain()) as held:
            if who == "a book":
                other.default.ingest("BOOK", "2", book("2", price=1))
                other.default.compile("BOOK", "2")
            else:
                rename(other)
            held.go_on()
        app.worker(1).drain()
        assert authors(app) == {"S. Lem" if who == "a book" else "Stanisław Lem"}
        assert prices(app) == [1200, 1200, 1 if who == "a book" else 1200, 1200]
        assert app.backfills.verify().ok


def test_a_change_that_is_heard_while_a_late_page_is_at_work_goes_around_once_more(
    store: Store, tmp_path: Path
) -> None:
    """Guard: a fanout is over when everything that was asked of it was asked before its last page was read. Pages
    beyond the limit have a lane of their own, so that others hear of changes meanwhile."""
    limited = tmp_path / "limited.yaml"
    limited.write_text(CONTRACTS.read_text().replace("maxFanout: 10000", "maxFanout: 2"))
    with store.open(fanout_page=1) as app, store.open() as other:
        fill(app, limited)
        backfill(app)()
        app.default.ingest("AUTHOR", "lem", {"name": "S. Lem"})
        # Two at once, and then those that may come later.
        with failpoints.paused("fanout.before_transaction", lambda: app.worker(1).drain(), time=len(BOOKS)) as held:
            assert app.fanouts.get("AUTHOR", "lem").status == "DEFERRED"
            rename(other)
            held.go_on()
        app.worker(1).drain()
        assert authors(app) == {"Stanisław Lem"}
