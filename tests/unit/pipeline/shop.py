"""A shop with the example's contracts, for tests of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from analemma.app import Tenant
from tests.stores import Store
from tests.unit.contracts.bookshop import EXAMPLE

VIEW = "view.book.detail.v1"


@contextmanager
def open_shop(store: Store, contracts: str | Path = EXAMPLE) -> Iterator[Tenant]:
    """A tenant of a store that has contracts."""
    with store.open() as app:
        app.contracts.load(contracts)
        yield app.tenant("shop")


def book(isbn: str, **more: Any) -> dict[str, Any]:
    return {"isbn": isbn, "title": f"Book {isbn}", "price": 1200, **more}


def put_book(shop: Tenant, isbn: str, **more: Any) -> str:
    """Ingest and compile; its version."""
    version = shop.ingest("BOOK", isbn, book(isbn, **more)).version
    shop.compile("BOOK", isbn)
    return version


def put_author(shop: Tenant, author: str, name: str) -> str:
    version = shop.ingest("AUTHOR", author, {"name": name, "country": "PL"}).version
    shop.compile("AUTHOR", author)
    return version
