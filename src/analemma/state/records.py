"""What is stored of versions beside their state, as values and as bytes: manifests, the journal's records, receipts.

Each is the DAG-CBOR array `[kind, format, fields]`. Bytes in it begin with a NUL, which tells them from links."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from analemma import errors
from analemma.canon.nodes import (
    Block,
    BlockId,
    Link,
    Wire,
    block_id,
    decode,
    encode,
    link_wire,
    read_special,
    to_cid,
    wire_links,
)
from analemma.catalog.port import BranchKey, Head, JournalRow, Noting, Version
from analemma.errors import AnalemmaError, Corrupt

T = TypeVar("T")

FORMAT: Final = 1
COMMITTED: Final = "committed"
CONFIGURED: Final = "configured"
SEGMENT_INJECTED: Final = "segment_injected"
ROLLED_BACK: Final = "rolled_back"
FORKED: Final = "forked"
MERGED: Final = "merged"
"""A merge: the record's fact `from` names the manifest that was merged in."""
EXPIRED: Final = "expired"
"""Removed by retention: the record's facts name the manifests, as hexadecimal text."""
TAGGED: Final = "tagged"
UNTAGGED: Final = "untagged"
PINNED: Final = "pinned"
UNPINNED: Final = "unpinned"
DECIDED: Final = "decided"
DELETED: Final = "deleted"
"""A tombstone: the fact `version` is where the branch stood, and where another one of its name goes on."""
RESTORED: Final = "restored"
"""The branch that the tombstone before it tells of is back."""


_KINDS: dict[str, type[AnalemmaError]] = {
    found.kind: found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, AnalemmaError)
}


def encode_record(kind: str, fields: Any, number: int = FORMAT) -> bytes:
    """The bytes of a record."""
    return bytes(encode([kind, number, fields]))


def decode_record(
    kind: str, data: bytes, read: Callable[[Any], T], trouble: str, newest: int = FORMAT, **facts: Any
) -> T:
    """What `read` makes of a record's fields; Corrupt, which says the trouble, unless the bytes are such a record."""
    try:
        found, version, fields = decode(data)
        if found != kind or not FORMAT <= version <= newest:
            raise ValueError(f"kind {found!r}, format {version!r}")
        return read(fields)
    except (ValueError, TypeError, KeyError, AnalemmaError) as exc:
        raise Corrupt(f"{trouble}: {exc}", **facts) from exc


def marked(data: bytes | None) -> bytes | None:
    """Bytes as a record holds them."""
    return None if data is None else b"\0" + data


def unmarked(data: Any) -> BlockId:
    """The bytes that a record holds."""
    return BlockId(data[1:])


def _unmarked(data: Any) -> BlockId | None:
    return None if data is None else unmarked(data)


class Manifest(NamedTuple):
    """What a manifest block says: one version of one workflow's state, and everything that is true of that version.

    Its id is its hash; 16 random bytes make two equal saves two manifests. The parent is named, not linked: a version
    does not keep its ancestors alive."""

    key: BranchKey
    version: int
    parent: BlockId | None
    root: Link
    created_at_us: int
    nonce: bytes
    execution: str | None = None
    segment: int | None = None
    message: str | None = None
    metadata: Wire = None
    """The caller's own dict, in stored form; a large one lives in a tree of its own."""
    config: BlockId | None = None
    segments: BlockId | None = None

    def row(self, manifest: BlockId) -> Version:
        """The columns that repeat this manifest."""
        return Version(
            id=manifest,
            key=self.key,
            version=self.version,
            parent=self.parent,
            root=self.root.id,
            created_at_us=self.created_at_us,
            execution=self.execution,
            segment=self.segment,
            message=self.message,
        )


def encode_manifest(manifest: Manifest) -> Block:
    """The block of a manifest."""
    fields = {
        "owner": manifest.key.owner,
        "workflow": manifest.key.workflow,
        "branch": manifest.key.branch,
        "version": manifest.version,
        "parent": marked(manifest.parent),
        "root": link_wire(manifest.root),
        "created_at": manifest.created_at_us,
        "nonce": marked(manifest.nonce),
        "execution": manifest.execution,
        "segment": manifest.segment,
        "message": manifest.message,
        "metadata": manifest.metadata,
        "config": None if manifest.config is None else to_cid(manifest.config),
        "segments": None if manifest.segments is None else to_cid(manifest.segments),
    }
    data = encode_record("manifest", fields)
    return Block(block_id(data), data, tuple(manifest_links(manifest)))


def manifest_links(manifest: Manifest) -> list[BlockId]:
    """The blocks that a manifest keeps alive."""
    links = [manifest.root.id, *[link.id for link in wire_links(manifest.metadata)]]
    return links + [block for block in (manifest.config, manifest.segments) if block is not None]


def decode_manifest(manifest: BlockId, data: bytes) -> Manifest:
    """Read a manifest block's verified bytes."""
    name = manifest.hex()
    return decode_record("manifest", data, _manifest, f"block {name} is not a manifest", block=name)


