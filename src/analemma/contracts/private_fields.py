"""Fields of a state that are nobody's business outside of it, whoever asks for them."""

from __future__ import annotations

from typing import Final

ALWAYS_EXCLUDED: Final = frozenset({"workflow_config", "partition_map", "debug_info", "internal_cache"})
"""What no node sees, in no ring."""
RESERVED_PREFIXES: Final = ("_kernel_", "__")
"""Fields of the system: no declaration of a node reaches them, in no ring."""
OUTERMOST_RESTRICTIONS: Final = frozenset({"internal_state", "credentials", "workflow_metadata"})
"""What the least privileged ring does not see."""


def is_private(field: str) -> bool:
    """Whether a top-level field stays inside: views and sinks see what ring 3 sees, and no more."""
    return field in ALWAYS_EXCLUDED or field in OUTERMOST_RESTRICTIONS or field.startswith(RESERVED_PREFIXES)
