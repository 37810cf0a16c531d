"""Views: what they answer, for which version, page by page; and what they say where there is no answer."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analemma import Tenant
from analemma.errors import Corrupt, Invalid, NotFound
from tests.api.pipeline.shop import VIEW, book, open_shop, open_store, put_author, put_book
from tests.api.pipeline.tables import query
from tests.core.contracts.bookshop import EXAMPLE, TEXT, changed
from tests.stores import Store


def ids(answers: Any) -> list[str]:
    return [each.entity_id for each in answers]


def all_pages(view: Any, limit: int, **question: Any) -> list[list[str]]:
    pages, cursor = [], None
    search = "index" in question
    while True:
        page = (view.search if search else view.range)(**question, limit=limit, cursor=cursor)
        pages.append(ids(page))
        cursor = page.next_cursor
        if cursor is None:
            return pages


def test_an_answer_has_the_data_by_slice_type(store: Store) -> None:
    with open_shop(store) as shop:
        put_author(shop, "lem", "Stanisław Lem")
        version = put_book(shop, "978", authorId="lem", tags=["sf"])
        found = shop.view(VIEW).get("978")
        assert list(found.data) == ["CORE", "PRICE", "ENRICHED", "INVENTORY"]
        assert found.data["CORE"]["title"] == "Book 978"
        assert found.data["PRICE"] == {"amount": {"minor": 1200}}
        assert found.data["ENRICHED"] == {"author": {"name": "Stanisław Lem", "origin": {"country": "PL"}}}
        meta = found.meta
        assert (meta.view, meta.entity_key, meta.version) == (f"{VIEW}@1.0.0", "BOOK#shop#978", version)
        assert meta.used_contracts == (f"{VIEW}@1.0.0", "ruleset.book.v1@1.0.0", "entity.book.v1@1.0.0")
        assert meta.missing_slices == ()
        assert not meta.staleness.is_stale and meta.staleness.ruleset_is_current
        assert {name: each.hash for name, each in meta.slices.items()} == {
            name: each.hash for name, each in shop.slices("BOOK", "978").items()
        }


def test_an_older_version_can_be_asked_for(store: Store) -> None:
    with open_shop(store) as shop:
        first = put_book(shop, "978")
        second = put_book(shop, "978", price=900)
        view = shop.view(VIEW)
        assert view.get("978").meta.version == second
        assert view.get("978", first).data["PRICE"] == {"amount": {"minor": 1200}}
        assert view.get("978", second).data["PRICE"] == {"amount": {"minor": 900}}
        # What did not change was written by the first version.
        assert view.get("978").meta.slices["CORE"].version == first


def test_what_was_ingested_and_not_compiled_is_not_answered_and_told(store: Store) -> None:
    with open_shop(store) as shop:
        view = shop.view(VIEW)
        shop.ingest("BOOK", "978", book("978"))
        with pytest.raises(NotFound, match="BOOK 978 was ingested and is not compiled yet"):
            view.get("978")
        first = shop.compile("BOOK", "978").version
        second = shop.ingest("BOOK", "978", book("978", price=1)).version
        found = view.get("978")
        assert found.data["PRICE"] == {"amount": {"minor": 1200}}
        assert found.meta.staleness.is_stale
        assert (found.meta.staleness.serving_version, found.meta.staleness.newest_version) == (first, second)
        with pytest.raises(NotFound, match=f"version {second} of BOOK 978 was ingested and is not compiled"):
            view.get("978", second)


@pytest.mark.parametrize("version", ["0000000000000", "7ZZZZZZZZZZZZ", "FZZZZZZZZZZZZ"])
def test_a_version_that_does_not_exist_is_not_found(version: str, store: Store) -> None:
    with open_shop(store) as shop:
        put_book(shop, "978")
        with pytest.raises(NotFound, match=f"BOOK 978 has no version {version}"):
            shop.view(VIEW).get("978", version)


def test_what_can_be_no_version_or_id_is_refused(store: Store) -> None:
    with open_shop(store) as shop:
        view = shop.view(VIEW)
        with pytest.raises(Invalid, match="not a version"):
            view.get("978", "1")
        for odd in ("", "a#b", "x" * 600, "\ud800", " 978"):
            with pytest.raises(Invalid, match="not an entity id"):
                view.get(odd)
            with pytest.raises(Invalid, match="not an entity id"):
                view.many(["978", odd])


def test_an_entity_that_was_deleted_is_not_found_and_the_error_says_when(store: Store) -> None:
    with open_shop(store) as shop:
        version = put_book(shop, "978", tags=["sf"])
        put_book(shop, "979", tags=["sf"])
        before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=5)
        shop.delete("BOOK", "978")
        view = shop.view(VIEW)
        # Until it is compiled, the deletion is only ingested.
        assert view.get("978").meta.staleness.is_stale
        shop.compile("BOOK", "978")
        with pytest.raises(NotFound, match="BOOK 978 was deleted at 20") as caught:
            view.get("978")
        assert before < caught.value.deleted_at < dt.datetime.now(dt.UTC) + dt.timedelta(seconds=5)
        assert ids(view.range()) == ids(view.search("tag", "sf")) == ["979"]
        assert view.count() == view.count(index="tag", value="sf") == 1
        (unanswered,) = view.many(["978", "979"]).unanswered
        assert unanswered.deleted_at == caught.value.deleted_at
        assert view.get("978", version).data["CORE"]["title"] == "Book 978"
        put_book(shop, "978")
        assert ids(view.range()) == ["978", "979"]


def test_what_never_was_is_not_found(store: Store) -> None:
    with open_shop(store) as shop:
        # A book that refers to an author makes a row for him; he does not exist all the same.
        put_book(shop, "978", authorId="lem")
        for entity in ("979", "lem"):
            with pytest.raises(NotFound, match=f"there is no BOOK {entity}"):
                shop.view(VIEW).get(entity)
        with pytest.raises(NotFound, match=r"there is no view view\.nope"):
            shop.view("view.nope")
    with store.open() as app, pytest.raises(NotFound, match="there is no BOOK 978"):
        app.tenant("other").view(VIEW).get("978")


def test_without_contracts_a_view_says_how_to_load_some(store: Store) -> None:
    with store.open() as app, pytest.raises(NotFound, match="no contracts are loaded"):
        app.tenant("shop").view(VIEW)


def test_many_keeps_the_order_and_reports_what_is_missing(store: Store) -> None:
    with open_shop(store) as shop:
        for isbn in ("a", "b", "c"):
            put_book(shop, isbn)
        shop.ingest("BOOK", "raw", book("raw"))
        found = shop.view(VIEW).many(["c", "nope", "a", "c", "raw"])
        assert ids(found) == ["c", "a", "c"]
        assert [(each.entity_id, each.reason) for each in found.unanswered] == [
            ("nope", "there is no BOOK nope"),
            ("raw", "BOOK raw was ingested and is not compiled yet"),
        ]
        assert len(shop.view(VIEW).many([])) == 0
        with pytest.raises(Invalid, match="one text"):
            shop.view(VIEW).many("978")
        with pytest.raises(Invalid, match="1001 entities"):
            shop.view(VIEW).many([str(number) for number in range(1001)])


IDS = ["0", "978", "978 1", "9780", "978é", "978\U0010ffff", "979", "A", "a", "b", "É", "é", "한국", "\U0001f4d6"]


def test_pages_have_every_entity_once_in_the_order_of_ids(store: Store) -> None:
    with open_shop(store) as shop:
        for number, isbn in enumerate(sorted(IDS, key=len)):
            put_book(shop, isbn, tags=["sf", "sf"] if number % 2 else [])
        for limit in (1, 2, 3, 5, 13, 14, 100):
            check_pages(shop.view(VIEW), limit)


def check_pages(view: Any, limit: int) -> None:
    pages = all_pages(view, limit)
    assert [each for page in pages for each in page] == sorted(IDS)
    assert all(len(page) == limit for page in pages[:-1]) and 0 < len(pages[-1]) <= limit
    assert [each for page in all_pages(view, limit, prefix="978") for each in page] == [
        each for each in sorted(IDS) if each.startswith("978")
    ]
    assert sorted(each for page in all_pages(view, limit, index="tag", value="sf") for each in page) == sorted(
        sorted(IDS, key=len)[1::2]
    )
    assert ids(view.every(page=limit)) == sorted(IDS)
    assert (view.count(), view.count("978"), view.count(index="tag", value="sf")) == (14, 5, 7)
    assert ids(view.range("nope")) == [] and view.count("nope") == 0


def test_ids_are_taken_as_they_are(store: Store) -> None:
    odd = [*IDS, "it's", 'a "b" \\ c', "%_", "$1", ":keys", "[1]", "{}", "null", "e\u0301", "\u00e9"]
    with open_shop(store) as shop:
        for isbn in odd:
            put_book(shop, isbn)
        view = shop.view(VIEW)
        assert ids(view.many(odd)) == odd
        assert [view.get(each).entity_id for each in odd] == odd
        assert ids(view.range("%")) == ["%_"] and ids(view.range("a ")) == ['a "b" \\ c']


def test_a_cursor_belongs_to_its_question(store: Store) -> None:
    with open_shop(store) as shop:
        for isbn in ("a1", "a2", "b1"):
            put_book(shop, isbn, tags=["sf", "old"])
        view = shop.view(VIEW)
        cursor = view.range("a", limit=1).next_cursor
        assert cursor is not None
        assert ids(view.range("a", limit=5, cursor=cursor)) == ["a2"]
        found = view.search("tag", "sf", limit=1).next_cursor
        wrongs: list[Callable[[], object]] = [
            lambda: view.range("", cursor=cursor),
            lambda: view.search("tag", "sf", cursor=cursor),
            lambda: view.search("tag", "old", cursor=found),
            lambda: view.range("a", cursor=found),
            lambda: view.range("a", cursor=cursor[:-1]),
            lambda: view.range("a", cursor="97' OR 1=1 --"),
        ]
        for wrong in wrongs:
            with pytest.raises(Invalid, match="not a cursor of this query"):
                wrong()


@pytest.mark.parametrize("limit", [0, -1, 1001, 1.5, "7", True, None])
def test_a_limit_that_is_none_is_refused(limit: Any, store: Store) -> None:
    with open_shop(store) as shop, pytest.raises(Invalid, match="not a limit"):
        shop.view(VIEW).range(limit=limit)


@pytest.mark.parametrize("prefix", ["x" * 600, "\ud800", "a\0", 7])
def test_a_prefix_that_no_id_has_is_refused(prefix: Any, store: Store) -> None:
    with open_shop(store) as shop, pytest.raises(Invalid, match="prefix"):
        shop.view(VIEW).range(prefix)


def test_an_index_finds_what_is_there_now(store: Store) -> None:
    with open_shop(store) as shop:
        put_book(shop, "a", tags=["sf", "old"], authorId="lem")
        put_book(shop, "b", tags=["SF"], authorId="Lem")
        view = shop.view(VIEW)
        assert ids(view.search("tag", "sf")) == ["a"]
        assert ids(view.search("tag", "SF")) == ["b"]
        # The author does not exist; what names him is found all the same.
        assert ids(view.search("author", "lem")) == ["a"]
        put_book(shop, "a", tags=["new"], authorId="Lem")
        assert (
            ids(view.search("tag", "sf")) == ids(view.search("tag", "old")) == ids(view.search("author", "lem")) == []
        )
        assert ids(view.search("author", "Lem")) == ["a", "b"]
        assert ids(view.search("tag", "nope")) == []


def test_an_index_that_there_is_not_is_refused(store: Store) -> None:
    with open_shop(store) as shop:
        with pytest.raises(Invalid, match=r"BOOK has no index 'isbn' \(there are author, tag\)"):
            shop.view(VIEW).search("isbn", "978")
        with pytest.raises(Invalid, match="nothing is indexed under null"):
            shop.view(VIEW).search("tag", None)
        with pytest.raises(Invalid, match="a prefix and an index"):
            shop.view(VIEW).count("97", index="tag", value="sf")


@pytest.fixture
def strict(tmp_path: Path) -> Path:
    """The example with an author that has to be there, and three views of it."""
    text = changed("        required: false\n", "        required: true\n")
    common = "\n---\nkind: VIEW_DEFINITION\nversion: 1.0.0\nstatus: ACTIVE\nentityType: BOOK\n"
    text += f"{common}id: view.strict\nrequiredSlices: [CORE, ENRICHED]"
    text += f"{common}id: view.partial\nrequiredSlices: [ENRICHED, CORE]\nmissingPolicy: PARTIAL_ALLOWED"
    text += f"{common}id: view.filled\nrequiredSlices: [CORE, ENRICHED]\n"
    text += "fallback: {mode: DEFAULT_VALUE, defaults: {ENRICHED: {author: {name: unknown}}}}\n"
    text += "partialPolicy: {allowed: false, responseMeta: {includeMissingSlices: false}}\n"
    file = tmp_path / "strict.yaml"
    file.write_text(text)
    return file


def test_a_tombstone_is_a_missing_slice_with_its_reason(store: Store, strict: Path) -> None:
    with open_shop(store, strict) as shop:
        put_book(shop, "978", authorId="lem")
        optional = shop.view(VIEW).get("978")
        assert "ENRICHED" not in optional.data
        assert optional.meta.missing_slices is not None
        (missing,) = optional.meta.missing_slices
        assert (missing.type, missing.required, missing.reason) == ("ENRICHED", False, "REQUIRED_JOIN_MISSING")
        assert missing.detail is not None and "AUTHOR#shop#lem" in missing.detail

        with pytest.raises(NotFound, match=r"view\.strict has no answer for BOOK 978: it lacks ENRICHED"):
            shop.view("view.strict").get("978")
        page = shop.view("view.strict").range()
        assert (len(page), [each.entity_id for each in page.unanswered], page.next_cursor) == (0, ["978"], None)
        assert [each.type for each in page.unanswered[0].missing] == ["ENRICHED"]

        assert list(shop.view("view.partial").get("978").data) == ["CORE"]
        filled = shop.view("view.filled").get("978")
        assert filled.data["ENRICHED"] == {"author": {"name": "unknown"}}
        assert (filled.meta.missing_slices, filled.meta.used_contracts) == (None, None)

        put_author(shop, "lem", "Stanisław Lem")
        shop.compile("BOOK", "978")
        found = shop.view("view.strict").get("978")
        assert found.data["ENRICHED"]["author"]["name"] == "Stanisław Lem"
        assert found.meta.revision == 2


def test_entities_without_an_answer_do_not_shorten_the_way_through_the_pages(store: Store, strict: Path) -> None:
    with open_shop(store, strict) as shop:
        put_author(shop, "lem", "Stanisław Lem")
        for number in range(9):
            put_book(shop, f"{number}", authorId="lem" if number % 3 == 0 else "nobody")
        view = shop.view("view.strict")
        assert [each for page in all_pages(view, 2) for each in page] == ["0", "3", "6"]
        assert view.count() == 9


def test_a_slice_of_another_ruleset_is_served_and_the_answer_says_so(store: Store, tmp_path: Path) -> None:
    """A new ruleset without INVENTORY and with NOTES: until a book is compiled again, it has what it had."""
    documents = TEXT.split("\n---\n")
    schema = documents[2].replace("version: 1.0.0", "version: 1.1.0")
    ruleset = documents[3].replace("version: 1.0.0", "version: 1.1.0").replace("INVENTORY", "NOTES")
    view = documents[4].replace("version: 1.0.0", "version: 1.1.0").replace("INVENTORY", "NOTES")
    file = tmp_path / "next.yaml"
    file.write_text("\n---\n".join([schema, ruleset, view]))
    with open_store(store) as (app, shop):
        put_book(shop, "978", stock={"sites": [{"count": 3}]})
        app.contracts.load(file)
        before = shop.view(VIEW).get("978")
        assert (before.meta.view, before.meta.staleness.ruleset_is_current) == (f"{VIEW}@1.1.0", False)
        assert before.meta.missing_slices is not None
        assert [(each.type, each.reason) for each in before.meta.missing_slices] == [("NOTES", "NOT_BUILT")]
        assert shop.view(VIEW, "1.0.0").get("978").data["INVENTORY"] == {"counts": [3]}

        shop.compile("BOOK", "978")
        after = shop.view(VIEW).get("978")
        assert after.meta.staleness.ruleset_is_current and after.data["NOTES"] == {"counts": [3]}
        gone = shop.view(VIEW, "1.0.0").get("978").meta.missing_slices
        assert gone is not None and [(each.type, each.reason) for each in gone] == [("INVENTORY", "NOT_IN_RULESET")]


def test_a_deprecated_contract_still_serves_what_is_there(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "deprecated.yaml"
    file.write_text(TEXT.replace("status: ACTIVE", "status: DEPRECATED"))
    with open_store(store) as (app, shop):
        put_book(shop, "978")
        app.contracts.load(file)
        assert shop.view(VIEW).get("978").data["CORE"]["title"] == "Book 978"
        put_book(shop, "978", price=5)
        assert shop.view(VIEW).get("978").data["PRICE"] == {"amount": {"minor": 5}}


def test_a_body_that_is_not_what_was_compiled_is_refused(store: Store) -> None:
    with open_shop(store) as shop:
        put_book(shop, "978")
        put_book(shop, "979")

        query(
            store,
            "UPDATE slice SET root = (SELECT other.root FROM slice AS other WHERE other.type = 'PRICE' LIMIT 1) "
            "WHERE type = 'CORE'",
        )
        view = shop.view(VIEW)
        said = r"the slice CORE of version .* is not what its hash says"
        with pytest.raises(Corrupt, match=said):
            view.get("978")
        for page, ids in ((view.many(["979"]), ["979"]), (view.range(), ["978", "979"])):
            assert len(page) == 0
            assert [(each.entity_id, each.kind) for each in page.unanswered] == [(each, "corrupt") for each in ids]
            assert all(re.search(said, each.reason) for each in page.unanswered)


def test_large_slices_come_back_whole(store: Store) -> None:
    """One that is cut into many blocks, and one that is so large that its blocks lie in an object."""
    counts = [number * 7919 % 10_007 for number in range(20_000)]
    text = "".join(f"{number * 7919 % 1_000_003:x} " for number in range(120_000))
    with open_shop(store) as shop:
        put_book(shop, "many", stock={"sites": [{"count": count} for count in counts]})
        put_book(shop, "long", title=text)
    with store.open() as app:
        found = app.tenant("shop").view(VIEW).many(["many", "long"])
        assert found.items[0].data["INVENTORY"] == {"counts": counts}
        assert found.items[1].data["CORE"]["title"] == text
        assert app.stats().uploads > 0


def test_one_entity_can_be_held_by_its_key(store: Store) -> None:
    with open_shop(store) as shop:
        entity = shop.entity("BOOK", "978")
        assert str(entity.key) == "BOOK#shop#978"
        version = entity.ingest(book("978")).version
        assert entity.compile(mode="full").version == version
        assert entity.slices()["CORE"].data == {"isbn": "978", "title": "Book 978"}
        assert entity.delete().created
        with pytest.raises(Invalid, match="not an entity id"):
            shop.entity("BOOK", "a#b")


def test_bulk_is_seen_in_views(store: Store) -> None:
    def fill(shop: Tenant) -> None:
        for item in shop.ingest_many(("BOOK", f"{number:04}", book(f"{number}")) for number in range(250)):
            assert item.status == "created"
            shop.compile("BOOK", item.entity_id)

    with open_shop(store, EXAMPLE) as shop:
        fill(shop)
        assert shop.view(VIEW).count() == 250 == len(list(shop.view(VIEW).every(page=99)))
