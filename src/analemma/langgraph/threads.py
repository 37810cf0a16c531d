"""Threads as workflows: a checkpoint is a version and a row, written in one transaction."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from hashlib import sha256
from typing import Any, Literal, NamedTuple, get_args

from langgraph.checkpoint.base import DeltaChannelHistory, PendingWrite
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from analemma.canon.identity import BlockId
from analemma.canon.read import MISSING, Nodes, locate
from analemma.canon.trees import Edited, Operation
from analemma.catalog.langgraph.pending_writes import repeat
from analemma.catalog.langgraph.threads import (
    Ancestor,
    CheckpointRow,
    Fence,
    ThreadRows,
    Written,
    following,
    id_of_version,
)
from analemma.catalog.names import KEY_BYTES
from analemma.catalog.port import BranchKey, Head, RowChange
from analemma.clock import Entropy, attempts
from analemma.errors import Conflict, Corrupt, Expired, HeadMoved, Invalid, NotFound
from analemma.langgraph.channels import cut, slot, to_channel
from analemma.langgraph.snapshots import (
    NoCheckpoint,
    Recent,
    Serialized,
    Snapshot,
    fields_of,
    from_value,
    unpack_write,
)
from analemma.state.arguments import CURRENT_HEAD
from analemma.state.commits import Proposal
from analemma.state.kernel import Kernel
from analemma.state.records import COMMITTED, FORKED
from analemma.state.removal import remove_workflow
from analemma.store.store import Tenant

REMEMBERED_CHECKPOINTS = 4096
"""Checkpoints of which it is remembered which version they are: most are the parent of the next."""
FROM_VERSION = slice(19, None)
"""In the id of a checkpoint that was made of a version: what follows from the version."""
MAIN = "main"
NAMED = "ns:"
HASHED = "ns#"
"""Of a namespace that is too long to name a branch, the branch has the hash. No namespace gives both."""
OnConflict = Literal["raise", "branch", "last"]

KEY = "__analemma_fence"
"""Names that begin like this do not get into the metadata of checkpoints."""
RUNTIME = "__pregel_runtime"
TASK = "__pregel_task_id"
"""What LangGraph has in the config of every run, and in that of a graph inside of a task."""
REMEMBERED_RUNS = 4096


class Place(NamedTuple):
    """One namespace of one thread."""

    thread: str
    namespace: str
    branch: str


def place_of(config: Mapping[str, Any]) -> Place:
    """The place that a config names; Invalid if it names none."""
    configurable = config.get("configurable") or {}
    if configurable.get("thread_id") is None:
        raise Invalid("the config names no thread", hint='pass {"configurable": {"thread_id": "..."}}')
    namespace = str(configurable.get("checkpoint_ns") or "")
    return Place(str(configurable["thread_id"]), namespace, branch_of(namespace))


def checkpoint_of(config: Mapping[str, Any] | None) -> str | None:
    """The checkpoint that a config names, if it does."""
    configurable = (config or {}).get("configurable") or {}
    checkpoint = configurable.get("checkpoint_id")
    return str(checkpoint) if checkpoint else None


def config_of(thread: str, namespace: str, checkpoint: str) -> dict[str, Any]:
    """The config of one checkpoint."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint}}


def branch_of(namespace: str) -> str:
    """The branch that stands for a namespace."""
    if not namespace:
        return MAIN
    encoded = namespace.encode(errors="surrogatepass")
    if len(encoded) + len(NAMED) > KEY_BYTES:
        return HASHED + sha256(encoded).hexdigest()
    return NAMED + namespace


