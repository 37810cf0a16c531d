"""What a catalog has to do so that versions can be made, kept and read, and the values that go in and come out.

A backend that is not SQL implements `KernelCatalog` and passes `analemma.testing.catalogs.KernelCatalogSuite`. What
else the shipped catalogs answer (workflows, branches, policies and so on) is asked of `SqlCatalog` itself.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, NewType, Protocol

from analemma.canon.nodes import BlockId
from analemma.clock import moment

TenantId = NewType("TenantId", int)
UploadId = NewType("UploadId", bytes)
"""16 random bytes; also the name of the object that the upload writes."""

UploadState = Literal["temp", "ready", "deleting"]
RefKind = Literal["tag", "pin"]
Verdict = Literal["approved", "rejected", "escalated", "pending"]


class BlockRow(NamedTuple):
    """One stored block: its bytes inline (`body`), or a range of an uploaded object."""

    id: BlockId
    size: int
    """Length of the canonical bytes, before compression."""
    codec: int
    """How the stored bytes are encoded (see `blocks/store.py`)."""
    body: bytes | None = None
    upload: UploadId | None = None
    offset: int | None = None
    length: int | None = None
    links: bytes | None = None
    """None: it links to nothing. Empty: its links are read from its bytes. Otherwise: the linked ids, 32 bytes each."""


class PreparedBlocks(NamedTuple):
    """Blocks ready for a transaction. Large ones are uploaded already, and count for nothing until it."""

    rows: tuple[BlockRow, ...] = ()
    uploads: tuple[UploadId, ...] = ()


ASIDE = "~deleted/"
"""How an owner begins who has the rows of a deletion: then follow what tells it from others, and whose they were.
Nobody else can be called that, so that no reader finds them by their own names."""


def owner_of(owner: str) -> str:
    """Whose it is, or was before it was deleted."""
    return owner.split("/", 2)[2] if owner.startswith(ASIDE) else owner


class BranchKey(NamedTuple):
    """Which line of history: one branch of one owner's workflow."""

    owner: str
    workflow: str
    branch: str = "main"


class Version(NamedTuple):
    """One line of history: the columns that repeat a manifest block, so that history needs no blocks."""

    id: BlockId
    key: BranchKey
    version: int
    parent: BlockId | None
    root: BlockId
    created_at_us: int
    execution: str | None = None
    segment: int | None = None
    message: str | None = None
    or_before: bool = False
    """Of an answer of `blame`: it may also have been one of the versions before it, which have expired."""

    @property
    def manifest_id(self) -> str:
        """The manifest, as callers name it."""
        return self.id.hex()

    @property
    def owner_id(self) -> str:
        """Whose it is."""
        return owner_of(self.key.owner)

    @property
    def workflow_id(self) -> str:
        """The workflow that it is a version of."""
        return self.key.workflow

    @property
    def branch(self) -> str:
        """The branch that it was committed on."""
        return self.key.branch

    @property
    def parent_id(self) -> str | None:
        """The version before it."""
        return None if self.parent is None else self.parent.hex()

    @property
    def root_hash(self) -> str:
        """The root of its state."""
        return self.root.hex()

    @property
    def created_at(self) -> dt.datetime:
        """When it was committed."""
        return moment(self.created_at_us)

    @property
    def execution_id(self) -> str | None:
        """The run that made it."""
        return self.execution

    @property
    def segment_id(self) -> int | None:
        """The step of the run that made it."""
        return self.segment

    def to_json(self) -> dict[str, Any]:
        """What callers see, as plain values."""
        named = ("manifest_id", "owner_id", "workflow_id", "branch", "version", "parent_id", "root_hash", "created_at")
        return shown(self, (*named, "execution_id", "segment_id", "message", "or_before"))


def shown(row: object, names: Sequence[str]) -> dict[str, Any]:
    """What a row has under these names, as plain values."""
    found = {name: getattr(row, name) for name in names}
    return {name: item.isoformat() if isinstance(item, dt.datetime) else item for name, item in found.items()}


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
    channel: str = ""
    """Whose batches deliver it; '': workers do, event by event. All events of a lane have the same."""


