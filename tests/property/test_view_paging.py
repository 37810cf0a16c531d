"""Views while others write: what was there all the time is found exactly once on the way through all pages, nothing is
found twice, and the slices of one answer are of one version."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

import pytest

from analemma import Tenant
from analemma.errors import NotFound
from tests.api.pipeline.shop import VIEW, open_shop, put_book
from tests.depth import count
from tests.stores import Store

STABLE = [f"{number:02}s" for number in range(0, 40, 2)]
"""Books that are there from the beginning to the end, though their content changes."""
FLEETING = [f"{number:02}{letter}" for number in range(41) for letter in ("f", "z")]
"""Books that come and go, before, between and after the others."""


def write_something(shop: Tenant, chance: random.Random) -> None:
    if chance.random() < 0.4:
        # What stays keeps its tag, and its place in every order.
        put_book(shop, chance.choice(STABLE), price=chance.randrange(10_000), tags=["sf", f"t{chance.randrange(3)}"])
        return
    isbn = chance.choice(FLEETING)
    if chance.random() < 0.5:
        put_book(shop, isbn, price=chance.randrange(10_000), tags=chance.choice([["sf"], ["other"], []]))
        return
    try:
        shop.delete("BOOK", isbn)
    except NotFound:
        return
    shop.compile("BOOK", isbn)


def page_through(view: Any, chance: random.Random, between: Any) -> list[str]:
    """All ids of a range or a search, with pages of all sizes."""
    searches = chance.random() < 0.5
    found: list[str] = []
    cursor = None
    while True:
        limit = chance.choice([1, 2, 3, 7])
        page = (
            view.search("tag", "sf", limit=limit, cursor=cursor)
            if searches
            else view.range("", limit=limit, cursor=cursor)
        )
        assert len(page) <= limit
        ids = [each.entity_id for each in page]
        assert searches or ids == sorted(ids)
        found += ids
        cursor = page.next_cursor
        if cursor is None:
            return found
        between()


def check_found(found: list[str]) -> None:
    counts = Counter(found)
    assert [each for each, times in counts.items() if times > 1] == []
    assert set(STABLE) <= counts.keys()


@pytest.mark.parametrize("seed", range(count(1, deep=3)))
def test_pages_are_complete_when_writes_come_between_them(seed: int, store: Store) -> None:
    chance = random.Random(seed)
    with open_shop(store) as shop:
        for isbn in chance.sample(STABLE, len(STABLE)):
            put_book(shop, isbn, tags=["sf"])
        for _ in range(count(4, deep=10)):
            check_found(page_through(shop.view(VIEW), chance, lambda: write_something(shop, chance)))


def test_pages_are_complete_while_others_write(store: Store) -> None:
    over = threading.Event()
    failures: list[BaseException] = []

    def keep_writing(seed: int) -> None:
        chance = random.Random(seed)
        try:
            with store.open() as app:
                while not over.is_set():
                    write_something(app.tenant("shop"), chance)
        except BaseException as exc:
            failures.append(exc)

    with open_shop(store) as shop:
        for isbn in STABLE:
            put_book(shop, isbn, tags=["sf"])
        writers = [threading.Thread(target=keep_writing, args=(seed,)) for seed in range(2)]
        for writer in writers:
            writer.start()
        try:
            chance = random.Random(7)
            for _ in range(count(15, deep=60)):
                check_found(page_through(shop.view(VIEW), chance, lambda: None))
        finally:
            over.set()
            for writer in writers:
                writer.join()
        assert failures == []


def test_an_answer_is_of_one_version_while_others_compile(store: Store) -> None:
    """Title and price, which are in two slices, always change together."""
    over = threading.Event()
    failures: list[BaseException] = []
    written = [0]

    def keep_writing() -> None:
        try:
            with store.open() as app:
                shop = app.tenant("shop")
                while not over.is_set():
                    written[0] += 1
                    for isbn in ("a", "b"):
                        put_book(shop, isbn, title=f"{written[0]}", price=written[0])
        except BaseException as exc:
            failures.append(exc)

    with open_shop(store) as shop:
        for isbn in ("a", "b"):
            put_book(shop, isbn, title="0", price=0)
        writer = threading.Thread(target=keep_writing)
        writer.start()
        seen: set[str] = set()
        try:
            view = shop.view(VIEW)
            while len(seen) < count(12, deep=40) and not failures:
                for answer in (view.get("a"), *view.many(["b", "a"]), *view.range()):
                    title = answer.data["CORE"]["title"]
                    assert answer.data["PRICE"] == {"amount": {"minor": int(title)}}
                    assert {each.version for each in answer.meta.slices.values()} >= {answer.meta.version}
                    seen.add(title)
        finally:
            over.set()
            writer.join()
        assert failures == []
