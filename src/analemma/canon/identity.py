"""What a block is called: SHA-256 of exactly its bytes, written in links as a CIDv1 (dag-cbor, sha2-256)."""

from __future__ import annotations

import hashlib
import re
from typing import NewType

from analemma.errors import Corrupt, Invalid

BlockId = NewType("BlockId", bytes)
"""The 32 bytes of a SHA-256. Shown to people as 64 hexadecimal digits."""

ID_BYTES = 32
_ID = re.compile(r"[0-9a-f]{64}")
CID_PREFIX = b"\x01\x71\x12\x20"
"""CID version 1, codec dag-cbor, hash sha2-256, 32 bytes of it."""


def block_id(data: bytes) -> BlockId:
    """The id of these bytes."""
    # Not BlockId(...): that is a call, and all it does is to return what it is given.
    return hashlib.sha256(data).digest()  # type: ignore[return-value]


def verify_block(block: BlockId, data: bytes) -> bytes:
    """Return `data` if it is what `block` names; raise Corrupt otherwise."""
    if hashlib.sha256(data).digest() != block:  # guard: block.hash
        raise Corrupt(
            f"block {block.hex()} holds other bytes than its name says",
            hint="restore it from a second copy",
            block=block.hex(),
        )
    return data


def to_cid(block: BlockId) -> bytes:
    """The CID bytes that stand for this block in a link."""
    return CID_PREFIX + block


def from_cid(cid: bytes) -> BlockId:
    """The block that a link's CID bytes name."""
    if len(cid) != 36 or not cid.startswith(CID_PREFIX):
        raise Corrupt("a link does not hold a dag-cbor sha2-256 CID")
    return cid[4:]  # type: ignore[return-value]


def parse_block_id(text: str) -> BlockId:
    """Read the 64 hexadecimal digits people type."""
    if not isinstance(text, str) or _ID.fullmatch(text) is None:
        raise Invalid(f"not a block id: {text!r}", hint="an id is 64 lower-case hexadecimal digits")
    return BlockId(bytes.fromhex(text))
