"""What slices were made of, as a compile keeps it: JSON by slice type, in which every slice of the version is named."""

from __future__ import annotations

import json
from collections.abc import Mapping

from analemma.slicing.entity_key import EntityKey
from analemma.slicing.incremental import SliceState
from analemma.slicing.joining import Dependency


def format_dependencies(slices: Mapping[str, SliceState]) -> str:
    """The same slices with the same dependencies give the same text; the order is the ruleset's."""
    told = {
        slice_type: [[each.key.type, each.key.id, each.slice_type, each.hash] for each in state.dependencies]
        for slice_type, state in slices.items()
    }
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False)


def parse_dependencies(text: str, tenant: str) -> dict[str, tuple[Dependency, ...]]:
    """What was looked up for each slice."""
    told = json.loads(text)
    return {
        slice_type: tuple(
            Dependency(EntityKey(entity_type, tenant, entity_id), joined_type, found)
            for entity_type, entity_id, joined_type, found in dependencies
        )
        for slice_type, dependencies in told.items()
    }
