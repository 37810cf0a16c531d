"""Cursors: they find their place again, and nothing else passes for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from analemma import Tenant
from analemma.errors import Invalid
from tests.api.pipeline.shop import VIEW, book, open_store
from tests.stores import Store

IDS = ["970", "97 é", "97\U0001f4d6", "97" + "x" * 60]


@pytest.fixture
def shop(store: Store) -> Any:
    with open_store(store) as (app, shop):
        shop.ingest_many(("BOOK", isbn, book(isbn, tags=["sf"])) for isbn in IDS)
        app.worker(1).drain()
        yield shop


def refusals(ask: Callable[[Any], object], cursors: list[Any]) -> list[Any]:
    """Those of the cursors that are not refused."""
    taken = []
    for cursor in cursors:
        try:
            ask(cursor)
        except Invalid:
            continue
        taken.append(cursor)
    return taken


def test_a_cursor_finds_its_place(shop: Tenant) -> None:
    view = shop.view(VIEW)
    questions: list[Callable[[Any], Any]] = [
        lambda cursor: view.range("97", limit=1, cursor=cursor),
        lambda cursor: view.search("tag", "sf", limit=1, cursor=cursor),
    ]
    for ask in questions:
        found, cursor = [], None
        while True:
            page = ask(cursor)
            found += [each.entity_id for each in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert sorted(found) == sorted(IDS)


def test_a_cursor_with_one_other_character_or_cut_off_is_refused(shop: Tenant) -> None:
    view = shop.view(VIEW)
    cursor = view.range("97", limit=1).next_cursor
    assert cursor is not None
    changed = [
        cursor[:at] + other + cursor[at + 1 :]
        for at in range(len(cursor))
        for other in "ABCabc019-_=+/ é\0"
        if other != cursor[at]
    ]
    short = [cursor[:length] for length in range(len(cursor))]
    assert refusals(lambda each: view.range("97", limit=1, cursor=each), [*changed, *short]) == []


def test_a_cursor_of_another_question_is_refused(shop: Tenant, store: Store) -> None:
    view = shop.view(VIEW)
    cursor = view.range("97", limit=1).next_cursor
    with pytest.raises(Invalid, match="not a cursor of this query"):
        view.range("", limit=1, cursor=cursor)
    with pytest.raises(Invalid, match="not a cursor of this query"):
        view.search("tag", "sf", limit=1, cursor=cursor)
    with store.open() as app, pytest.raises(Invalid, match="not a cursor of this query"):
        app.tenant("other").view(VIEW).range("97", limit=1, cursor=cursor)


def test_what_is_no_cursor_is_refused(shop: Tenant) -> None:
    view = shop.view(VIEW)
    wrong = ["", "x", "AAAA", "=" * 8, "A" * 5000, "\ud800", 7, b"AAAA"]
    assert refusals(lambda each: view.range("97", limit=1, cursor=each), wrong) == []
