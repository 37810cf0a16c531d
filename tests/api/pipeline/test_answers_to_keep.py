"""What callers get is theirs: changing it changes no other answer, and no contract. And odd questions are refused."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from analemma import SHIPPED, Parcel, Shipped
from analemma.errors import Invalid, NotFound
from tests.api.pipeline.scripted_shop import scripted
from tests.api.pipeline.ship_shop import drain, open_ship_shop
from tests.api.pipeline.shop import VIEW, book, open_shop, open_store, put_book
from tests.core.contracts.bookshop import EXAMPLE, changed
from tests.scripted_sink import Script
from tests.stores import Store


def test_a_default_in_an_answer_is_not_the_contracts(store: Store, tmp_path: Path) -> None:
    text = changed("        required: false\n", "        required: true\n")
    text += "\n---\nkind: VIEW_DEFINITION\nversion: 1.0.0\nstatus: ACTIVE\nentityType: BOOK\nid: view.filled\n"
    text += "requiredSlices: [CORE, ENRICHED]\n"
    text += "fallback: {mode: DEFAULT_VALUE, defaults: {ENRICHED: {author: {names: [unknown]}}}}\n"
    file = tmp_path / "filled.yaml"
    file.write_text(text)
    with open_store(store, file) as (app, shop):
        put_book(shop, "978")
        put_book(shop, "979")
        view = shop.view("view.filled")
        expected = {"author": {"names": ["unknown"]}}
        first = view.get("978")
        first.data["ENRICHED"]["author"]["names"].append("mine")
        first.data["ENRICHED"]["more"] = 1
        assert view.get("978").data["ENRICHED"] == view.get("979").data["ENRICHED"] == expected
        found = view.many(["978", "979"])
        found.items[0].data["ENRICHED"]["author"]["names"].clear()
        assert found.items[1].data["ENRICHED"] == expected
        assert app.contracts.current.view("view.filled").defaults == {"ENRICHED": expected}


def test_a_contract_that_was_got_may_be_changed(store: Store) -> None:
    with open_store(store) as (app, _):
        contracts = app.contracts
        for version in (None, "1.0.0"):
            got = contracts.get(VIEW, version)
            assert got == contracts.current.view(VIEW)
            got.document["status"] = "DEPRECATED"
            got.document["requiredSlices"].clear()
            again = contracts.get(VIEW, version)
            assert (again.document["status"], again.document["requiredSlices"]) == ("ACTIVE", ["CORE", "PRICE"])
        # As people make the next version.
        document = contracts.get(VIEW).document
        document["version"] = "1.1.0"
        contracts.load(document)
        assert [each.version for each in contracts.list() if each.id == VIEW] == ["1.0.0", "1.1.0"]


def test_equal_slices_are_each_their_own(store: Store) -> None:
    """Two empty slices of one book, and the equal prices of two, are stored once, and handed out as often as asked."""
    with open_shop(store) as shop:
        put_book(shop, "978")
        put_book(shop, "979")
        view = shop.view(VIEW)

        one = view.get("978").data
        assert one["ENRICHED"] == one["INVENTORY"] == {}
        one["ENRICHED"]["x"] = 1
        assert one["INVENTORY"] == {}

        slices = shop.slices("BOOK", "978")
        found, other = slices["ENRICHED"].data, slices["INVENTORY"].data
        assert found is not None and slices["ENRICHED"].hash == slices["INVENTORY"].hash
        found["x"] = 1
        assert other == {}

        for answers in (view.many(["978", "979"]), view.many(["978", "978"]), view.range(), view.range("97")):
            first, second = answers.items
            first.data["PRICE"]["amount"]["minor"] = 0
            first.data["CORE"]["title"] = "mine"
            assert second.data["PRICE"] == {"amount": {"minor": 1200}}
            assert second.data["CORE"]["title"] == f"Book {second.entity_id}"
        assert view.get("978").data["PRICE"] == {"amount": {"minor": 1200}}


def test_ids_may_come_from_anything_that_gives_some(store: Store) -> None:
    with open_shop(store) as shop:
        for isbn in ("a", "b"):
            put_book(shop, isbn)
        view = shop.view(VIEW)
        sources: list[Any] = [iter(["b", "a"]), (each for each in ("b", "a")), {"b": 1, "a": 2}]
        for source in sources:
            assert [each.entity_id for each in view.many(source)] == ["b", "a"]
        wrong: Any
        for wrong, reason in ((None, "of type NoneType"), (5, "of type int"), ("ab", "one text"), ([5], "id")):
            with pytest.raises(Invalid, match=reason):
                view.many(wrong)
        with pytest.raises(Invalid, match="more than 1000 entities"):
            view.many(repeat("a"))


def test_what_is_no_text_cannot_be_searched(store: Store) -> None:
    with open_shop(store) as shop:
        put_book(shop, "978", tags=["sf"])
        for value in ("\ud800", "sf\udfff", "x" * 600 + "\ud800"):
            with pytest.raises(Invalid, match="half of a surrogate pair"):
                shop.view(VIEW).search("tag", value)
            with pytest.raises(Invalid, match="half of a surrogate pair"):
                shop.view(VIEW).count(index="tag", value=value)


def test_long_texts_and_those_of_several_bytes_are_found(store: Store) -> None:
    tags = ["é" * 256, "é" * 257, "x" * 512, "x" * 513, "\U0001f4d6" * 128, "\U0001f4d6" * 129]
    with open_shop(store) as shop:
        for number, tag in enumerate(tags):
            put_book(shop, str(number), tags=[tag])
        for number, tag in enumerate(tags):
            assert [each.entity_id for each in shop.view(VIEW).search("tag", tag)] == [str(number)]


def test_arguments_that_would_be_ignored_or_are_of_the_wrong_type_are_refused(store: Store) -> None:
    with open_store(store) as (app, shop):
        wrong: Any = 5
        with pytest.raises(Invalid, match="a value was given, and no index"):
            shop.view(VIEW).count(value="sf")
        with pytest.raises(Invalid, match="the view's version is of type int"):
            shop.view(VIEW, wrong)
        with pytest.raises(Invalid, match="the version is of type int"):
            app.contracts.get(VIEW, wrong)


def test_slices_of_a_version_that_never_was_are_not_found_as_in_a_view(store: Store) -> None:
    with open_shop(store, EXAMPLE) as shop:
        put_book(shop, "978")
        for version in ("0000000000000", "7ZZZZZZZZZZZZ", "FZZZZZZZZZZZZ"):
            with pytest.raises(NotFound, match=f"BOOK#shop#978 has no version {version}"):
                shop.slices("BOOK", "978", version)
            with pytest.raises(NotFound, match=f"BOOK 978 has no version {version}"):
                shop.view(VIEW).get("978", version)
            with pytest.raises(NotFound, match="there is no BOOK#shop#979"):
                shop.slices("BOOK", "979", version)
        later = shop.ingest("BOOK", "978", book("978", price=1)).version
        with pytest.raises(NotFound, match=f"version {later} of BOOK#shop#978 is not compiled"):
            shop.slices("BOOK", "978", later)


def test_a_sink_may_change_what_it_is_sent(store: Store, tmp_path: Path, script: Script) -> None:
    with open_ship_shop(store, tmp_path, scripted()) as (app, shop):
        seen: list[Any] = []

        def enrich(parcels: Sequence[Parcel]) -> list[Shipped]:
            for parcel in parcels:
                assert parcel.document.body is not None
                seen.append(dict(parcel.document.body["amount"]))
                parcel.document.body["amount"]["currency"] = "EUR"
            return [SHIPPED] * len(parcels)

        script.answering = enrich
        put_book(shop, "978", price=7)
        drain(app)
        shop.ship("BOOK", "978")
        drain(app)
        assert seen == [{"minor": 7}, {"minor": 7}]
