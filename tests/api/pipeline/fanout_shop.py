"""Books of one author, who is renamed, and the fanout that has them follow, page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from analemma import App, Tenant
from analemma.testing import failpoints
from tests.api.pipeline.shop import book, put_author
from tests.api.pipeline.tables import query
from tests.core.contracts.bookshop import EXAMPLE
from tests.stores import Store

COUNT = 25


@contextmanager
def shop_with_books(
    store: Store, count: int = COUNT, contracts: Any = EXAMPLE, **settings: Any
) -> Iterator[tuple[App, Tenant]]:
    """Books of one author, compiled, and nothing under way."""
    with store.open(**{"fanout_page": 10, "outbox_backoff_base_s": 0, **settings}) as app:
        app.contracts.load(contracts)
        shop = app.tenant("shop")
        shop.ingest("AUTHOR", "lem", {"name": "Lem"})
        shop.ingest_many([("BOOK", f"{number:03}", book(f"{number:03}", authorId="lem")) for number in range(count)])
        app.worker(1).drain()
        # Whoever was compiled before the author came.
        app.worker(1).drain()
        yield app, shop


def names(shop: Tenant, count: int = COUNT) -> set[Any]:
    found = [shop.slices("BOOK", f"{number:03}")["ENRICHED"].data or {} for number in range(count)]
    return {each.get("author", {}).get("name") for each in found}


def slice_rows(store: Store) -> dict[str, int]:
    return dict(query(store, "SELECT type, count(*) FROM slice GROUP BY type"))


def rename(shop: Tenant, name: str) -> None:
    """Compile the author under another name: a worker is to have the books follow."""
    put_author(shop, "lem", name)


def fanout_of(app: App) -> Any:
    """How far the author's is."""
    return app.fanouts.get("AUTHOR", "lem", tenant="shop")


def drain_by_pages(app: App, look: Callable[[], object] = lambda: None) -> list[Any]:
    """Deliver everything; how far the author's fanout was after each page, at which `look` was called, too."""
    seen: list[Any] = []

    def after_page() -> None:
        seen.append(fanout_of(app))
        look()
        failpoints.arm("fanout.after_commit", after_page)

    failpoints.arm("fanout.after_commit", after_page)
    try:
        app.worker(1).drain()
    finally:
        failpoints.arm(None)
    return seen


@contextmanager
def failing(place: str, error: Exception, times: int) -> Iterator[None]:
    """While this lasts, the first so many that pass a place fail there."""
    left = [error] * times

    def fail() -> None:
        if left:
            failpoints.arm(place, fail)
            raise left.pop()

    failpoints.arm(place, fail)
    try:
        yield
    finally:
        failpoints.arm(None)
    assert left == []
