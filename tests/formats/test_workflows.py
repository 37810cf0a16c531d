"""What workflows are cut into does not change: a run goes on with the segments that it was born with."""

from __future__ import annotations

import json
from typing import Any

from analemma import load_workflow
from tests.core.entry_points.flows import workflow_schema
from tests.formats.golden_workflows import FILES, FOLDER, describe

GOLDEN: dict[str, Any] = json.loads((FOLDER.parent / "workflows_1.json").read_text(encoding="utf-8"))


def test_workflows_are_cut_as_they_always_were() -> None:
    assert {file.stem for file in FILES} == set(GOLDEN)
    assert [file.stem for file in FILES if describe(file) != GOLDEN[file.stem]] == []


def test_every_node_type_is_pinned() -> None:
    schema = workflow_schema()
    names = [each["$ref"].rpartition("/")[2] for each in schema["properties"]["nodes"]["items"]["oneOf"]]
    types = {schema["$defs"][name]["properties"]["type"]["const"] for name in names}
    assert {node.type for file in FILES for node in load_workflow(file).nodes} == types
