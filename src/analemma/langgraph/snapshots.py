"""What a version of a thread holds, as a tree: the checkpoint without its values, its metadata, and each channel in
pieces. Snapshots that were just written or read are kept, as bytes: the next one is compared with them.
What tasks write on top of a checkpoint is rows, compressed, and checked when it is read.

    {"format": 1, "namespace": "", "parent": "1ef...", "checkpoint": [kind, bytes], "metadata": [kind, bytes],
     "channels": {"topic": [kind, bytes], "messages": [kind, "array", [bytes, bytes, ...]]}}
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Generic, NamedTuple, TypeVar

from analemma.blocks.codec import MAX_BLOCK_BYTES, RAW, compress, decompress
from analemma.canon.identity import BlockId
from analemma.catalog.langgraph.threads import Written
from analemma.errors import Corrupt
from analemma.langgraph.channels import Channel, to_channel

FORMAT = 1
FIELDS = frozenset({"format", "checkpoint", "metadata", "parent", "namespace", "channels"})
COUNTERS = "counters_since_delta_snapshot"
"""In a checkpoint's metadata: the delta channels that it does not hold whole."""
NOWHERE = BlockId(b"")


class NoCheckpoint(Corrupt):
    """A version of a thread's branch holds something else."""


class Serialized(NamedTuple):
    """Bytes, and what the serializer calls their format."""

    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One checkpoint, serialized."""

    checkpoint: Serialized
    """All of it but the values of its channels."""
    metadata: Serialized
    parent: str | None
    namespace: str
    versions: Mapping[str, Any]
    """The version of each channel, as the checkpoint says."""
    channels: dict[str, Channel]
    id: str = ""
    """Of the checkpoint, as it says itself."""
    root: BlockId = NOWHERE
    """The tree that it is read from."""

    @property
    def size(self) -> int:
        """About how many bytes it takes to keep."""
        told = len(self.checkpoint.data) + len(self.metadata.data) + 200 * len(self.versions)
        return sum([channel.size for channel in self.channels.values()]) + told + 2000


def fields_of(snapshot: Snapshot) -> dict[str, Any]:
    """What the state of a version that holds this has beside the channels."""
    return {
        "format": FORMAT,
        "checkpoint": list(snapshot.checkpoint),
        "metadata": list(snapshot.metadata),
        "parent": snapshot.parent,
        "namespace": snapshot.namespace,
    }


def from_value(value: Any, versions: Mapping[str, Any] | None = None) -> Snapshot:
    """The other way round; NoCheckpoint if the state is none."""
    try:
        if type(value) is not dict or value.keys() != FIELDS or value["format"] != FORMAT:
            raise ValueError("its fields are others")
        return Snapshot(
            Serialized(*value["checkpoint"]),
            Serialized(*value["metadata"]),
            value["parent"],
            value["namespace"],
            versions or {},
            {name: to_channel(found) for name, found in value["channels"].items()},
        )
    except (TypeError, ValueError, KeyError) as exc:
        raise NoCheckpoint(
            f"a version of a thread holds no checkpoint: {exc}", hint="roll back to one that was saved by LangGraph"
        ) from exc


def delta_channels(metadata: Mapping[str, Any]) -> list[str] | None:
    """The channels that a checkpoint does not hold whole, as its metadata tells; None: it cannot be read."""
    counters = metadata.get(COUNTERS)
    if counters is None:
        return []
    return sorted(map(str, counters)) if isinstance(counters, Mapping) else None


Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """What was used last, up to a number or a weight. Safe to share between threads."""

    def __init__(self, most: int, weigh: Callable[[Value], int] = lambda value: 1) -> None:
        self._most = most
        self._weigh = weigh
        self._weight = 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """What is known of this, if it is here."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def put(self, key: Key, value: Value, *, instead_of: Key | None = None) -> None:
        """Keep it, in place of what it follows and of what was not used the longest."""
        weight = self._weigh(value)
        with self._lock:
            for gone in (instead_of, key):
                self._drop(gone)
            if weight > self._most:
                return
            self._kept[key] = value
            self._weight += weight
            while self._weight > self._most:
                self._drop(next(iter(self._kept)))

    def forget(self, key: Key) -> None:
        """It is not so any more."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: Key | None) -> None:
        gone = None if key is None else self._kept.pop(key, None)
        if gone is not None:
            self._weight -= self._weigh(gone)


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
