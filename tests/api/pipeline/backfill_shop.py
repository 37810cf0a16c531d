"""A shop full of books, for tests of backfills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analemma import App
from tests.core.contracts.bookshop import EXAMPLE, TEXT

TENANT = {"tenant": "shop"}
BOOKS = {"tenant": "shop", "types": ("BOOK",)}


def fill(app: App, books: int, authors: int = 5) -> None:
    """Books by authors of whom the last two do not exist; nothing is compiled."""
    app.contracts.load(EXAMPLE)
    shop = app.tenant("shop")
    shop.ingest_many(("AUTHOR", f"a{number}", {"name": f"Author {number}"}) for number in range(authors))
    shop.ingest_many(("BOOK", f"b{number:05}", book(number, authors)) for number in range(books))


def book(number: int, authors: int = 5, **more: Any) -> dict[str, Any]:
    made = {"isbn": f"b{number:05}", "title": f"Book {number}", "price": number, "tags": [f"t{number % 3}"]}
    return {**made, "authorId": f"a{number % (authors + 2)}", **more}


def upgraded(folder: Path) -> Path:
    """The example with another ruleset for books: prices are kept elsewhere, and there is one slice more."""
    documents = TEXT.split("---\n")
    schema = documents[2].replace("version: 1.0.0", "version: 1.1.0")
    ruleset = (
        documents[3]
        .replace("version: 1.0.0", "version: 1.1.0")
        .replace("to: amount.minor", "to: amount.cents")
        .replace("  PRICE: [/price]\n", "  PRICE: [/price]\n  LABEL: [/title]\n")
        .replace(
            "  - type: PRICE\n",
            "  - type: LABEL\n    buildRules: {type: PassThrough, fields: [title]}\n  - type: PRICE\n",
        )
    )
    view = documents[4].replace("version: 1.0.0", "version: 1.1.0")
    file = folder / "upgraded.yaml"
    file.write_text("---\n".join([schema, ruleset, view]), encoding="utf-8")
    return file