def _manifest(fields: Any) -> Manifest:
    return Manifest(
        key=BranchKey(fields["owner"], fields["workflow"], fields["branch"]),
        version=fields["version"],
        parent=_unmarked(fields["parent"]),
        root=read_link(fields["root"]),
        created_at_us=fields["created_at"],
        nonce=unmarked(fields["nonce"]),
        execution=fields["execution"],
        segment=fields["segment"],
        message=fields["message"],
        metadata=fields["metadata"],
        config=_linked(fields["config"]),
        segments=_linked(fields["segments"]),
    )


def read_link(wire: Wire) -> Link:
    """The link that stands in a record; Corrupt if something else does."""
    link = read_special(wire)
    if not isinstance(link, Link):
        raise Corrupt("a record has something else where it must have a link")
    return link


def _linked(cid: Any) -> BlockId | None:
    return None if cid is None else BlockId(cid[4:])


def next_record(
    key: BranchKey,
    before: Head | None,
    *,
    kind: str,
    manifest: BlockId | None,
    at_us: int,
    version: int | None = None,
    facts: Mapping[str, Any] | None = None,
) -> JournalRow:
    """The journal's record that follows the branch's tip; with `version`, the one that moves the head to the manifest.

    Every record holds the hash of the one before, and the tip stands in the head row, so a record cannot be dropped,
    changed or put elsewhere without the chain or the head disagreeing."""
    seq = 1 if before is None else before.journal_seq + 1
    fields = {
        "owner": key.owner,
        "workflow": key.workflow,
        "branch": key.branch,
        "seq": seq,
        "before": None if before is None else marked(before.journal_tip),
        "kind": kind,
        "manifest": marked(manifest),
        "version": version,
        "at": at_us,
        "facts": dict(facts or {}),
    }
    body = encode_record("journal", fields)
    return JournalRow(seq, kind, manifest, body, sha256(body).digest(), at_us)


def read_record(row: JournalRow) -> dict[str, Any]:
    """What a record of the journal says, once its hash and the columns that repeat it are checked."""
    if sha256(row.body).digest() != row.hash:
        raise Corrupt(f"journal record {row.seq} does not match its hash", seq=row.seq)

    def read(fields: Any) -> tuple[dict[str, Any], tuple[Any, ...]]:
        return dict(fields), (fields["seq"], fields["kind"], _unmarked(fields["manifest"]), fields["at"])

    fields, said = decode_record("journal", row.body, read, f"journal record {row.seq} cannot be read", seq=row.seq)
    if said != (row.seq, row.kind, row.manifest, row.created_at_us):
        raise Corrupt(f"the columns of journal record {row.seq} differ from the record", seq=row.seq)
    return fields


@dataclass(frozen=True, slots=True)
class Note:
    """A record that someone would like to be the journal's next, and the change to rows that it tells of."""

    kind: str
    manifest: BlockId | None
    facts: Mapping[str, Any] = field(default_factory=dict)
    procedure: Noting = "append_record"
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the procedure takes, by name."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What was committed and where the journal stood. Kept elsewhere, it proves later what the store must still
    show."""

    key: BranchKey
    manifest: BlockId
    version: int
    parent: BlockId | None
    root: BlockId
    journal_seq: int
    journal_tip: bytes

    @classmethod
    def of(cls, version: Version, record: JournalRow) -> Receipt:
        """The receipt of a version that this record tells of."""
        return cls(version.key, version.id, version.version, version.parent, version.root, record.seq, record.hash)


def encode_receipt(receipt: Receipt) -> bytes:
    """A receipt as bytes."""
    fields = [
        list(receipt.key),
        marked(receipt.manifest),
        receipt.version,
        marked(receipt.parent),
        marked(receipt.root),
        receipt.journal_seq,
        marked(receipt.journal_tip),
    ]
    return encode_record("receipt", fields)


def decode_receipt(data: bytes) -> Receipt:
    """Read a receipt's bytes."""

    def read(fields: Any) -> Receipt:
        key, manifest, version, parent, root, seq, tip = fields
        return Receipt(
            BranchKey(*key), unmarked(manifest), version, _unmarked(parent), unmarked(root), seq, unmarked(tip)
        )

    return decode_record("receipt", data, read, "not a receipt")


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

    @classmethod
    def of(cls, receipt: Receipt, **cost: Any) -> Commit:
        """The commit that a receipt is of."""
        parent = None if receipt.parent is None else receipt.parent.hex()
        return cls(receipt.manifest.hex(), receipt.version, parent, receipt.root.hex(), receipt, **cost)

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


def write_failure(error: AnalemmaError) -> str:
    """An error as it is kept with the delta."""
    facts = {name: fact for name, fact in error.facts.items() if fact is None or type(fact) in (str, int, bool)}
    return orjson.dumps({"kind": error.kind, "message": error.message, "hint": error.hint, "facts": facts}).decode()


def read_failure(text: str) -> AnalemmaError:
    """The error that was kept."""
    try:
        fields: dict[str, Any] = orjson.loads(text)
        return _KINDS.get(fields["kind"], AnalemmaError)(fields["message"], hint=fields["hint"], **fields["facts"])
    except (ValueError, TypeError, KeyError) as exc:
        raise Corrupt(f"the reason of a failed checkpoint cannot be read: {exc}") from exc
