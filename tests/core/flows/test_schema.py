"""The published JSON Schema is that of the format, and the reference page has every key and every type."""

from __future__ import annotations

import json
from typing import Any

import pytest

from analemma.flows.nodes import NODE_TYPES
from analemma.flows.reading import known_keys
from analemma.flows.schema import workflow_schema, workflow_schema_text
from tests.docs.pages import DOCS, table_rows

PUBLISHED = DOCS / "reference" / "workflow.schema.json"
PAGE = DOCS / "reference" / "workflow-document.md"


def test_the_published_schema_is_current() -> None:
    current = PUBLISHED.read_text(encoding="utf-8") == workflow_schema_text()
    assert current, f"run python -m analemma.flows.schema {PUBLISHED.relative_to(DOCS.parent)}"


def test_every_node_type_is_in_it() -> None:
    made = workflow_schema()
    nodes = made["properties"]["nodes"]["items"]["oneOf"]
    kinds = [made["$defs"][each["$ref"].rpartition("/")[2]]["properties"]["type"]["const"] for each in nodes]
    assert kinds == list(NODE_TYPES)


def test_it_has_no_keyword_that_json_schema_does_not_know() -> None:
    text = json.dumps(workflow_schema())
    assert "discriminator" not in text and '"title": "Id"' not in text and "\\\\A" not in text


@pytest.mark.parametrize("name", ["Retries", "Condition", "BranchNode"])
def test_objects_are_closed(name: str) -> None:
    found: Any = workflow_schema()["$defs"][name]
    closed = found["anyOf"][1] if "anyOf" in found else found
    assert closed["additionalProperties"] is False


def test_every_key_is_on_the_reference_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [key for key in known_keys() if f"`{key}`" not in text] == []


def test_every_node_type_is_on_the_reference_page() -> None:
    assert [row[0] for row in table_rows(PAGE, first_heading="node type")] == list(NODE_TYPES)
