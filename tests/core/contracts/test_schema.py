"""The published JSON Schema is that of the format, and the reference page has every key."""

from __future__ import annotations

import json

from analemma.contracts.documents import DOCUMENTS
from analemma.contracts.schema import contracts_schema, contracts_schema_text, known_keys
from tests.docs.pages import DOCS

PUBLISHED = DOCS / "reference" / "contracts.schema.json"
PAGE = DOCS / "reference" / "contracts.md"


def test_the_published_schema_is_current() -> None:
    current = PUBLISHED.read_text(encoding="utf-8") == contracts_schema_text()
    assert current, f"run python -m analemma.contracts.schema {PUBLISHED.relative_to(DOCS.parent)}"


def test_every_kind_is_in_it() -> None:
    made = contracts_schema()
    kinds = [made["$defs"][each["$ref"].rpartition("/")[2]]["properties"]["kind"]["const"] for each in made["oneOf"]]
    assert kinds == list(DOCUMENTS)
    assert "\\A" not in json.dumps(made)


def test_every_key_is_on_the_reference_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [key for key in known_keys() if f"`{key}`" not in text] == []
