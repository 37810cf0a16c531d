"""Books and authors for tests, and a lookup over slices that were made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from analemma import EntityKey, load_contracts
from tests.core.contracts.bookshop import bookshop
from tests.core.entry_points.slicing import Predecessor, SliceContent

Lookup = Callable[[EntityKey, str], SliceContent | None]

BOOK_KEY = EntityKey("BOOK", "shop", "978")
AUTHOR_KEY = EntityKey("AUTHOR", "shop", "le-guin")
BOOK: dict[str, Any] = {
    "isbn": "978",
    "title": "The Dispossessed",
    "price": 1200,
    "authorId": "le-guin",
    "tags": ["sf", "Utopia"],
    "stock": {"sites": [{"count": 3}, {"site": "b"}, {"count": 0}]},
    "audit": {"by": "me"},
}
SUMMARY = SliceContent({"name": "Ursula", "country": "US"}, "sha256:1")

BOOK_RULESET = bookshop().ruleset("BOOK")


def nothing(key: EntityKey, slice_type: str) -> SliceContent | None:
    """No other entity is there."""
    return None


def having(content: SliceContent, key: EntityKey = AUTHOR_KEY, slice_type: str = "SUMMARY") -> Lookup:
    """One slice of another entity is there."""
    return lambda asked, asked_type: content if (asked, asked_type) == (key, slice_type) else None


def predecessor(raw: dict[str, Any] | None, compiled: Any) -> Predecessor:
    """What a compile leaves for the next one."""
    return Predecessor(raw, compiled.fingerprint, compiled.slices)


def ruleset_of(slices: list[dict[str, Any]], **more: Any) -> Any:
    """A ruleset for THING, which may join books and authors."""
    common = {"version": "1.0.0", "status": "ACTIVE", "entityType": "THING"}
    schema = {"kind": "ENTITY_SCHEMA", "id": "entity.thing", **common, "fields": [{"name": "id", "type": "string"}]}
    ruleset = {"kind": "RULESET", "id": "ruleset.thing", **common, "slices": slices, **more}
    others = [each.document for each in bookshop().contracts]
    return load_contracts([*others, schema, ruleset]).ruleset("THING")