@dataclass(frozen=True, slots=True)
class Idempotency:
    """The caller's key, what was asked under it, and the receipt to give whoever asks again."""

    key: str
    fingerprint: bytes
    receipt: bytes


class RowChange(NamedTuple):
    """A change to a table of somebody else's, made in the transaction of a commit: a statement by its name."""

    statement: str
    parameters: Mapping[str, Any]
    touches: int | None = 1
    """How many rows it has to change, or all of it is undone; None: any number."""
    commit: str | None = None
    """Then it is a procedure, and this is the one that does it together with a commit."""


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Everything that becomes visible together, or not at all."""

    tenant: TenantId
    expected: Head | None
    """The head this was built on; None: the branch must not exist yet."""
    manifest: Version
    record: JournalRow
    blocks: tuple[BlockRow, ...]
    """Every block emitted, whether or not it is believed to be stored already."""
    bases: tuple[BlockId, ...] = ()
    """Manifests whose blocks are linked without being emitted, besides the expected head's: fork or rollback source,
    the other side of a merge."""
    uploads: tuple[UploadId, ...] = ()
    events: tuple[OutboxEvent, ...] = ()
    idempotency: Idempotency | None = None
    unless_pending: bool = False
    """HeadMoved also while deltas are pending on the branch: for whoever has not looked whether any do."""
    rows: tuple[RowChange, ...] = ()
    """What else becomes visible with it, changed last and in this order."""

    @property
    def head(self) -> Head:
        """Where the branch stands afterwards."""
        return Head(self.manifest.key, self.manifest.id, self.manifest.version, self.record.seq, self.record.hash)


class Committed(NamedTuple):
    """What a commit came to."""

    stored: frozenset[BlockId] = frozenset()
    """The blocks that were not there before; none when the answer was lost and read back."""
    known: Idempotency | None = None
    """What was committed under the same idempotency key before, perhaps for another request: this one was not."""


class Upload(NamedTuple):
    """An intent: this object is about to be, or has been, written."""

    id: UploadId
    state: UploadState
    object_key: str
    size: int
    created_at_us: int
    owner: str | None = None
    workflow: str | None = None
    execution: str | None = None


class CatalogStats(NamedTuple):
    """What one tenant (or, summed, the store) holds."""

    blocks: int
    logical_bytes: int
    stored_bytes: int
    manifests: int
    heads: int
    uploads: int


class Shown:
    """A row that callers get as it is: they see ids as text, and times as moments."""

    __slots__ = ()
    FIELDS: ClassVar[tuple[str, ...]]
    manifest: BlockId
    created_at_us: int

    @property
    def manifest_id(self) -> str:
        """The version that it is about, as callers name it."""
        return self.manifest.hex()

    @property
    def created_at(self) -> dt.datetime:
        """When it came to be."""
        return moment(self.created_at_us)

    def to_json(self) -> dict[str, Any]:
        """What callers see, as plain values."""
        return shown(self, self.FIELDS)


@dataclass(frozen=True, slots=True)
class Ref(Shown):
    """What names a version, and so keeps it from expiring: a tag or a pin."""

    name: str
    """Unique among those of its kind in its workflow; a pin is named by its version."""
    key: BranchKey
    """The branch of the version, in whose journal it is recorded."""
    manifest: BlockId
    version: int
    text: str | None
    created_at_us: int

    @property
    def branch(self) -> str:
        """The version's branch."""
        return self.key.branch


@dataclass(frozen=True, slots=True)
class Tag(Ref):
    """A name for one version, unique in its workflow."""

    FIELDS = ("name", "manifest_id", "version", "branch", "message", "created_at")

    @property
    def message(self) -> str | None:
        """What was said of it."""
        return self.text


@dataclass(frozen=True, slots=True)
class Pin(Ref):
    """A version that must not expire."""

    FIELDS = ("manifest_id", "version", "branch", "reason", "created_at")

    @property
    def reason(self) -> str | None:
        """Why not."""
        return self.text


