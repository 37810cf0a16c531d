"""Threads as workflows: a checkpoint is a version and a row, written in one transaction.

What a version holds, as a tree: the checkpoint without its values, its metadata, and each channel in pieces.

    {"format": 1, "namespace": "", "parent": "1ef...", "checkpoint": [kind, bytes], "metadata": [kind, bytes],
     "channels": {"topic": [kind, bytes], "messages": [kind, "array", [bytes, bytes, ...]]}}

What was just written or read is kept, as bytes: the next one is compared with it. What tasks write on top of a
checkpoint is rows, compressed, and checked when it is read."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import orjson
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, DeltaChannelHistory, PendingWrite
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from analemma.blocks.packs import MAX_BLOCK_BYTES
from analemma.blocks.store import RAW, compress, decompress
from analemma.canon.nodes import BlockId
from analemma.canon.read import MISSING, Nodes
from analemma.canon.trees import Edited, Operation
from analemma.catalog.langgraph.carried_writes import adopt
from analemma.catalog.langgraph.threads import (
    LAST,
    Ancestor,
    CheckpointRow,
    Fence,
    ThreadRows,
    Written,
    following,
    id_of_version,
    order,
)
from analemma.catalog.names import KEY_BYTES
from analemma.catalog.port import BranchKey, Head
from analemma.clock import attempts
from analemma.errors import Conflict, Corrupt, Expired, HeadMoved, Invalid, NotFound
from analemma.langgraph.channels import Channel, cut, slot, to_channel
from analemma.state.arguments import CURRENT_HEAD
from analemma.state.commits import Proposal
from analemma.state.kernel import Kernel
from analemma.state.records import COMMITTED, FORKED
from analemma.store.store import Tenant

FORMAT = 1
FIELDS = frozenset({"format", "checkpoint", "metadata", "parent", "namespace", "channels"})
COUNTERS = "counters_since_delta_snapshot"
"""In a checkpoint's metadata: the delta channels that it does not hold whole."""
REMEMBERED_CHECKPOINTS = 4096
"""Checkpoints of which it is remembered which version they are: most are the parent of the next."""
FROM_VERSION = slice(19, None)
"""In the id of a checkpoint that was made of a version: what follows from the version."""
LARGEST_STEP = 2**63 - 1
MAIN = "main"
NAMED = "ns:"
HASHED = "ns#"
"""Of a namespace that is too long to name a branch, the branch has the hash. No namespace gives both."""


class NoCheckpoint(Corrupt):
    """A version of a thread's branch holds something else."""


class Serialized(NamedTuple):
    """Bytes, and what the serializer calls their format."""

    kind: str
    data: bytes


class Place(NamedTuple):
    """One namespace of one thread."""

    thread: str
    namespace: str
    branch: str


def place_of(config: RunnableConfig) -> Place:
    """The place that a config names; Invalid if it names none."""
    configurable = config.get("configurable") or {}
    if configurable.get("thread_id") is None:
        raise Invalid("the config names no thread", hint='pass {"configurable": {"thread_id": "..."}}')
    namespace = str(configurable.get("checkpoint_ns") or "")
    return Place(str(configurable["thread_id"]), namespace, branch_of(namespace))


def checkpoint_of(config: RunnableConfig | None) -> str | None:
    """The checkpoint that a config names, if it does."""
    configurable = (config or {}).get("configurable") or {}
    checkpoint = configurable.get("checkpoint_id")
    return str(checkpoint) if checkpoint else None


def config_of(thread: str, namespace: str, checkpoint: str | None) -> RunnableConfig:
    """The config of one checkpoint, or of none."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint}}


def branch_of(namespace: str) -> str:
    """The branch that stands for a namespace."""
    if not namespace:
        return MAIN
    encoded = namespace.encode(errors="surrogatepass")
    if len(encoded) + len(NAMED) > KEY_BYTES:
        return HASHED + sha256(encoded).hexdigest()
    return NAMED + namespace


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One checkpoint, serialized."""

    root: BlockId
    """The tree that it is read from."""
    id: str
    """Of the checkpoint, as it says itself."""
    checkpoint: Serialized
    """All of it but the values of its channels."""
    metadata: Serialized
    parent: str | None
    namespace: str
    versions: Mapping[str, Any]
    """The version of each channel, as the checkpoint says."""
    channels: Mapping[str, Channel]

    @property
    def size(self) -> int:
        """About how many bytes it takes to keep."""
        told = len(self.checkpoint.data) + len(self.metadata.data) + 200 * len(self.versions)
        return sum([channel.size for channel in self.channels.values()]) + told + 2000


