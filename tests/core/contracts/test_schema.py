"""The published JSON Schema is that of the format, and the reference page has every key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.core.entry_points.contracts import contracts_schema_text
from tests.docs.pages import DOCS

PUBLISHED = DOCS / "reference" / "contracts.schema.json"
PAGE = DOCS / "reference" / "contracts.md"
KINDS = ["ENTITY_SCHEMA", "RULESET", "VIEW_DEFINITION", "SINKRULE", "STATE_SOURCE"]


def keys(schema: Any) -> Iterator[str]:
    """Every key that the schema names, at any depth."""
    if isinstance(schema, dict):
        properties = schema.get("properties")
        if isinstance(properties, dict):
            yield from properties
        for each in schema.values():
            yield from keys(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from keys(each)


def test_the_published_schema_is_current() -> None:
    current = PUBLISHED.read_text(encoding="utf-8") == contracts_schema_text()
    assert current, f"write contracts_schema_text() to {PUBLISHED.relative_to(DOCS.parent)}"


def test_every_kind_is_in_it() -> None:
    made = json.loads(contracts_schema_text())
    kinds = [made["$defs"][each["$ref"].rpartition("/")[2]]["properties"]["kind"]["const"] for each in made["oneOf"]]
    assert sorted(kinds) == sorted(KINDS)
    assert "\\A" not in json.dumps(made)


def test_every_key_is_on_the_reference_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    known = sorted(set(keys(json.loads(contracts_schema_text()))))
    assert len(known) > 50 and [key for key in known if f"`{key}`" not in text] == []