Noting = Literal["append_record", "put_ref", "drop_ref", "put_decision", "expire_versions"]
"""What a record does beside being there, most to the version that it names:

- `put_ref`: it gets the tag `name`, with a `text`, which is free or still on the one version in `left`; or it gets a
  pin, which may be there already.
- `drop_ref`: the tag or the pin `name`, which is still on the one version in `left`, goes.
- `put_decision`: the newest decision on it, which is of this `version`, by which it is found.
- `expire_versions`: removes the `expired` versions of the branch (`Version`), all or none: none that is the
  head, tagged or pinned by now.
"""


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """A journal record that does not move the head, and the change to rows that it tells of."""

    tenant: TenantId
    expected: Head
    record: JournalRow
    procedure: Noting = "append_record"
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the procedure takes, by name."""


class KernelCatalog(Protocol):
    """What `BlockStore` and `Commits` need, and reading versions back. Every call is atomic by itself; `commit` is the
    only one that moves a head. Texts come checked: they are Unicode without NUL."""

    def tenant(self, name: str) -> TenantId:
        """The tenant of this name, made if there is none."""

    def read_blocks(self, tenant: TenantId, ids: Sequence[BlockId]) -> dict[BlockId, BlockRow]:
        """Those of the blocks that exist; one round trip for any number."""

    def commit(self, request: CommitRequest) -> Committed:
        """Make it all visible, durably. Raises and changes nothing: HeadMoved (`found`: Head or None; perhaps the same
        request was faster), Expired (a base is gone; `manifest`), Conflict (`kind` conflict: an upload was collected
        meanwhile, or one of `rows` did not find what it has to change), Unavailable, OutcomeUnknown."""

    def head(self, tenant: TenantId, key: BranchKey) -> Head | None:
        """Where the branch stands."""

    def head_and_pending(self, tenant: TenantId, key: BranchKey) -> tuple[Head | None, bool]:
        """The same, and whether deltas are pending there (see `catalog.kernel.pending`); one round trip for
        both."""

    def manifest(self, tenant: TenantId, manifest: BlockId) -> Version | None:
        """The row of one manifest."""

    def history(
        self,
        tenant: TenantId,
        key: BranchKey,
        *,
        before_version: int | None = None,
        execution: str | None = None,
        segment: int | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
        decision: Verdict | None = None,
        limit: int = 100,
    ) -> list[Version]:
        """Newest first, below `before_version`; of one execution or segment, from a time on and before another, with
        this as the newest decision, where these are named."""

    def journal(self, tenant: TenantId, key: BranchKey, *, after_seq: int = 0, limit: int = 1000) -> list[JournalRow]:
        """Oldest first, above `after_seq`."""

    def last_record(self, tenant: TenantId, key: BranchKey) -> JournalRow | None:
        """The end of a branch's journal: of one that was deleted, the tombstone."""

    def receipt(self, tenant: TenantId, key: BranchKey, idempotency_key: str) -> Idempotency | None:
        """What was committed under this key, if anything."""

    def open_upload(self, tenant: TenantId, upload: Upload) -> None:
        """Record the intent, durably, before the object's first byte."""

    def upload(self, tenant: TenantId, upload: UploadId) -> Upload | None:
        """The state of an intent."""

    def claim_failed(self, tenant: TenantId, uploads: Sequence[tuple[UploadId, str]], error: str) -> None:
        """Give the intents of a commit that failed to the collector, durably, each with its object's key; not those
        that were committed after all."""

    def stats(self, tenant: TenantId | None = None) -> CatalogStats:
        """Counts and bytes of one tenant or of all."""

    def append(self, request: RecordRequest) -> None:
        """Add a record behind the journal's tip, and do what it tells of, durably. Raises and changes nothing:
        HeadMoved (the head or the tip is another by now), Expired (the record's manifest is gone), Conflict (what it
        tells of is not possible any more: look again), Unavailable, OutcomeUnknown."""

    def refs(
        self, tenant: TenantId, owner: str, workflow: str, *, kind: RefKind | None = None, name: str | None = None
    ) -> list[Ref]:
        """A workflow's tags and pins, oldest first; of one kind or of one name, where these are named."""

    def close(self) -> None:
        """Give back connections and locks; safe to call twice."""