class Snapshots:
    """Those that were used last, up to so many bytes. Safe to share between threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._kept: dict[BlockId, Snapshot] = {}

    def get(self, root: BlockId) -> Snapshot | None:
        """What a tree holds, if that is here."""
        with self._lock:
            found = self._kept.pop(root, None)
            if found is not None:
                self._kept[root] = found
            return found

    def put(self, snapshot: Snapshot, *, instead_of: BlockId | None = None) -> None:
        """Keep it, in place of what it follows and of what was not used the longest."""
        size = snapshot.size
        with self._lock:
            for gone in (instead_of, snapshot.root):
                self._drop(gone)
            if size <= self._most_bytes:
                self._kept[snapshot.root] = snapshot
                self._bytes += size
            while self._bytes > self._most_bytes:
                self._drop(next(iter(self._kept)))

    def _drop(self, root: BlockId | None) -> None:
        gone = None if root is None else self._kept.pop(root, None)
        if gone is not None:
            self._bytes -= gone.size


class Threads:
    """The threads of one owner, in one tenant."""

    def __init__(self, tenant: Tenant, owner: str, serde: SerializerProtocol, *, cache_bytes: int) -> None:
        self.context = tenant.context
        self.kernel: Kernel = tenant.kernel
        self.commits = tenant.committer
        self.owner = owner
        self.rows = ThreadRows(self.context.engine, self.context.tenant, owner)
        self._serde = serde
        self._trees = self.context.trees
        self._snapshots = Snapshots(cache_bytes)
        self._known: dict[tuple[str, str, str], BlockId] = {}

    def using(self, serde: SerializerProtocol) -> Threads:
        """The same threads, read and written by another serializer."""
        twin = copy(self)
        twin._serde = serde
        return twin

    def key(self, thread: str, branch: str) -> BranchKey:
        """The branch of a namespace."""
        return BranchKey(self.owner, thread, branch)

    def loads(self, typed: tuple[str, bytes]) -> Any:
        """What the serializer makes of what is stored; Corrupt where it cannot read that."""
        try:
            return self._serde.loads_typed(typed)
        except (NotImplementedError, ValueError, EOFError) as exc:
            raise Corrupt(
                f"the serializer cannot read what is stored as {typed[0]!r}: {exc}",
                hint="open the thread with the serializer that wrote it; if it is that, restore a backup",
            ) from exc

    def dumps(self, value: Any) -> Serialized:
        """What the serializer makes of a value."""
        kind, data = self._serde.dumps_typed(value)
        return Serialized(kind, bytes(data))

    def save(
        self,
        place: Place,
        parent: str | None,
        checkpoint: Checkpoint,
        metadata: Mapping[str, Any],
        changed: Mapping[str, Any],
        fence: Fence | None = None,
    ) -> None:
        """Store a checkpoint, of which these channels were written since its parent: its version, journal record, head
        and row become visible together. HeadMoved, and nothing is stored, if another run has passed the one that stores
        it."""
        row = CheckpointRow(
            *(place.thread, place.branch, str(checkpoint["id"]), place.namespace, parent),
            BlockId(b""),
            _name(metadata.get("run_id")),
            *self.dumps(dict(metadata)),
            deltas=delta_channels(metadata),
        )
        self.rows.check_row(row)
        trouble, taking_over = f"the parent of checkpoint {row.checkpoint} changes too fast", True
        for _ in attempts(self.context.clock, trouble, hint="try again"):
            base = self._base(row) if taking_over else None
            try:
                tree, after = self._tree(row, checkpoint, changed, base)
                made = self._commit(row, metadata, tree, None if base is None else base[0], fence)
            except HeadMoved:
                raise
            except (Conflict, Expired) as exc:
                if fence is not None and fence.holds(row.parent):
                    self.rows.check_fence(fence)
                if base is None:
                    raise
                # The parent's version has expired, so that nothing of it can be taken over unread; or the parent was
                # stored anew since we last saw it.
                taking_over = not isinstance(exc, Expired)
                self._known.pop((row.thread, row.branch, row.parent or ""), None)
                continue
            if len(self._known) >= REMEMBERED_CHECKPOINTS:
                self._known.clear()
            self._known[row.thread, row.branch, row.checkpoint] = made
            self._snapshots.put(after, instead_of=None if base is None else base[1].root)
            return

    def read(self, manifest: BlockId) -> Snapshot:
        """What a version holds, verified if it was not at hand; Corrupt if that is no checkpoint."""
        root = self.commits.manifest(manifest).root.id
        found = self._snapshots.get(root)
        if found is None:
            value = self.commits.guarded(manifest, lambda: self._trees.read(root))
            try:
                if type(value) is not dict or value.keys() != FIELDS or value["format"] != FORMAT:
                    raise ValueError("its fields are others")
                checkpoint, metadata = Serialized(*value["checkpoint"]), Serialized(*value["metadata"])
                channels = {name: to_channel(each) for name, each in value["channels"].items()}
            except (TypeError, ValueError, KeyError) as exc:
                raise NoCheckpoint(
                    f"a version of a thread holds no checkpoint: {exc}",
                    hint="roll back to one that was saved by LangGraph",
                ) from exc
            told = self.loads(checkpoint)
            place, versions = (value["parent"], value["namespace"]), told.get("channel_versions") or {}
            found = Snapshot(root, str(told.get("id")), checkpoint, metadata, *place, versions, channels)
            self._snapshots.put(found)
        return found

    def read_row(self, row: CheckpointRow) -> Snapshot | None:
        """What a checkpoint holds; None if it was removed, or stored anew, since its row was read."""
        try:
            snapshot = self.read(row.manifest)
            self._check_name(row, snapshot.id)
            if snapshot.namespace != row.namespace:
                raise _misnamed(row)
            return snapshot
        except (Expired, Corrupt) as exc:
            if isinstance(exc, Expired) or exc.facts.get("missing"):
                now = self.rows.find(row.thread, row.branch, row.checkpoint)
                if now is None or now.manifest != row.manifest:
                    return None
            raise

    def newest(self, thread: str, branch: str) -> CheckpointRow | None:
        """The checkpoint with the greatest id of a namespace. A head that somebody else has left, by merging for
        example, becomes one first: before anything is read, copied or removed."""
        row, stranger = self.rows.newest(thread, branch)
        if stranger is None:
            return row
        try:
            snapshot, created_at_us = self.read(stranger), self.commits.manifest(stranger).created_at_us
        except NoCheckpoint:
            return row
        if branch_of(snapshot.namespace) != branch:
            # A branch of the workflow that is no namespace of the thread.
            return row
        # The parent is not the checkpoint itself: what was taken in on top of that is not a part of this.
        place = (thread, branch, following(row, stranger, created_at_us), snapshot.namespace, snapshot.parent)
        adopt(self.rows, CheckpointRow(*place, stranger, None, *snapshot.metadata), snapshot.id)
        return self.rows.newest(thread, branch)[0]

    def adopt(self, *thread: str) -> None:
        """The same for every namespace of a thread, or of all threads."""
        first, last = thread * 2 or ("", LAST)
        for each in self.rows.engine.all("strangers", **self.rows.key(), first=first, last=last):
            self.newest(*each)

    def lines(
        self, thread: str, branch: str, checkpoint: str | None, channels: Sequence[str]
    ) -> dict[str, DeltaChannelHistory]:
        """What these channels are made of at a checkpoint: a stored value, if an ancestor has one, and what was written
        since, oldest first."""
        found: dict[str, DeltaChannelHistory] = {name: {"writes": []} for name in channels}
        wanted = set(found)
        for number, ancestors in enumerate(self.rows.ancestry(thread, branch, checkpoint)):
            # What was written on top of the checkpoint itself is no part of that, nor what it holds.
            page = ancestors if number else ancestors[1:]
            if not wanted or not page:
                break
            seeds = self.read_channels(page, sorted(wanted))
            # As far as to where the last of them was stored whole.
            last = max(next((at for at, held in enumerate(seeds) if name in held), len(page)) for name in wanted)
            asked = {"checkpoints": [each.checkpoint for each in page[: last + 1]], "channels": sorted(wanted)}
            rows = self.rows.engine.rows(Written, "writes_to_channels", **self.rows.key(thread, branch), **asked)
            written: dict[str, list[Written]] = {}
            for each in sorted(rows, key=order, reverse=True):
                written.setdefault(each.checkpoint, []).append(each)
            for ancestor, held in zip(page, seeds, strict=True):
                for each in written.get(ancestor.checkpoint, ()):
                    if each.channel in wanted:
                        found[each.channel]["writes"].append(self.pending(each))
                for name in wanted & held.keys():
                    found[name]["seed"] = self.loads(held[name])
                wanted -= held.keys()
        for line in found.values():
            line["writes"].reverse()
        return found

    def read_channels(
        self, rows: Sequence[CheckpointRow | Ancestor], channels: Sequence[str]
    ) -> list[dict[str, Serialized]]:
        """Those of some channels that each of these checkpoints holds: only the blocks that lead to them are read, for
        all together."""
        roots = [self.commits.manifest(row.manifest).root.id for row in rows]
        wanted = [(number, name) for number in range(len(roots)) for name in channels]
        paths = [(roots[number], ("channels", name)) for number, name in wanted]
        wires = Nodes(self._trees.fetch).wires([*paths, *((root, ("checkpoint",)) for root in roots)])
        for row, wire in zip(rows, wires[len(wanted) :], strict=True):
            told: Any = MISSING if wire is MISSING else self._trees.unpack(wire)
            self._check_name(row, "" if told is MISSING else str(self.loads(Serialized(*told)).get("id")))
        found: list[dict[str, Serialized]] = [{} for _ in roots]
        for (number, name), wire in zip(wanted, wires[: len(wanted)], strict=True):
            if wire is not MISSING:
                channel = to_channel(self._trees.unpack(wire))
                found[number][name] = Serialized(channel.kind, channel.data)
        return found

    def pending(self, written: Written) -> PendingWrite:
        """A write, as LangGraph takes it; Corrupt if it is not what was written."""
        data = written.body if written.codec == RAW else decompress(written.codec, written.body, written.size)
        if sha256(data).digest() != written.digest:
            raise Corrupt(
                f"a write of task {written.task} to channel {written.channel!r} is damaged",
                hint="restore the store from a second copy",
                checkpoint=written.checkpoint,
            )
        return written.task, written.channel, self.loads((written.kind, bytes(data)))

    def _check_name(self, row: CheckpointRow | Ancestor, said: str) -> None:
        """Corrupt unless a row's version can be its checkpoint: it says this id, the id was made of the version since
        somebody else had left it as head, or it was stored again under this name."""
        if said == row.checkpoint:
            return
        manifest = self.commits.manifest(row.manifest)
        if (
            # When that was stands before it, by whichever clock.
            row.checkpoint[FROM_VERSION] != id_of_version(row.manifest, 0)[FROM_VERSION]
            and not row.checkpoint.endswith(f"~{row.manifest.hex()[:8]}")
            and manifest.message != back_to(row.checkpoint)
        ):
            raise _misnamed(row)

    def _base(self, row: CheckpointRow) -> tuple[BlockId, Snapshot] | None:
        """The version that the parent of a checkpoint is, and what that holds."""
        if row.parent is None:
            return None
        place = (row.thread, row.branch, row.parent)
        manifest = self._known.get(place)
        if manifest is None:
            known = self.rows.find(*place)
            if known is None:
                return None
            manifest = known.manifest
        try:
            snapshot = self.read(manifest)
            self._check_name(Ancestor(row.parent, None, manifest), snapshot.id)
            return manifest, snapshot
        except (Expired, NotFound):
            # Removed since; what it held comes with the new one.
            return None

    def _tree(
        self,
        row: CheckpointRow,
        checkpoint: Checkpoint,
        changed: Mapping[str, Any],
        base: tuple[BlockId, Snapshot] | None,
    ) -> tuple[Edited, Snapshot]:
        """What a checkpoint is as a tree, which is an edit of its parent's, if it has one."""
        told = self.dumps({name: value for name, value in checkpoint.items() if name != "channel_values"})
        metadata = Serialized(row.metadata_kind, row.metadata)
        place, versions = (row.parent, row.namespace), dict(checkpoint.get("channel_versions") or {})
        channels, operations = self._channels(checkpoint, changed, None if base is None else base[1])
        fields = {
            "format": FORMAT,
            "namespace": row.namespace,
            "parent": row.parent,
            "checkpoint": list(told),
            "metadata": list(metadata),
        }
        if base is None:
            stored = {name: slot(channel) for name, channel in channels.items()}
            tree = self._trees.build({**fields, "channels": stored})
        else:
            parent, root = base[0], base[1].root
            operations += [Operation("put", (name,), value) for name, value in fields.items()]
            tree = self.commits.guarded(parent, lambda: self._trees.edit(root, operations))
        return tree, Snapshot(tree.root.id, row.checkpoint, told, metadata, *place, versions, channels)

    def _commit(
        self,
        row: CheckpointRow,
        metadata: Mapping[str, Any],
        tree: Edited,
        parent: BlockId | None,
        fence: Fence | None,
    ) -> BlockId:
        """Make the tree of a checkpoint a version, together with its row."""
        key, step, source = self.key(row.thread, row.branch), metadata.get("step"), _name(metadata.get("source"))

        def propose(head: Head | None) -> Proposal:
            # A branch that begins with a parent is that of a copy: its first version comes from another thread's.
            forked = parent if head is None else None
            return Proposal(
                key,
                tree,
                head,
                bases=() if parent is None else (parent,),
                parent=forked,
                execution=row.run,
                segment=step if type(step) is int and abs(step) <= LARGEST_STEP else None,
                message=source,
                kind=COMMITTED if forked is None else FORKED,
                facts={} if forked is None else {"from": forked.hex()},
                rows=lambda made: [self.rows.put(row._replace(manifest=made), base=parent, fence=fence)],
            )

        return self.commits.commit_next(key, CURRENT_HEAD, propose).receipt.manifest

    def _channels(
        self, checkpoint: Checkpoint, changed: Mapping[str, Any], before: Snapshot | None
    ) -> tuple[dict[str, Channel], list[Operation]]:
        """Each channel in pieces, and what makes them of the parent's. One that was not written since the parent is
        taken over as it is."""
        known, past = ({}, {}) if before is None else (before.channels, before.versions)
        versions = checkpoint.get("channel_versions") or {}
        channels: dict[str, Channel] = {}
        operations: list[Operation] = []
        # Of LangGraph's own serializer a test proves it; a class that is derived from it may do anything.
        by_items = type(self._serde) is JsonPlusSerializer
        for name, value in (checkpoint.get("channel_values") or {}).items():
            old, version = known.get(name), versions.get(name)
            if old is not None and name not in changed and version is not None and version == past.get(name):
                channels[name] = old
                continue
            made = cut(value, self._serde.dumps_typed, old, by_items=by_items)
            channels[name] = made.channel
            if before is not None:
                operations += made.operations(("channels", name), old)
        operations += [Operation("remove", ("channels", name)) for name in known.keys() - channels.keys()]
        return channels, operations


