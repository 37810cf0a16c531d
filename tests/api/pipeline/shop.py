"""A shop with the example's contracts, for tests of the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from analemma import App, Tenant, load_contracts
from tests.core.contracts.bookshop import EXAMPLE
from tests.stores import Store

VIEW = "view.book.detail.v1"


@contextmanager
def open_store(store: Store, contracts: str | Path = EXAMPLE, **settings: Any) -> Iterator[tuple[App, Tenant]]:
    """A store that has contracts, and a tenant of it."""
    with store.open(**settings) as app:
        app.contracts.load(contracts)
        yield app, app.tenant("shop")


@contextmanager
def open_shop(store: Store, contracts: str | Path = EXAMPLE) -> Iterator[Tenant]:
    """A tenant of a store that has contracts."""
    with open_store(store, contracts) as (_, shop):
        yield shop


def book_rules(version: str, **changes: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """Schema and ruleset of books as the example has them, under another version and with these changes."""
    documents = [each.document for each in load_contracts(EXAMPLE).contracts if is_of_books(each.document)]
    (ruleset,) = [each for each in documents if each["kind"] == "RULESET"]
    (schema,) = [each for each in documents if each["kind"] == "ENTITY_SCHEMA"]
    ref = {"id": ruleset["id"], "version": version}
    changed = {key: change(ruleset[key]) for key, change in changes.items()}
    return [{**ruleset, **changed, "version": version}, {**schema, "version": version, "ruleSetRef": ref}]


def without_joins() -> list[dict[str, Any]]:
    """Older contracts than the example's: books join no author, and there is no view of them."""
    documents = [each.document for each in load_contracts(EXAMPLE).contracts if each.kind != "SINKRULE"]
    older = book_rules(
        "0.1.0",
        ignore=lambda paths: [*paths, "/authorId"],
        indexes=lambda indexes: [each for each in indexes if each["type"] != "author"],
        slices=lambda slices: [each for each in slices if each["type"] != "ENRICHED"],
        impactMap=lambda given: {name: paths for name, paths in given.items() if name != "ENRICHED"},
    )
    return [*(each for each in documents if not is_of_books(each)), *older]


def is_of_books(contract: Mapping[str, Any]) -> bool:
    return contract.get("entityType") == "BOOK"


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