class NewCheckpoint(NamedTuple):
    """A checkpoint that is to be stored."""

    row: CheckpointRow
    """Its row, without the version that it will be."""
    checkpoint: Serialized
    """All of it but the values of its channels."""
    versions: Mapping[str, Any]
    values: Mapping[str, Any]
    changed: Mapping[str, Any]
    """The channels that were written since the parent."""
    step: int | None = None
    source: str | None = None


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
        self._snapshots: Recent[BlockId, Snapshot] = Recent(cache_bytes, lambda snapshot: snapshot.size)
        self._known: Recent[tuple[str, str, str], BlockId] = Recent(REMEMBERED_CHECKPOINTS)

    def using(self, serde: SerializerProtocol) -> Threads:
        """The same threads, read and written by another serializer."""
        twin = copy(self)
        twin._serde = serde
        return twin

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

    def save(self, new: NewCheckpoint, fence: Fence | None = None) -> None:
        """Store a checkpoint: its version, journal record, head and row become visible together. HeadMoved, and nothing
        is stored, if another run has passed the one that stores it."""
        row = new.row
        self.rows.check(row.thread, row.branch, row.checkpoint)
        trouble = f"the parent of checkpoint {row.checkpoint} changes too fast"
        for _ in attempts(self.context.clock, trouble, hint="try again"):
            base = self._base(row)
            try:
                return self._save_on(base, new, fence)
            except HeadMoved:
                raise
            except (Conflict, Expired) as exc:
                if fence is not None and fence.holds(row.parent):
                    self.rows.check_fence(fence)
                if base is None:
                    raise
                # The parent's version has expired, so that nothing of it can be taken over unread; or the parent was
                # stored anew since we last saw it.
                if isinstance(exc, Expired):
                    return self._save_on(None, new, fence)
                self._known.forget((row.thread, row.branch, row.parent or ""))
        return None

    def read(self, manifest: BlockId) -> Snapshot:
        """What a version holds, verified if it was not at hand; Corrupt if that is no checkpoint."""
        root = self.commits.manifest(manifest).root.id
        found = self._snapshots.get(root)
        if found is None:
            found = from_value(self.commits.guarded(manifest, lambda: self._trees.read(root)))
            told = self.loads(found.checkpoint)
            found = replace(found, versions=told.get("channel_versions") or {}, id=str(told.get("id")), root=root)
            self._snapshots.put(root, found)
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
            gone = isinstance(exc, Expired) or exc.facts.get("missing")
            if gone and self.rows.manifest(row.thread, row.branch, row.checkpoint) != row.manifest:
                return None
            raise

    def read_channels(
        self, rows: Sequence[CheckpointRow | Ancestor], channels: Sequence[str]
    ) -> list[dict[str, Serialized]]:
        """Those of some channels that each of these checkpoints holds: only the blocks that lead to them are read, for
        all together."""
        roots = [self.commits.manifest(row.manifest).root.id for row in rows]
        if not channels:
            return [{} for _ in roots]
        wanted = [(number, name) for number in range(len(roots)) for name in channels]
        source = Nodes(self._trees.fetch)
        paths = [(roots[number], ("channels", name)) for number, name in wanted]
        wires = source.run(locate(*each) for each in [*paths, *((root, ("checkpoint",)) for root in roots)])
        for row, wire in zip(rows, wires[len(wanted) :], strict=True):
            told: Any = MISSING if wire is MISSING else self._trees.unpack(wire)
            self._check_name(row, "" if told is MISSING else str(self.loads(Serialized(*told)).get("id")))
        found: list[dict[str, Serialized]] = [{} for _ in roots]
        for (number, name), wire in zip(wanted, wires[: len(wanted)], strict=True):
            if wire is not MISSING:
                channel = to_channel(self._trees.unpack(wire))
                found[number][name] = Serialized(channel.kind, channel.data)
        return found

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
        self.rows.adopt(*repeat(self.rows, CheckpointRow(*place, stranger, None, *snapshot.metadata), snapshot.id))
        return self.rows.newest(thread, branch)[0]

    def adopt(self, thread: str | None) -> None:
        """The same for every namespace of a thread, or of all threads."""
        for name, branch in self.rows.strangers(thread):
            self.newest(name, branch)

    def lines(
        self, thread: str, branch: str, checkpoint: str | None, channels: Sequence[str]
    ) -> dict[str, DeltaChannelHistory]:
        """What these channels are made of at a checkpoint: a stored value, if an ancestor has one, and what was written
        since, oldest first."""
        found: dict[str, DeltaChannelHistory] = {name: {"writes": []} for name in channels}
        wanted = sorted(found)
        for number, ancestors in enumerate(self.rows.ancestry(thread, branch, checkpoint)):
            # What was written on top of the checkpoint itself is no part of that, nor what it holds.
            page = ancestors if number else ancestors[1:]
            if not wanted or not page:
                continue
            seeds = self.read_channels(page, wanted)
            ends = {name: next((at for at, held in enumerate(seeds) if name in held), len(page)) for name in wanted}
            asked = [each.checkpoint for each in page[: max(ends.values()) + 1]]
            written: dict[str, list[Written]] = {}
            for each in self.rows.writes_to(thread, branch, asked, wanted):
                written.setdefault(each.checkpoint, []).append(each)
            for at, ancestor in enumerate(asked):
                for each in reversed(written.get(ancestor, [])):
                    if at <= ends[each.channel]:
                        found[each.channel]["writes"].append(self.pending(each))
            for name in wanted:
                if ends[name] < len(page):
                    found[name]["seed"] = self.loads(seeds[ends[name]][name])
            wanted = [name for name in wanted if "seed" not in found[name]]
        for line in found.values():
            line["writes"].reverse()
        return found

    def pending(self, written: Written) -> PendingWrite:
        """A write, as LangGraph takes it."""
        return written.task, written.channel, self.loads(unpack_write(written))

    def remove(self, thread: str) -> None:
        """Remove a thread with everything that it has, tagged and pinned or not, in one transaction."""
        remove_workflow(self.kernel, self.owner, thread, self.rows.drop_thread(thread))

    def key(self, thread: str, branch: str) -> BranchKey:
        """The branch of a namespace."""
        return BranchKey(self.owner, thread, branch)

    def _base(self, row: CheckpointRow) -> tuple[BlockId, Snapshot] | None:
        """The version that the parent of a checkpoint is, and what that holds."""
        if row.parent is None:
            return None
        place = (row.thread, row.branch, row.parent)
        manifest = self._known.get(place) or self.rows.manifest(*place)
        if manifest is None:
            return None
        try:
            snapshot = self.read(manifest)
            self._check_name(Ancestor(row.parent, None, manifest), snapshot.id)
            return manifest, snapshot
        except (Expired, NotFound):
            # Removed since; what it held comes with the new one.
            return None

    def _save_on(self, base: tuple[BlockId, Snapshot] | None, new: NewCheckpoint, fence: Fence | None) -> None:
        row = new.row
        key = self.key(row.thread, row.branch)
        parent, before = (None, None) if base is None else base
        metadata = Serialized(row.metadata_kind, row.metadata)
        after = Snapshot(new.checkpoint, metadata, row.parent, row.namespace, new.versions, {}, row.checkpoint)
        tree = self._tree(parent, before, after, new)

        def rows(manifest: BlockId) -> list[RowChange]:
            return [self.rows.put(row._replace(manifest=manifest), base=parent, fence=fence)]

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
                segment=new.step,
                message=new.source,
                kind=COMMITTED if forked is None else FORKED,
                facts={} if forked is None else {"from": forked.hex()},
                rows=rows,
            )

        outcome = self.commits.commit_next(key, CURRENT_HEAD, propose)
        self._known.put((row.thread, row.branch, row.checkpoint), outcome.receipt.manifest)
        after = replace(after, root=tree.root.id)
        self._snapshots.put(after.root, after, instead_of=None if before is None else before.root)

    def _tree(self, parent: BlockId | None, before: Snapshot | None, after: Snapshot, new: NewCheckpoint) -> Edited:
        """The tree of a version: an edit of its parent's. A channel that was not written since is taken over as it is;
        each of the others is put into pieces, and those that changed are what is edited."""
        known = {} if before is None else before.channels
        operations: list[Operation] = []
        # Of LangGraph's own serializer a test proves it; a class that is derived from it may do anything.
        by_items = type(self._serde) is JsonPlusSerializer
        for name, value in new.values.items():
            old = known.get(name)
            if old is not None and before is not None and name not in new.changed:
                version = new.versions.get(name)
                if version is not None and version == before.versions.get(name):
                    after.channels[name] = old
                    continue
            made = cut(value, self._serde.dumps_typed, old, by_items=by_items)
            after.channels[name] = made.channel
            operations += made.operations(("channels", name), old)
        if parent is None or before is None:
            channels = {name: slot(channel) for name, channel in after.channels.items()}
            return self._trees.build({**fields_of(after), "channels": channels})
        operations += [Operation("remove", ("channels", name)) for name in known.keys() - after.channels.keys()]
        operations += [Operation("put", (name,), told) for name, told in fields_of(after).items()]
        return self.commits.guarded(parent, lambda: self._trees.edit(before.root, operations))


