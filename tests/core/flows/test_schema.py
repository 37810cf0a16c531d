"""The published JSON Schema is that of the format, and the reference page has every key and every type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.core.entry_points.flows import workflow_schema
from tests.docs.pages import DOCS, table_rows

PUBLISHED = DOCS / "reference" / "workflow.schema.json"
PAGE = DOCS / "reference" / "workflow-document.md"


def test_the_published_schema_is_current() -> None:
    current = json.loads(PUBLISHED.read_text(encoding="utf-8")) == workflow_schema()
    assert current, f"run analemma flow schema > {PUBLISHED.relative_to(DOCS.parent)}"


def test_every_node_type_is_on_the_reference_page() -> None:
    made = workflow_schema()
    nodes = made["properties"]["nodes"]["items"]["oneOf"]
    types = [made["$defs"][each["$ref"].rpartition("/")[2]]["properties"]["type"]["const"] for each in nodes]
    assert [row[0] for row in table_rows(PAGE, first_heading="node type")] == types


def test_it_has_no_keyword_that_json_schema_does_not_know() -> None:
    text = json.dumps(workflow_schema())
    assert "discriminator" not in text and '"title": "Id"' not in text and "\\\\A" not in text


def test_objects_are_closed() -> None:
    made: Any = workflow_schema()["$defs"]
    for name in ("Retries", "Condition", "BranchNode"):
        closed = made[name]["anyOf"][1] if "anyOf" in made[name] else made[name]
        assert closed["additionalProperties"] is False, name


def keys(schema: Any) -> Iterator[str]:
    """Every key that a document may have somewhere."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield from schema["properties"]
        for each in schema.values():
            yield from keys(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from keys(each)


def test_every_key_is_on_the_reference_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert sorted({key for key in keys(workflow_schema()) if f"`{key}`" not in text}) == []
