"""What callers get to see of commits and versions: plain values with ids as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from analemma.state.committer import Outcome
from analemma.state.records import Receipt


@dataclass(frozen=True, slots=True)
class Commit(Mapping[str, Any]):
    """A save that happened; also readable as a mapping. Two are equal when they name the same version, whatever each
    cost."""

    manifest_id: str
    version: int
    parent_id: str | None
    root_hash: str
    receipt: Receipt
    committed: bool = True
    block_ids: tuple[str, ...] = field(default=(), compare=False)
    """The blocks that were not stored before."""
    blocks_stored: int = field(default=0, compare=False)
    blocks_reused: int = field(default=0, compare=False)
    bytes_written: int = field(default=0, compare=False)
    object_paths: tuple[str, ...] = field(default=(), compare=False)

    @property
    def manifest_hash(self) -> str:
        """The same as `manifest_id`: a manifest is named by its hash."""
        return self.manifest_id

    def __getitem__(self, name: str) -> Any:
        if name in _COMMIT_FIELDS:
            return getattr(self, name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMIT_FIELDS)

    def __len__(self) -> int:
        return len(_COMMIT_FIELDS)


_COMMIT_FIELDS = ("manifest_hash", *[item.name for item in dataclasses.fields(Commit)])


def commit_of(outcome: Outcome) -> Commit:
    """The caller's view of what the committer did."""
    receipt = outcome.receipt
    stored = sorted(outcome.committed.stored)
    return Commit(
        manifest_id=receipt.manifest.hex(),
        version=receipt.version,
        parent_id=None if receipt.parent is None else receipt.parent.hex(),
        root_hash=receipt.root.hex(),
        receipt=receipt,
        block_ids=tuple(block.hex() for block in stored),
        blocks_stored=len(stored),
        blocks_reused=max(0, outcome.blocks_emitted - len(stored)),
        bytes_written=outcome.bytes_written,
        object_paths=outcome.object_keys,
    )
