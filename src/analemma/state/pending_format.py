"""A pending delta in bytes: what a caller asked for, packed while the caller still waits.

It is the DAG-CBOR array `["delta", format, fields]`. Values are in stored form, and the blocks of large ones are in it
too, so nothing but the entry itself is needed to apply it, whichever process does; not even the classes of its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from analemma.blocks.packs import MAX_BLOCK_BYTES
from analemma.blocks.store import RAW, compress, decompress
from analemma.canon.build import Packer, check_new_key, check_path
from analemma.canon.nodes import (
    Block,
    Wire,
    block_id,
    wire_flags,
)
from analemma.canon.pointer import OPERATIONS, Operation
from analemma.canon.trees import Trees
from analemma.canon.types import TypeRegistry
from analemma.catalog.kernel.pending import Delta
from analemma.errors import Corrupt, Invalid, Limit
from analemma.state.arguments import DeltaUpdate, check_metadata
from analemma.state.records import decode_record, encode_record, marked, unmarked

LARGEST_BYTES = MAX_BLOCK_BYTES
"""Of one delta, before compression: it is read as a whole when it is applied."""

WORTH_COMPRESSING = 4096
"""A smaller delta is kept as it is: its row will be gone in a moment, and each way takes as long as packing does."""

_NO_TYPES = TypeRegistry()
"""Whatever is not plain stays tagged."""
_REMOVING = ("remove", "discard")


@dataclass(frozen=True, slots=True)
class PendingDelta:
    """What a version will be made from, besides the version before it."""

    update: DeltaUpdate
    """Values of types beyond JSON and bytes are `Tagged`: they are stored again exactly as they were packed."""
    metadata: Wire
    blocks: tuple[Block, ...]
    """Those of the metadata."""
    execution: str | None
    segment: int | None
    message: str | None


def pack_delta(
    update: DeltaUpdate,
    registry: TypeRegistry,
    *,
    metadata: Mapping[str, Any] | None,
    execution: str | None,
    segment: int | None,
    message: str | None,
) -> Delta:
    """The delta as it is kept; Invalid, with the pointer, for what can never be stored."""
    packer = Packer(registry)
    operations = [_pack_operation(operation, packer) for operation in update.operations]
    described = None if metadata is None else packer.pack(check_metadata(metadata)).wire
    fields = {
        "operations": operations,
        "metadata": described,
        "execution": execution,
        "segment": segment,
        "message": message,
        "blocks": [marked(block.data) for block in packer.made.values()],
    }
    data = encode_record("delta", fields)
    if len(data) > LARGEST_BYTES:
        raise Limit(
            f"the delta has {len(data)} bytes, and a pending one may have {LARGEST_BYTES}",
            hint="save it with save_state_delta, which waits for the commit",
        )
    codec, body = compress(data) if len(data) >= WORTH_COMPRESSING else (RAW, data)
    return Delta(codec, len(data), sha256(data).digest(), body)


def unpack_delta(delta: Delta) -> PendingDelta:
    """What an entry asks for; Corrupt unless its bytes are those that were acknowledged."""
    data = decompress(delta.codec, delta.body, delta.size)
    if sha256(data).digest() != delta.digest:
        raise Corrupt("a pending delta does not match its hash", hint="restore the catalog from a backup")
    return decode_record("delta", data, _pending, "a pending delta cannot be read")


def _pending(fields: Any) -> PendingDelta:
    blocks = {block_id(raw): raw for raw in map(unmarked, fields["blocks"])}
    trees = Trees(lambda wanted: {block: blocks[block] for block in wanted}, _NO_TYPES, "keep")
    metadata: Wire = None
    described: tuple[Block, ...] = ()
    if fields["metadata"] is not None:
        # Packed again, which gives the same bytes: that tells which of the blocks are the metadata's.
        metadata, described = trees.pack(_value(trees, fields["metadata"]))
    operations = [Operation(op, tuple(path), _value(trees, wire)) for op, path, wire in fields["operations"]]
    return PendingDelta(
        DeltaUpdate(tuple(operations)),
        metadata,
        described,
        fields["execution"],
        fields["segment"],
        fields["message"],
    )


def _pack_operation(operation: Operation, packer: Packer) -> list[Any]:
    op, path, value = operation
    if op not in OPERATIONS:
        raise Invalid(f"there is no operation {op!r}", hint=f"use one of {', '.join(OPERATIONS)}")
    check_path(path)
    if op in _REMOVING:
        if not path:
            raise Invalid("the whole value cannot be removed", hint="replace it instead", pointer="")
        return [op, list(path), None]
    for token in path[-1:]:
        check_new_key(token, path)
    return [op, list(path), packer.pack(value, at=path).wire]


def _value(trees: Trees, wire: Wire) -> Any:
    # Plain JSON stands for itself.
    return trees.unpack(wire) if wire_flags(wire) else wire