def back_to(checkpoint: str) -> str:
    """What a version says of itself that was made so that it is this checkpoint again."""
    return f"back to checkpoint {checkpoint}"


def _misnamed(row: CheckpointRow | Ancestor) -> Corrupt:
    return Corrupt(
        f"the row of checkpoint {row.checkpoint} names the version of another, {row.manifest.hex()}",
        hint="run verify on the thread, and restore its rows from a second copy",
        checkpoint=row.checkpoint,
        manifest=row.manifest.hex(),
    )


class Fences:
    """Which run a call comes from. A run of a graph is known by what LangGraph puts into its config; what the run has
    read is put beside it, since LangGraph hands the same config to `put` and `put_writes`.

    Whoever calls a saver by hand, reads a state or edits it has no such config, and is never refused anything. Safe to
    share between threads."""

    def __init__(self, on_conflict: OnConflict, rows: ThreadRows, entropy: Entropy) -> None:
        if on_conflict not in get_args(OnConflict):
            raise Invalid(f"there is no on_conflict {on_conflict!r}", hint="use 'raise', 'branch' or 'last'")
        self.on_conflict = on_conflict
        self._rows = rows
        self._entropy = entropy
        self._lock = threading.Lock()
        self._branched: Recent[str, set[str]] = Recent(REMEMBERED_RUNS)

    def begin(
        self, config: Mapping[str, Any], place: Place, read: str | None, writes: Iterable[Written], *, chosen: bool
    ) -> None:
        """A run has read a checkpoint, the newest or a chosen one, and what was written on top of it; or that there is
        none."""
        configurable = config["configurable"]
        if self.on_conflict == "last" or RUNTIME not in configurable:
            return
        around = configurable.get(KEY) if configurable.get(TASK) else None
        run = around.run if isinstance(around, Fence) else self._entropy.random_bytes(16).hex()
        seen = frozenset(written.writer for written in writes if written.writer is not None)
        configurable[KEY] = Fence(place.thread, place.branch, read or "", run, seen, chosen)

    def of(self, config: Mapping[str, Any], place: Place) -> Fence | None:
        """The fence of the run that stores something here, if it is one."""
        found = (config.get("configurable") or {}).get(KEY)
        if not isinstance(found, Fence) or (found.thread, found.branch) != (place.thread, place.branch):
            return None
        return found

    def elsewhere(self, config: Mapping[str, Any], place: Place) -> Place:
        """Where a run stands: in a thread of its own, once it was passed and goes on in one."""
        found = (config.get("configurable") or {}).get(KEY)
        if not isinstance(found, Fence) or self._branched.get(found.run) is None:
            return place
        return self._own_thread(Fence(place.thread, place.branch, "", found.run), place)

    def branch_off(self, fence: Fence, place: Place) -> Place:
        """Have a run that was passed go on in a thread of its own."""
        if self._branched.get(fence.run) is None:
            self._branched.put(fence.run, set())
        return self._own_thread(fence, place)

    def _own_thread(self, fence: Fence, place: Place) -> Place:
        target = f"{fence.thread}~{fence.run[:8]}"
        with self._lock:
            copied = self._branched.get(fence.run)
            if copied is not None and fence.branch not in copied:
                self._rows.branch_off(fence, target)
                copied.add(fence.branch)
        return place._replace(thread=target)
