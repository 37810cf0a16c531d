"""What workflows are cut into does not change: a run goes on with the segments that it was born with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analemma import load_workflow
from analemma.flows.nodes import NODE_TYPES
from tests.formats.golden_workflows import FILES, FOLDER, describe

GOLDEN: dict[str, Any] = json.loads((FOLDER.parent / "workflows_1.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_workflow_is_cut_as_it_always_was(file: Path) -> None:
    assert describe(file) == GOLDEN[file.stem]


def test_every_node_type_is_pinned() -> None:
    assert {node.type for file in FILES for node in load_workflow(file).nodes} == set(NODE_TYPES)
    assert {file.stem for file in FILES} == set(GOLDEN)
