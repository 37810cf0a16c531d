"""Receipts: what was committed and where the journal stood, small enough to keep anywhere else."""

from __future__ import annotations

from dataclasses import dataclass

from analemma.canon.identity import BlockId
from analemma.canon.values import decode, encode
from analemma.catalog.port import BranchKey
from analemma.errors import Corrupt

FORMAT = 1
KIND = "receipt"


@dataclass(frozen=True, slots=True)
class Receipt:
    """Kept elsewhere, it proves later what the store must still show."""

    key: BranchKey
    manifest: BlockId
    version: int
    parent: BlockId | None
    root: BlockId
    journal_seq: int
    journal_tip: bytes


def encode_receipt(receipt: Receipt) -> bytes:
    """A receipt as bytes."""
    key = receipt.key
    fields = [
        [key.owner, key.workflow, key.branch],
        b"\0" + receipt.manifest,
        receipt.version,
        None if receipt.parent is None else b"\0" + receipt.parent,
        b"\0" + receipt.root,
        receipt.journal_seq,
        b"\0" + receipt.journal_tip,
    ]
    return bytes(encode([KIND, FORMAT, fields]))


def decode_receipt(data: bytes) -> Receipt:
    """Read a receipt's bytes."""
    try:
        kind, number, fields = decode(data)
        if kind != KIND or number != FORMAT:
            raise ValueError(f"kind {kind!r}, format {number!r}")
        key, manifest, version, parent, root, seq, tip = fields
        return Receipt(
            BranchKey(*key),
            BlockId(manifest[1:]),
            version,
            None if parent is None else BlockId(parent[1:]),
            BlockId(root[1:]),
            seq,
            tip[1:],
        )
    except (ValueError, TypeError) as exc:
        raise Corrupt(f"not a receipt: {exc}") from exc
