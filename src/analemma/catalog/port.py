"""The narrow face the kernel sees of a catalog: rows in, rows out, and one commit.

A backend that is not SQL implements `KernelCatalog` and passes `analemma.testing.catalogs.KernelCatalogSuite`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NewType, Protocol

from analemma.canon.identity import BlockId

TenantId = NewType("TenantId", int)
UploadId = NewType("UploadId", bytes)
"""16 random bytes; also the name of the object that the upload writes."""

UploadState = Literal["temp", "ready", "deleting"]


@dataclass(frozen=True, slots=True)
class BlockRow:
    """One stored block: its bytes inline (`body`), or a range of an uploaded object."""

    id: BlockId
    size: int
    """Length of the canonical bytes, before compression."""
    codec: int
    """How the stored bytes are encoded (see `blocks/codec.py`)."""
    body: bytes | None = None
    upload: UploadId | None = None
    offset: int | None = None
    length: int | None = None
    links: bytes | None = None
    """None: it links to nothing. Empty: its links are read from its bytes. Otherwise: the linked ids, 32 bytes each."""


@dataclass(frozen=True, slots=True, order=True)
class BranchKey:
    """Which line of history: one branch of one owner's workflow."""

    owner: str
    workflow: str
    branch: str = "main"


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """The columns that repeat a manifest block, so that history needs no blocks."""

    id: BlockId
    key: BranchKey
    version: int
    parent: BlockId | None
    root: BlockId
    created_at_us: int
    execution: str | None = None
    segment: int | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """Where a branch stands, and the tip of its journal."""

    key: BranchKey
    manifest: BlockId
    version: int
    journal_seq: int
    journal_tip: bytes


@dataclass(frozen=True, slots=True)
class JournalRow:
    """One link of a branch's hash chain; `hash` is SHA-256 of `body`, and `body` holds the hash before it."""

    seq: int
    kind: str
    manifest: BlockId | None
    body: bytes
    hash: bytes
    created_at_us: int


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """A row for delivery after the commit; its place in its lane is taken in the commit's transaction."""

    id: str
    aggregate_type: str
    aggregate_id: str
    type: str
    payload: bytes
    idempotency_key: str | None = None
    priority: int = 0
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Idempotency:
    """The caller's key, what was asked under it, and the receipt to give whoever asks again."""

    key: str
    fingerprint: bytes
    receipt: bytes


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Everything that becomes visible together, or not at all."""

    tenant: TenantId
    expected: Head | None
    """The head this was built on; None: the branch must not exist yet."""
    head: Head
    manifest: ManifestRow
    journal: tuple[JournalRow, ...]
    blocks: tuple[BlockRow, ...]
    """Every block emitted, whether or not it is believed to be stored already."""
    bases: tuple[BlockId, ...] = ()
    """Manifests whose blocks are linked without being emitted: parent, fork or rollback source, both merge sides."""
    uploads: tuple[UploadId, ...] = ()
    events: tuple[OutboxEvent, ...] = ()
    idempotency: Idempotency | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit happened now (`replayed` False) or under the same idempotency key before (`replayed` True)."""

    manifest: BlockId
    stored: frozenset[BlockId]
    """The blocks that were not there before. Empty for a replay, and when the answer was lost and read back."""
    replayed: bool = False
    receipt: bytes | None = None
    """What was stored under the idempotency key, when one was given."""


@dataclass(frozen=True, slots=True)
class Upload:
    """An intent: this object is about to be, or has been, written."""

    id: UploadId
    state: UploadState
    object_key: str
    size: int
    created_at_us: int
    owner: str | None = None
    workflow: str | None = None
    execution: str | None = None


@dataclass(frozen=True, slots=True)
class CatalogStats:
    """What one tenant (or, summed, the store) holds."""

    blocks: int
    logical_bytes: int
    stored_bytes: int
    manifests: int
    heads: int
    uploads: int


class KernelCatalog(Protocol):
    """What the kernel needs. Every call is atomic by itself; `commit` is the only one that moves a head."""

    def tenant(self, name: str) -> TenantId:
        """The tenant of this name, made if there is none."""

    def read_blocks(self, tenant: TenantId, ids: Sequence[BlockId]) -> dict[BlockId, BlockRow]:
        """Those of the blocks that exist; one round trip for any number."""

    def commit(self, request: CommitRequest) -> Committed:
        """Make it all visible, durably. Raises and changes nothing: HeadMoved (`found`: Head or None), Expired (a base
        is gone; `manifest`), Conflict (`kind` conflict: other request under the same idempotency key; or an upload was
        collected meanwhile), Unavailable, OutcomeUnknown."""

    def head(self, tenant: TenantId, key: BranchKey) -> Head | None:
        """Where the branch stands."""

    def manifest(self, tenant: TenantId, manifest: BlockId) -> ManifestRow | None:
        """The row of one manifest."""

    def history(
        self,
        tenant: TenantId,
        key: BranchKey,
        *,
        before_version: int | None = None,
        execution: str | None = None,
        limit: int = 100,
    ) -> list[ManifestRow]:
        """Newest first, below `before_version`; of one execution, if one is named."""

    def journal(self, tenant: TenantId, key: BranchKey, *, after_seq: int = 0, limit: int = 1000) -> list[JournalRow]:
        """Oldest first, above `after_seq`."""

    def receipt(self, tenant: TenantId, key: BranchKey, idempotency_key: str) -> Idempotency | None:
        """What was committed under this key, if anything."""

    def open_upload(self, tenant: TenantId, upload: Upload) -> None:
        """Record the intent, durably, before the object's first byte."""

    def upload(self, tenant: TenantId, upload: UploadId) -> Upload | None:
        """The state of an intent."""

    def stats(self, tenant: TenantId | None = None) -> CatalogStats:
        """Counts and bytes of one tenant or of all."""

    def close(self) -> None:
        """Give back connections and locks; safe to call twice."""
