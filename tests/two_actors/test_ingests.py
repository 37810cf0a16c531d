"""Two ingest versions of one entity at the same time: both are there, and the newest is the newest."""

from __future__ import annotations

import pytest

import analemma
from analemma.errors import Conflict
from analemma.testing import failpoints
from tests.stores import Store
from tests.two_actors.test_joins import BOOK, CONTRACTS


def book(price: int) -> dict[str, object]:
    return {**BOOK, "price": price}


def newest_price(app: analemma.App) -> object:
    app.default.compile("BOOK", "1")
    return app.default.slices("BOOK", "1")["PRICE"].data


def test_what_was_overtaken_comes_behind_what_overtook_it(store: Store) -> None:
    """Guard: a version is written only if its entity stands where it was seen. It would hide the newer one."""
    with store.open() as app, store.open() as other:
        app.contracts.load(CONTRACTS)
        app.default.ingest("BOOK", "1", book(1))
        with failpoints.paused("ingest.looked", lambda: app.default.ingest("BOOK", "1", book(2))) as held:
            second = other.default.ingest("BOOK", "1", book(3))
            first = held.go_on()
        assert first.created and second.created and first.version > second.version
        assert newest_price(app) == newest_price(other)
        assert not app.default.ingest("BOOK", "1", book(2)).created


def test_what_somebody_else_has_stored_meanwhile_is_not_stored_again(store: Store) -> None:
    with store.open() as app, store.open() as other:
        app.contracts.load(CONTRACTS)
        with failpoints.paused("ingest.looked", lambda: app.default.ingest("BOOK", "1", book(1))) as held:
            second = other.default.ingest("BOOK", "1", book(1))
            first = held.go_on()
        assert second.created and (first.created, first.version) == (False, second.version)


@pytest.mark.parametrize("price", [2, 3], ids=["same", "other"])
def test_a_version_that_two_name_at_once_is_one_of_them(store: Store, price: int) -> None:
    """Guard: a version below the newest does not move its entity; its own row tells the second that it is there."""
    with store.open() as app, store.open() as other:
        app.contracts.load(CONTRACTS)
        old = app.default.ingest("BOOK", "2", book(1)).version
        app.default.ingest("BOOK", "1", book(1))

        def late() -> object:
            try:
                return app.default.ingest("BOOK", "1", book(2), version=old).created
            except Conflict:
                return "conflict"

        with failpoints.paused("ingest.looked", late) as held:
            assert other.default.ingest("BOOK", "1", book(price), version=old).created
            assert held.go_on() == (False if price == 2 else "conflict")
