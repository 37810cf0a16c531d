"""What tasks wrote, as rows: compressed, and checked when it is read."""

from __future__ import annotations

from hashlib import sha256

from analemma.blocks.codec import MAX_BLOCK_BYTES, RAW, compress, decompress
from analemma.catalog.threads import Written
from analemma.errors import Corrupt
from analemma.langgraph.snapshots import Serialized


def pack_write(checkpoint: str, task: str, place: int, task_path: str, channel: str, made: Serialized) -> Written:
    """The row of one write."""
    codec, body = compress(made.data) if len(made.data) <= MAX_BLOCK_BYTES else (RAW, made.data)
    digest = sha256(made.data).digest()
    return Written(checkpoint, task, place, task_path, channel, made.kind, codec, len(made.data), digest, body)


def unpack_write(written: Written) -> Serialized:
    """What was written; Corrupt if that is not what is stored."""
    data = written.body if written.codec == RAW else decompress(written.codec, written.body, written.size)
    if sha256(data).digest() != written.digest:
        raise Corrupt(
            f"a write of task {written.task} to channel {written.channel!r} is damaged",
            hint="restore the store from a second copy",
            checkpoint=written.checkpoint,
        )
    return Serialized(written.kind, bytes(data))
