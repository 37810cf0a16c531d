"""What callers get to see of commits and versions: plain values with ids as text."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from analemma.catalog.port import ManifestRow
from analemma.clock import moment
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


class Version(NamedTuple):
    """One line of history."""

    manifest_id: str
    owner_id: str
    workflow_id: str
    branch: str
    version: int
    parent_id: str | None
    root_hash: str
    created_at: dt.datetime
    execution_id: str | None
    segment_id: int | None
    message: str | None
    or_before: bool = False
    """Of an answer of `blame`: it may also have been one of the versions before it, which have expired."""


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


_new_tuple = tuple.__new__


def version_of(row: ManifestRow, *, or_before: bool = False) -> Version:
    """The caller's view of a manifest's row."""
    block, (owner, workflow, branch), number, parent, root, created_at_us, execution, segment, message = row
    made = (
        block.hex(),
        owner,
        workflow,
        branch,
        number,
        None if parent is None else parent.hex(),
        root.hex(),
        moment(created_at_us),
        execution,
        segment,
        message,
        or_before,
    )
    # Not Version(...): a log is thousands of them.
    return _new_tuple(Version, made)
