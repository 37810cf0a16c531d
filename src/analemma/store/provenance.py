"""Where versions come from: what was kept of it in their metadata, for a list of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from analemma.canon.nodes import BlockId
from analemma.catalog.port import Version
from analemma.errors import Corrupt, Expired
from analemma.state.arguments import WHY

if TYPE_CHECKING:
    from analemma.state.kernel import Kernel

AT_ONCE = 200
"""Manifests that are read together."""


def why_of(metadata: Any) -> dict[str, Any] | None:
    """What a version's metadata says of it; None if it says nothing."""
    found = metadata.get(WHY) if isinstance(metadata, Mapping) else None
    return found if isinstance(found, dict) else None


def read_metadata(kernel: Kernel, manifest: BlockId) -> dict[str, Any] | None:
    """What was kept with a version that is known to be there."""
    packed = kernel._commits.manifest(manifest).metadata
    found: dict[str, Any] | None = kernel._commits.guarded(manifest, lambda: kernel._trees.unpack(packed))
    return found


def read_whys(kernel: Kernel, versions: Sequence[Version]) -> dict[BlockId, dict[str, Any]]:
    """Where these come from, of those that say it. One that cannot be read says nothing: history is shown also of what
    is damaged."""
    found: dict[BlockId, dict[str, Any]] = {}
    for start in range(0, len(versions), AT_ONCE):
        page = [version.id for version in versions[start : start + AT_ONCE]]
        with suppress(Corrupt):
            kernel._blocks.fetch(page)
        for manifest in page:
            with suppress(Corrupt, Expired):
                why = why_of(read_metadata(kernel, manifest))
                if why is not None:
                    found[manifest] = why
    return found
