"""Fields of a state that belong to whoever runs the workflow: the other side of a merge cannot overwrite them."""

from __future__ import annotations

RESERVED_PREFIX = "_kernel_"
RESERVED_FIELDS = frozenset(
    {
        # What names and proves the version that is running.
        "manifest_id",
        "manifest_hash",
        "config_hash",
        # The control plane: identity, places, counters and modes of an execution.
        "ownerId",
        "workflowId",
        "idempotency_key",
        "execution_id",
        "workflow_config_s3_path",
        "state_s3_path",
        "partition_map_s3_path",
        "segment_manifest_s3_path",
        "final_state_s3_path",
        "segment_to_run",
        "total_segments",
        "loop_counter",
        "max_loop_iterations",
        "max_branch_iterations",
        "distributed_strategy",
        "distributed_mode",
        "MOCK_MODE",
        "light_config",
    }
)


def is_reserved(field: str) -> bool:
    """Whether a top-level field is reserved."""
    return field in RESERVED_FIELDS or field.startswith(RESERVED_PREFIX)
