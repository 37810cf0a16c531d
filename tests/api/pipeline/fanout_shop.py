"""Books of one author, who is renamed, and the fanout that has them follow, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from analemma import Tenant
from tests.api.pipeline.shop import book, put_author
from tests.api.pipeline.tables import query
from tests.core.contracts.bookshop import EXAMPLE
from tests.stores import Store

COUNT = 25


@contextmanager
def shop_with_books(store: Store, count: int = COUNT, contracts: Any = EXAMPLE, **settings: Any) -> Iterator[Tenant]:
    """Books of one author, compiled, and nothing under way."""
    with store.open(**{"fanout_page": 10, **settings}) as app:
        app.contracts.load(contracts)
        shop = app.tenant("shop")
        shop.ingest("AUTHOR", "lem", {"name": "Lem"})
        shop.ingest_many([("BOOK", f"{number:03}", book(f"{number:03}", authorId="lem")) for number in range(count)])
        app.worker(1).drain()
        # Whoever was compiled before the author came.
        app.worker(1).drain()
        yield shop


def names(shop: Tenant, count: int = COUNT) -> set[Any]:
    found = [shop.slices("BOOK", f"{number:03}")["ENRICHED"].data or {} for number in range(count)]
    return {each.get("author", {}).get("name") for each in found}


def slice_rows(store: Store) -> dict[str, int]:
    return dict(query(store, "SELECT type, count(*) FROM slice GROUP BY type"))


def change(shop: Tenant, name: str) -> None:
    """Rename the author, and tell the fanout, without a worker."""
    version = put_author(shop, "lem", name)
    shop.pipeline.fanout.on_entity_change("AUTHOR", "lem", version)


def go_on(shop: Tenant, **options: Any) -> Any:
    """One page."""
    fanout = shop.pipeline.fanout
    (step,) = query_one(shop, "SELECT step FROM fanout")
    return fanout.advance("AUTHOR", "lem", step, **options)


def query_one(shop: Tenant, sql: str) -> Any:
    place = shop._app._place
    objects = None if place.backend == "sqlite" else place.objects
    return query(Store(place.url, objects), sql)[0]