def back_to(checkpoint: str) -> str:
    """What a version says of itself that was made so that it is this checkpoint again."""
    return f"back to checkpoint {checkpoint}"


def delta_channels(metadata: Mapping[str, Any]) -> str | None:
    """For its row: the channels that a checkpoint does not hold whole, by its metadata; None: that cannot be read."""
    counters = metadata.get(COUNTERS) or {}
    return orjson.dumps(sorted(map(str, counters))).decode() if isinstance(counters, Mapping) else None


def pack_write(checkpoint: str, task: str, place: int, task_path: str, channel: str, made: Serialized) -> Written:
    """The row of one write."""
    codec, body = compress(made.data) if len(made.data) <= MAX_BLOCK_BYTES else (RAW, made.data)
    digest = sha256(made.data).digest()
    return Written(checkpoint, task, place, task_path, channel, made.kind, codec, len(made.data), digest, body)


def _misnamed(row: CheckpointRow | Ancestor) -> Corrupt:
    return Corrupt(
        f"the row of checkpoint {row.checkpoint} names the version of another, {row.manifest.hex()}",
        hint="run verify on the thread, and restore its rows from a second copy",
        checkpoint=row.checkpoint,
        manifest=row.manifest.hex(),
    )


def _name(value: Any) -> str | None:
    """Text that can be a column; what cannot stays in the metadata alone."""
    text = str(value) if value is not None else ""
    valid = text and "\0" not in text and len(text.encode(errors="replace")) <= KEY_BYTES
    return text if valid and text.encode(errors="ignore").decode() == text else None
