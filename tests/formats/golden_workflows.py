"""Workflows whose documents, segments and hashes are pinned, since a run goes on with the segments it was born with.
`python -m tests.formats.golden_workflows` prints the file; it is only ever added to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from analemma import load_workflow
from tests.core.canon.memory_blocks import MemoryBlocks
from tests.core.entry_points.flows import partition, task_plans

FOLDER = Path(__file__).parent / "workflows"
FILES = sorted(FOLDER.glob("*.yaml"))


def describe(file: Path) -> dict[str, Any]:
    """What is pinned of one workflow."""
    workflow = load_workflow(file)
    plan = partition(workflow)
    return {
        "document": workflow.hash,
        "iteration_limit": plan.iteration_limit,
        "segments": _segments(plan),
    }


def _hash(config: dict[str, Any]) -> str:
    """A configuration is named as a state with the same fields is."""
    return MemoryBlocks().build(config).hex()


def _segments(plan: Any) -> list[dict[str, Any]]:
    made = []
    for segment in plan.segments:
        entry = {key: value for key, value in segment.config.items() if key not in ("format", "nodes")}
        entry |= {"nodes": list(segment.nodes), "hash": _hash(dict(segment.config))}
        if segment.type in ("parallel", "for_each"):
            tasks = task_plans(segment.config)
            entry["tasks"] = {
                name: {"iteration_limit": inner.iteration_limit, "segments": _segments(inner)}
                for name, inner in tasks.items()
            }
        made.append(entry)
    return made


if __name__ == "__main__":
    print(json.dumps({file.stem: describe(file) for file in FILES}, indent=1, sort_keys=True))
