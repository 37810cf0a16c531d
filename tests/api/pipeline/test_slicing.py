"""Compiling versions: what is written, what is not, and what each version then has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from analemma import App, CompileMode, Tenant
from analemma.errors import Conflict, Corrupt, Invalid, NotFound
from tests.api.pipeline.shop import book, open_shop, open_store, put_author, put_book
from tests.api.pipeline.tables import query, row_counts, rows_added
from tests.stores import Store

COMMON = {"version": "1.0.0", "status": "ACTIVE", "entityType": "PART"}
SCHEMA = {"kind": "ENTITY_SCHEMA", "id": "entity.part", **COMMON, "fields": [{"name": "f0", "type": "int"}]}


def wide(version: str = "1.0.0", *, count: int = 20, **more: Any) -> dict[str, Any]:
    """A ruleset of many slices, each of a field of its own."""
    slices = [
        {"type": f"S{number}", "buildRules": [{"type": "PassThrough", "fields": [f"f{number}"]}]}
        for number in range(count)
    ]
    return {"kind": "RULESET", "id": "ruleset.part", **COMMON, "version": version, "slices": slices, **more}


@contextmanager
def open_parts(store: Store, ruleset: dict[str, Any] | None = None) -> Iterator[Tenant]:
    with open_part_store(store, ruleset) as (_, shop):
        yield shop


@contextmanager
def open_part_store(store: Store, ruleset: dict[str, Any] | None = None) -> Iterator[tuple[App, Tenant]]:
    with store.open() as app:
        app.contracts.load([SCHEMA, ruleset or wide(ignore=["note"])])
        yield app, app.tenant("shop")


def part(**changes: Any) -> dict[str, Any]:
    return {**{f"f{number}": number for number in range(20)}, **changes}


def entries(store: Store) -> list[tuple[Any, ...]]:
    return query(
        store,
        "SELECT found.key, entry.index_type, entry.value, target.key FROM index_entry AS entry"
        " JOIN entity AS found ON found.id = entry.entity LEFT JOIN entity AS target ON target.id = entry.target"
        " ORDER BY 1, 2, 3, 4",
    )


def test_an_edit_of_one_slice_in_twenty_writes_one(store: Store) -> None:
    with open_parts(store) as shop:
        shop.ingest("PART", "1", part())
        first = shop.compile("PART", "1")
        assert first.mode is CompileMode.FULL and len(first.written) == 20
        shop.ingest("PART", "1", part(f7=70))
        before = row_counts(store)
        made = shop.compile("PART", "1")
        assert rows_added(store, before) == {"compile": 1, "slice": 1, "block": 1}
        assert (made.mode, made.written, len(made.unchanged)) == (CompileMode.INCREMENTAL, ("S7",), 19)
        assert made.impacted == {"S7": ("/f7",)} and not made.no_change
        assert shop.slices("PART", "1")["S7"].data == {"f7": 70}


def test_a_change_that_touches_no_slice_writes_a_compile_only(store: Store) -> None:
    with open_parts(store) as shop:
        shop.ingest("PART", "1", part())
        shop.compile("PART", "1")
        version = shop.ingest("PART", "1", part(note="x")).version
        before = row_counts(store)
        made = shop.compile("PART", "1")
        assert made.no_change and made.written == () and not made.up_to_date
        assert rows_added(store, before) == {"compile": 1}
        found = shop.slices("PART", "1", version)
        assert len(found) == 20 and all(each.version < version for each in found.values())


@pytest.mark.parametrize("mode", ["auto", "full", "incremental"])
def test_compiling_what_is_compiled_writes_nothing(store: Store, mode: str) -> None:
    with open_shop(store) as shop:
        put_author(shop, "lem", "Lem")
        put_book(shop, "1", authorId="lem")
        before = row_counts(store)
        made = shop.compile("BOOK", "1", mode=mode)
        assert made.up_to_date and made.no_change and made.revision == 1
        assert rows_added(store, before) == {}


def test_full_writes_no_more_than_incremental(store: Store) -> None:
    with open_parts(store) as shop:
        shop.ingest("PART", "1", part())
        shop.compile("PART", "1")
        shop.ingest("PART", "1", part(f7=70))
        before = row_counts(store)
        made = shop.compile("PART", "1", mode="full")
        assert made.mode is CompileMode.FULL and made.written == ("S7",)
        assert rows_added(store, before) == {"compile": 1, "slice": 1, "block": 1}


def test_incremental_needs_something_to_begin_with(store: Store) -> None:
    with open_part_store(store) as (app, shop):
        shop.ingest("PART", "1", part())
        with pytest.raises(Conflict):
            shop.compile("PART", "1", mode="incremental")
        shop.compile("PART", "1")
        shop.ingest("PART", "1", part(f1=5))
        assert shop.compile("PART", "1", mode="incremental").mode is CompileMode.INCREMENTAL
        app.contracts.load(wide("2.0.0", count=3, ignore=["note", *(f"f{n}" for n in range(3, 20))]))
        shop.ingest("PART", "1", part(f1=6))
        with pytest.raises(Conflict):
            shop.compile("PART", "1", mode="incremental")
        made = shop.compile("PART", "1")
        assert made.mode is CompileMode.FULL
        assert set(made.tombstones.values()) == {"NOT_IN_RULESET"} and len(made.tombstones) == 17
        found = shop.slices("PART", "1")
        assert found["S1"].ruleset == "ruleset.part@2.0.0" and found["S5"].data is None


def test_a_change_that_nothing_accounts_for_any_more_is_refused(store: Store) -> None:
    with open_part_store(store, wide(ignore=["note", "surprise"])) as (app, shop):
        shop.ingest("PART", "1", part())
        shop.compile("PART", "1")
        shop.ingest("PART", "1", part(surprise=1))
        app.contracts.load(wide("1.0.1", ignore=["note"]))
        before = row_counts(store)
        with pytest.raises(Invalid) as refused:
            shop.compile("PART", "1")
        assert refused.value.facts["paths"] == ["/surprise"]
        assert rows_added(store, before) == {}
        assert shop.compile("PART", "1", mode="full").no_change


def test_what_is_not_there_cannot_be_compiled(store: Store) -> None:
    with open_parts(store) as shop:
        with pytest.raises(NotFound):
            shop.compile("PART", "1")
        version = shop.ingest("PART", "1", part()).version
        with pytest.raises(NotFound):
            shop.compile("PART", "1", "0000000000001")
        with pytest.raises(Invalid):
            shop.compile("PART", "1", "x")
        with pytest.raises(Invalid):
            shop.compile("PART", "1", mode="some")
        with pytest.raises(NotFound):
            shop.slices("PART", "1")
        shop.compile("PART", "1", version)
        with pytest.raises(NotFound):
            shop.slices("PART", "1", "0000000000001")
        with pytest.raises(NotFound):
            shop.slices("PART", "2")


def test_a_late_version_does_not_leak_into_later_ones(store: Store) -> None:
    with open_parts(store) as shop:
        versions = [f"000000000000{number}" for number in range(1, 6)]
        for number in (0, 2, 4):
            shop.ingest("PART", "1", part(f0=0, f1=number), version=versions[number])
            shop.compile("PART", "1", versions[number])
        shop.ingest("PART", "1", part(f0=9, f1=1), version=versions[1])
        before = row_counts(store)
        made = shop.compile("PART", "1", versions[1])
        assert made.written == ("S0", "S1")
        # Its own two, and the value of S0 that version 3 had from version 1.
        assert rows_added(store, before) == {"compile": 1, "slice": 3, "block": 2}
        shop.ingest("PART", "1", part(f0=8, f1=4), version=versions[3])
        shop.compile("PART", "1", versions[3])
        found = [shop.slices("PART", "1", version) for version in versions]
        assert [each["S0"].data for each in found] == [{"f0": number} for number in (0, 9, 0, 8, 0)]
        assert [each["S1"].data for each in found] == [{"f1": number} for number in (0, 1, 2, 4, 4)]
        assert shop.slices("PART", "1")["S0"].data == {"f0": 0}


def test_a_late_version_of_a_wider_ruleset_does_not_leak_either(store: Store) -> None:
    with open_part_store(store, wide(count=1, ignore=[f"f{number}" for number in range(1, 20)])) as (app, shop):
        shop.ingest("PART", "1", part(), version="0000000000003")
        shop.compile("PART", "1")
        app.contracts.load(wide("1.1.0", count=2, ignore=[f"f{number}" for number in range(2, 20)]))
        shop.ingest("PART", "1", part(f1=7), version="0000000000002")
        shop.compile("PART", "1", "0000000000002")
        assert set(shop.slices("PART", "1", "0000000000002")) == {"S0", "S1"}
        assert set(shop.slices("PART", "1", "0000000000003")) == {"S0"}
        # Whoever reads rows of a type, and not what a version has, finds a tombstone.
        rows = query(store, "SELECT version, tombstone FROM slice WHERE type = 'S1' ORDER BY version")
        assert rows == [(2, None), (3, "NOT_IN_RULESET")]


def test_an_old_version_compiled_again_does_not_leak(store: Store) -> None:
    with open_shop(store) as shop:
        put_author(shop, "lem", "Lem")
        first = put_book(shop, "1", authorId="lem")
        second = put_book(shop, "1", authorId="lem", price=5)
        put_author(shop, "lem", "Stanislaw")
        made = shop.compile("BOOK", "1", first)
        assert (made.written, made.revision) == (("ENRICHED",), 2)
        names = [shop.slices("BOOK", "1", version)["ENRICHED"].data for version in (first, second)]
        assert [each["author"]["name"] for each in names if each] == ["Stanislaw", "Lem"]
        shop.compile("BOOK", "1", second)
        assert shop.slices("BOOK", "1", second)["ENRICHED"].revision == 2


def test_entries_follow_the_newest_version_and_keep_their_case(store: Store) -> None:
    with open_shop(store) as shop:
        put_book(shop, "1", authorId="Lem", tags=["SF", "sf"])
        assert [row[2:] for row in entries(store)] == [("Lem", "Lem"), ("SF", None), ("sf", None)]
        put_book(shop, "1", authorId="other", tags=["sf"])
        assert [row[2:] for row in entries(store)] == [("other", "other"), ("sf", None)]
        shop.ingest("BOOK", "1", book("1", authorId="late", tags=["late"]), version="0000000000001")
        shop.compile("BOOK", "1", "0000000000001")
        assert [row[2:] for row in entries(store)] == [("other", "other"), ("sf", None)]
        shop.delete("BOOK", "1")
        shop.compile("BOOK", "1")
        assert entries(store) == []


def test_a_deleted_entity_has_tombstones_and_its_versions_stay(store: Store) -> None:
    with open_shop(store) as shop:
        version = put_book(shop, "1", tags=["sf"])
        shop.delete("BOOK", "1")
        made = shop.compile("BOOK", "1")
        assert set(made.tombstones.values()) == {"DELETED"}
        assert all(each.data is None for each in shop.slices("BOOK", "1").values())
        assert shop.slices("BOOK", "1", version)["CORE"].data == {"isbn": "1", "title": "Book 1", "tags": ["sf"]}
        put_book(shop, "1")
        assert shop.slices("BOOK", "1")["CORE"].data == {"isbn": "1", "title": "Book 1"}


DAMAGES = {
    "hash": "UPDATE {table} SET hash = (SELECT min(hash) FROM {table}) WHERE root IS NOT NULL",
    "root": "UPDATE {table} SET root = (SELECT min(root) FROM {table}) WHERE root IS NOT NULL",
    "body": "UPDATE block SET body = (SELECT min(body) FROM block) WHERE id IN (SELECT root FROM {table})",
}


@pytest.mark.parametrize("table", ["slice", "raw"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_was_tampered_with_is_found(store: Store, table: str, damage: str) -> None:
    with open_shop(store) as shop:
        for isbn in "12":
            put_book(shop, isbn, title=isbn * 3)
            shop.ingest("BOOK", isbn, book(isbn, title=isbn * 4))
    found = []
    query(store, DAMAGES[damage].format(table=table))
    with store.open() as app:
        shop = app.tenant("shop")
        for isbn in "12":
            try:
                if table == "slice":
                    shop.slices("BOOK", isbn)
                else:
                    shop.compile("BOOK", isbn)
            except Corrupt as exc:
                found.append(exc)
    # One of them may be what all were made to be.
    assert found


def test_threads_that_ingest_and_compile_one_entity_lose_nothing(store: Store) -> None:
    failures: list[BaseException] = []
    with open_store(store) as (app, shop):
        put_author(shop, "lem", "Lem")
        made: list[str] = []

        def work(number: int) -> None:
            try:
                for turn in range(8):
                    made.append(shop.ingest("BOOK", "1", book("1", price=100 * number + turn, authorId="lem")).version)
                    shop.compile("BOOK", "1")
                    if number == 0:
                        put_author(shop, "lem", f"Lem {turn}")
            except BaseException as exc:
                failures.append(exc)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == [] and len(set(made)) == 32
        app.worker(2).drain()
        newest = max(made)
        found = shop.slices("BOOK", "1")
        assert found == shop.slices("BOOK", "1", newest)
        assert found["ENRICHED"].data == {"author": {"name": "Lem 7", "origin": {"country": "PL"}}}
        assert all(shop.slices("BOOK", "1", version)["PRICE"].data for version in made)


def test_a_compile_in_full_does_not_need_what_was_before(store: Store) -> None:
    with open_shop(store) as shop:
        put_author(shop, "a", "one")
        shop.ingest("AUTHOR", "a", {"name": "two"})
    query(store, "DELETE FROM block WHERE id = (SELECT root FROM raw ORDER BY version LIMIT 1)")
    with store.open() as app:
        shop = app.tenant("shop")
        with pytest.raises(Corrupt):
            shop.compile("AUTHOR", "a")
        assert shop.compile("AUTHOR", "a", mode="full").written
        assert (shop.slices("AUTHOR", "a")["SUMMARY"].data or {})["name"] == "two"
