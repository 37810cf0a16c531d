"""The fat payload of the design documents: every segment was handed the whole workflow."""

from __future__ import annotations

import random
from typing import Any

KB = 1000
SEGMENTS = 100


def words(seed: int, size: int) -> str:
    """Text that is the same on every machine."""
    pick = random.Random(seed)
    made = " ".join(pick.choice(("state", "segment", "merge", "agent", "review", "plan")) for _ in range(size // 4))
    return made[:size]


def fat_event() -> dict[str, Any]:
    """200 KB of workflow, 50 KB of partition map, 100 KB of state, 100 segments, and the control plane."""
    return {
        "ownerId": "user_123",
        "workflowId": "wf_456",
        "execution_id": "exec_789",
        "segment_to_run": 7,
        "total_segments": SEGMENTS,
        "loop_counter": 0,
        "workflow_config": {
            "nodes": [{"id": f"node-{number}", "prompt": words(number, 1_960)} for number in range(SEGMENTS)]
        },
        "partition_map": {
            f"segment-{number}": {"nodes": [f"node-{number}"], "note": words(1_000 + number, 440)}
            for number in range(SEGMENTS)
        },
        "current_state": {
            "messages": [{"role": "user", "content": words(2_000 + number, 960)} for number in range(SEGMENTS)]
        },
        "node": {"id": "node-7", "type": "llm_chat"},
        "config": {"model": "large", "temperature": 0.2},
    }


SEGMENT_CONFIG = {
    "nodes": [{"id": "node-7", "type": "llm_chat", "reads": ["current_state"], "writes": ["current_state"]}]
}
NAMES: dict[str, Any] = {"owner_id": "user_123", "workflow_id": "wf_456", "execution_id": "exec_789"}
