"""What a block is called: SHA-256 of exactly its bytes, written in links as a CIDv1 (dag-cbor, sha2-256)."""

from __future__ import annotations

import re
from typing import NewType

from analemma.errors import Invalid

BlockId = NewType("BlockId", bytes)
"""The 32 bytes of a SHA-256. Shown to people as 64 hexadecimal digits."""

ID_BYTES = 32
_ID = re.compile(r"[0-9a-f]{64}")
CID_PREFIX = b"\x01\x71\x12\x20"
"""CID version 1, codec dag-cbor, hash sha2-256, 32 bytes of it."""


def parse_block_id(text: str) -> BlockId:
    """Read the 64 hexadecimal digits people type."""
    if not isinstance(text, str) or _ID.fullmatch(text) is None:
        raise Invalid(f"not a block id: {text!r}", hint="an id is 64 lower-case hexadecimal digits")
    return BlockId(bytes.fromhex(text))
