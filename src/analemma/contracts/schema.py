"""The JSON Schema of the contract format.

`python -m analemma.contracts.schema docs/reference/contracts.schema.json` writes it.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

from analemma.contracts.documents import DOCUMENTS


def contracts_schema() -> dict[str, Any]:
    """The schema of one contract, of any kind."""
    _, made = models_json_schema([(document, "validation") for document in DOCUMENTS.values()], by_alias=True)
    definitions = made["$defs"]
    rules = definitions["SliceDocument"]["properties"]["buildRules"]
    # One rule may stand there without a list around it.
    definitions["SliceDocument"]["properties"]["buildRules"] = {"anyOf": [rules["items"], rules]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Analemma contract",
        "description": "One document of a contract file. What refers to other documents is checked at loading.",
        "oneOf": [{"$ref": f"#/$defs/{document.__name__}"} for document in DOCUMENTS.values()],
        "$defs": _without_titles(definitions),
    }


@cache
def known_keys() -> tuple[str, ...]:
    """Every key of the format, whatever it belongs to."""
    return tuple(sorted({key for part in contracts_schema()["$defs"].values() for key in part.get("properties", {})}))


def _without_titles(part: Any) -> Any:
    """The generated titles repeat the names in another spelling."""
    if isinstance(part, dict):
        return {key: _without_titles(value) for key, value in part.items() if key != "title"}
    return [_without_titles(item) for item in part] if isinstance(part, list) else part


def contracts_schema_text() -> str:
    """The published file."""
    return json.dumps(contracts_schema(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(contracts_schema_text(), encoding="utf-8")
