"""The JSON Schema of workflow documents.

`python -m analemma.flows.schema docs/reference/workflow.schema.json` writes it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from analemma.flows.document import Workflow


def workflow_schema() -> dict[str, Any]:
    """The schema of one workflow document."""
    made = _tidied(Workflow.model_json_schema(by_alias=True))
    definitions = made["$defs"]
    times = definitions["Retries"]["properties"]["times"]
    # A number says only how often.
    definitions["Retries"] = {
        "anyOf": [{key: times[key] for key in ("type", "minimum", "maximum")}, definitions["Retries"]]
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Analemma workflow",
        **made,
        "description": "A workflow document. How its nodes fit together is checked at loading.",
    }


def workflow_schema_text() -> str:
    """The published file."""
    return json.dumps(workflow_schema(), indent=2, sort_keys=True) + "\n"


def _tidied(part: Any) -> Any:
    """Without generated titles, which repeat the names in another spelling, and a keyword that is not JSON Schema's."""
    if isinstance(part, dict):
        # `properties` has names of keys, which may be called like a keyword.
        return {
            key: {name: _tidied(each) for name, each in value.items()}
            if key in ("properties", "$defs")
            else _tidied(value)
            for key, value in part.items()
            if key not in ("title", "discriminator")
        }
    return [_tidied(item) for item in part] if isinstance(part, list) else part


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(workflow_schema_text(), encoding="utf-8")
