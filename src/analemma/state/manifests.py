"""The manifest block: one version of one workflow's state, and everything that is true of that version.

A manifest is the DAG-CBOR array `["manifest", format, fields]`. Its id is its hash; 16 random bytes make two equal
saves two manifests. The parent is named, not linked: a version does not keep its ancestors alive."""

from __future__ import annotations

from typing import Any, NamedTuple

from analemma.canon.identity import BlockId, block_id, to_cid
from analemma.canon.nodes import Block
from analemma.canon.values import (
    Link,
    Wire,
    decode,
    encode,
    link_wire,
    read_special,
    wire_links,
)
from analemma.catalog.port import BranchKey, ManifestRow
from analemma.errors import Corrupt

FORMAT = 1
KIND = "manifest"


class Manifest(NamedTuple):
    """What a manifest block says."""

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

    def row(self, manifest: BlockId) -> ManifestRow:
        """The columns that repeat this manifest."""
        return ManifestRow(
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
        "parent": None if manifest.parent is None else b"\0" + manifest.parent,
        "root": link_wire(manifest.root),
        "created_at": manifest.created_at_us,
        "nonce": b"\0" + manifest.nonce,
        "execution": manifest.execution,
        "segment": manifest.segment,
        "message": manifest.message,
        "metadata": manifest.metadata,
        "config": None if manifest.config is None else to_cid(manifest.config),
        "segments": None if manifest.segments is None else to_cid(manifest.segments),
    }
    data = encode([KIND, FORMAT, fields])
    return Block(block_id(data), data, tuple(manifest_links(manifest)))


def manifest_links(manifest: Manifest) -> list[BlockId]:
    """The blocks that a manifest keeps alive."""
    links = [manifest.root.id, *[link.id for link in wire_links(manifest.metadata)]]
    return links + [block for block in (manifest.config, manifest.segments) if block is not None]


def decode_manifest(manifest: BlockId, data: bytes) -> Manifest:
    """Read a manifest block's verified bytes."""
    try:
        kind, number, fields = decode(data)
        if kind != KIND or number != FORMAT:
            raise ValueError(f"kind {kind!r}, format {number!r}")
        root = read_special(fields["root"]).link
        if root is None:
            raise ValueError("no root")
        return Manifest(
            key=BranchKey(fields["owner"], fields["workflow"], fields["branch"]),
            version=fields["version"],
            parent=_unmarked(fields["parent"]),
            root=root,
            created_at_us=fields["created_at"],
            nonce=fields["nonce"][1:],
            execution=fields["execution"],
            segment=fields["segment"],
            message=fields["message"],
            metadata=fields["metadata"],
            config=_linked(fields["config"]),
            segments=_linked(fields["segments"]),
        )
    except (ValueError, TypeError, KeyError) as exc:
        raise Corrupt(f"block {manifest.hex()} is not a manifest: {exc}", block=manifest.hex()) from exc


def _unmarked(data: Any) -> BlockId | None:
    return None if data is None else BlockId(data[1:])


def _linked(cid: Any) -> BlockId | None:
    return None if cid is None else BlockId(cid[4:])
