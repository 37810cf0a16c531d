"""Threads as workflows: a checkpoint is a version and a row, written in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from analemma.app import App, Tenant
from analemma.canon.identity import BlockId
from analemma.canon.nodes import Block
from analemma.canon.read import MISSING, Nodes, Parts, locate
from analemma.canon.trees import Edited
from analemma.canon.values import (
    Link,
    Wire,
    is_special,
    link_wire,
    read_special,
)
from analemma.catalog.langgraph.pending_writes import repeat
from analemma.catalog.langgraph.threads import Ancestor, CheckpointRow, Fence, ThreadRows, Written, id_of_version
from analemma.catalog.port import BranchKey, Head, RowChange
from analemma.clock import attempts
from analemma.errors import Conflict, Corrupt, Expired, HeadMoved, NotFound
from analemma.langgraph.channels import Channel, Cut, Dumps, cut
from analemma.langgraph.places import Place, branch_of
from analemma.langgraph.snapshots import (
    PIECES,
    NoCheckpoint,
    Recent,
    Serialized,
    Snapshot,
    from_value,
    slot,
    splice_operations,
    to_channel,
    to_value,
)
from analemma.state.arguments import CURRENT_HEAD
from analemma.state.committer import Proposal
from analemma.state.kernel import Kernel
from analemma.state.records import COMMITTED, FORKED
from analemma.state.removal import remove_workflow

Loads = Callable[[tuple[str, bytes]], Any]
"""A serializer's `loads_typed`."""

REMEMBERED_CHECKPOINTS = 4096
"""Checkpoints of which it is remembered which version they are: most are the parent of the next."""
FROM_VERSION = slice(19, None)
"""In the id of a checkpoint that was made of a version: what follows from the version."""
REMEMBERED_WIRES = 256
"""Versions of which it is remembered where their channels are stored: a few hundred bytes each."""


class Serializer(NamedTuple):
    """What is needed of a serializer."""

    dumps: Dumps
    loads: Loads
    by_items: bool
    """Whether it is known to write a list or a dict as its items, one after the other."""


@dataclass(frozen=True, slots=True)
class NewCheckpoint:
    """A checkpoint that is to be stored."""

    place: Place
    id: str
    parent: str | None
    checkpoint: Serialized
    """All of it but the values of its channels."""
    metadata: Serialized
    versions: Mapping[str, Any]
    values: Mapping[str, Any]
    changed: Mapping[str, Any]
    """The channels that were written since the parent."""
    run: str | None = None
    step: int | None = None
    source: str | None = None
    deltas: str | None = None
    """The channels that it does not hold whole, as a list in JSON."""


@dataclass(frozen=True, slots=True)
class _Base:
    """The parent of a checkpoint: the version that it is, and what that holds."""

    manifest: BlockId
    root: BlockId
    snapshot: Snapshot


@dataclass(slots=True)
class Line:
    """What one delta channel is made of: a stored value, if any ancestor has one, and what was written since, oldest
    first."""

    writes: list[Written] = field(default_factory=list)
    seed: Serialized | None = None


class Threads(Kernel):
    """The threads of one owner, in one tenant."""

    def __init__(self, app: App, tenant: Tenant, owner: str, *, cache_bytes: int) -> None:
        super().__init__(tenant.context, tenant.committer, tenant.checkpoints)
        self._engine = app.catalog.engine
        self.owner = owner
        self.rows = ThreadRows(app.catalog.engine, tenant.id, owner)
        self._snapshots: Recent[BlockId, Snapshot] = Recent(cache_bytes, lambda snapshot: snapshot.size)
        self._wires: Recent[BlockId, Mapping[str, Wire]] = Recent(REMEMBERED_WIRES)
        self._known: Recent[tuple[str, str, str], BlockId] = Recent(REMEMBERED_CHECKPOINTS)

    def save(self, new: NewCheckpoint, serializer: Serializer, fence: Fence | None = None) -> None:
        """Store a checkpoint: its version, journal record, head and row become visible together. HeadMoved, and nothing
        is stored, if another run has passed the one that stores it."""
        self.rows.check(new.place.thread, new.place.branch, new.id)
        trouble = f"the parent of checkpoint {new.id} changes too fast"
        for _ in attempts(self._clock, trouble, hint="try again"):
            base = self._base(new, serializer.loads)
            try:
                return self._save_on(base, new, serializer, fence)
            except HeadMoved:
                raise
            except (Conflict, Expired) as exc:
                if fence is not None and fence.holds(new.parent):
                    self.rows.check_fence(fence)
                if base is None:
                    raise
                # The parent's version has expired, so that nothing of it can be taken over unread; or the parent was
                # stored anew since we last saw it.
                if isinstance(exc, Expired):
                    return self._save_on(None, new, serializer, fence)
                self._known.forget((new.place.thread, new.place.branch, new.parent or ""))
        return None

    def read(self, manifest: BlockId, loads: Loads) -> Snapshot:
        """What a version holds, verified if it was not at hand; Corrupt if that is no checkpoint."""
        root = self._read_manifest(manifest).root.id
        found = self._snapshots.get(root)
        if found is None:
            found = from_value(self._guarded(manifest, lambda: self._trees.read(root)))
            told = loads(found.checkpoint)
            found = replace(found, versions=told.get("channel_versions") or {}, id=str(told.get("id")))
            self._snapshots.put(root, found)
        return found

    def read_row(self, row: CheckpointRow, loads: Loads) -> Snapshot | None:
        """What a checkpoint holds; None if it was removed, or stored anew, since its row was read."""
        try:
            snapshot = self.read(row.manifest, loads)
            self._check_name(row, snapshot.id)
            if snapshot.namespace != row.namespace:
                raise _misnamed(row)
            return snapshot
        except (Expired, Corrupt) as exc:
            gone = isinstance(exc, Expired) or exc.facts.get("missing")
            if gone and self.rows.manifest(row.thread, row.branch, row.checkpoint) != row.manifest:
                return None
            raise

    def read_stranger(self, manifest: BlockId, loads: Loads) -> tuple[Snapshot, int] | None:
        """What the head holds that somebody else has left, and since when; None if that is no checkpoint."""
        try:
            return self.read(manifest, loads), self._read_manifest(manifest).created_at_us
        except NoCheckpoint:
            return None

    def read_channels(
        self, rows: Sequence[CheckpointRow | Ancestor], channels: Sequence[str], loads: Loads
    ) -> list[dict[str, Serialized]]:
        """Those of some channels that each of these checkpoints holds: only the blocks that lead to them are read, for
        all together."""
        roots = [self._read_manifest(row.manifest).root.id for row in rows]
        if not channels:
            return [{} for _ in roots]
        wanted = [(number, name) for number in range(len(roots)) for name in channels]
        source = Nodes(self._trees.fetch)
        paths = [(roots[number], ("channels", name)) for number, name in wanted]
        wires = source.run(locate(*each) for each in [*paths, *((root, ("checkpoint",)) for root in roots)])
        for row, wire in zip(rows, wires[len(wanted) :], strict=True):
            told: Any = MISSING if wire is MISSING else self._trees.unpack(wire)
            self._check_name(row, "" if told is MISSING else str(loads(Serialized(*told)).get("id")))
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
        manifest = self._read_manifest(row.manifest)
        if (
            # When that was stands before it, by whichever clock.
            row.checkpoint[FROM_VERSION] != id_of_version(row.manifest, 0)[FROM_VERSION]
            and not row.checkpoint.endswith(f"~{row.manifest.hex()[:8]}")
            and manifest.message != back_to(row.checkpoint)
        ):
            raise _misnamed(row)

    def newest(self, thread: str, branch: str, loads: Loads) -> CheckpointRow | None:
        """The checkpoint with the greatest id of a namespace. A head that somebody else has left, by merging for
        example, becomes one first: before anything is read, copied or removed."""
        found = self.rows.newest(thread, branch)
        if found.stranger is None:
            return found.row
        left = self.read_stranger(found.stranger, loads)
        if left is None:
            return found.row
        snapshot, created_at_us = left
        if branch_of(snapshot.namespace) != branch:
            # A branch of the workflow that is no namespace of the thread.
            return found.row
        made = id_of_version(found.stranger, created_at_us)
        if found.row is not None and made <= found.row.checkpoint:
            # Ids of another kind, or from a clock that is ahead.
            made = f"{found.row.checkpoint}~{found.stranger.hex()[:8]}"
        # The parent is not the checkpoint itself: what was taken in on top of that is not a part of this.
        place = (thread, branch, made, snapshot.namespace, snapshot.parent)
        row = CheckpointRow(*place, found.stranger, None, *snapshot.metadata)
        self.rows.adopt(*repeat(self.rows, row, snapshot.id))
        return self.rows.newest(thread, branch).row

    def adopt(self, thread: str | None, loads: Loads) -> None:
        """The same for every namespace of a thread, or of all threads."""
        for name, branch in self.rows.strangers(thread):
            self.newest(name, branch, loads)

    def lines(
        self, thread: str, branch: str, checkpoint: str | None, channels: Sequence[str], loads: Loads
    ) -> dict[str, Line]:
        """What these channels are made of at a checkpoint."""
        found = {name: Line() for name in channels}
        open_channels = set(found)
        for number, ancestors in enumerate(self.rows.ancestry(thread, branch, checkpoint)):
            # What was written on top of the checkpoint itself is no part of that, nor what it holds.
            page = ancestors if number else ancestors[1:]
            if not open_channels:
                break
            seeds = self.read_channels(page, sorted(open_channels), loads)
            wanted: dict[str, list[str]] = {}
            for ancestor, stored in zip(page, seeds, strict=True):
                if not open_channels:
                    break
                wanted[ancestor.checkpoint] = sorted(open_channels)
                for name in open_channels & stored.keys():
                    found[name].seed = stored[name]
                    open_channels.discard(name)
            self._collect(thread, branch, wanted, found)
        for line in found.values():
            line.writes.reverse()
        return found

    def remove(self, thread: str) -> None:
        """Remove a thread with everything that it has, tagged and pinned or not, in one transaction."""
        remove_workflow(self, self._engine, self.owner, thread, self.rows.drop_thread(thread))

    def key(self, thread: str, branch: str) -> BranchKey:
        """The branch of a namespace."""
        return BranchKey(self.owner, thread, branch)

    def _base(self, new: NewCheckpoint, loads: Loads) -> _Base | None:
        if new.parent is None:
            return None
        thread, branch = new.place.thread, new.place.branch
        manifest = self._known.get((thread, branch, new.parent)) or self.rows.manifest(thread, branch, new.parent)
        if manifest is None:
            return None
        try:
            snapshot = self.read(manifest, loads)
            self._check_name(Ancestor(new.parent, None, manifest), snapshot.id)
            return _Base(manifest, self._read_manifest(manifest).root.id, snapshot)
        except (Expired, NotFound):
            # Removed since; what it held comes with the new one.
            return None

    def _save_on(self, base: _Base | None, new: NewCheckpoint, serializer: Serializer, fence: Fence | None) -> None:
        place = new.place
        key = self.key(place.thread, place.branch)
        channels, cuts = _channels(new, None if base is None else base.snapshot, serializer)
        after = Snapshot(new.checkpoint, new.metadata, new.parent, place.namespace, new.versions, channels, new.id)
        wires, blocks = self._pack(base, after, cuts)
        made = self._trees.assemble(to_value(after, wires))
        root = made.root
        tree = Edited(root, (*blocks, *made.blocks))
        parent = None if base is None else base.manifest

        def rows(manifest: BlockId) -> list[RowChange]:
            row = CheckpointRow(
                place.thread, place.branch, new.id, place.namespace, new.parent, manifest, new.run, *new.metadata
            )._replace(deltas=new.deltas)
            return [self.rows.put(row, base=parent, fence=fence)]

        def propose(head: Head | None) -> Proposal:
            # A branch that begins with a parent is that of a copy: its first version comes from another thread's.
            forked = head is None and parent is not None
            return Proposal(
                key,
                tree,
                head,
                bases=() if parent is None else (parent,),
                parent=parent if forked else None,
                execution=new.run,
                segment=new.step,
                message=new.source,
                kind=FORKED if forked else COMMITTED,
                facts={"from": parent.hex()} if forked and parent is not None else {},
                rows=rows,
            )

        outcome = self._commit(key, CURRENT_HEAD, propose)
        self._known.put((place.thread, place.branch, new.id), outcome.receipt.manifest)
        self._snapshots.put(root.id, after, instead_of=None if base is None else base.root)
        self._wires.put(root.id, wires)

    def _pack(
        self, base: _Base | None, after: Snapshot, cuts: Mapping[str, Cut]
    ) -> tuple[dict[str, Wire], list[Block]]:
        """Each channel in stored form, and the blocks that the parent's do not have."""
        before = {} if base is None else base.snapshot.channels
        known = {} if base is None else self._wires_of(base.root)
        wires: dict[str, Wire] = {}
        blocks: list[Block] = []
        for name, channel in after.channels.items():
            old = before.get(name)
            if old is not None and channel is old:
                wires[name] = known[name]
                continue
            splice = None if old is None else cuts[name].splice(old)
            link = None if splice is None else _pieces_link(known[name])
            if splice is None or link is None:
                wires[name], made = self._trees.pack(slot(channel))
            else:
                edited = self._trees.edit(link.id, list(splice_operations(splice)))
                wires[name], made = [channel.kind, channel.shape, link_wire(edited.root)], edited.blocks
            blocks += made
        return wires, blocks

    def _collect(self, thread: str, branch: str, wanted: dict[str, list[str]], found: dict[str, Line]) -> None:
        """Add what was written on top of these checkpoints, nearest first, to the lines it belongs to: newest first."""
        if not wanted:
            return
        written: dict[str, list[Written]] = {}
        for each in self.rows.writes_to(thread, branch, list(wanted), sorted(found)):
            written.setdefault(each.checkpoint, []).append(each)
        for checkpoint, names in wanted.items():
            for each in reversed(written.get(checkpoint, [])):
                if each.channel in names:
                    found[each.channel].writes.append(each)

    def _wires_of(self, root: BlockId) -> Mapping[str, Wire]:
        """The channels of a version in stored form."""
        found = self._wires.get(root)
        if found is None:
            parts = Parts(self._trees)
            content = parts.contents([parts.at(root, ("channels",))])[0]
            assert type(content) is dict
            found = content
            self._wires.put(root, found)
        return found


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


def _pieces_link(wire: Wire) -> Link | None:
    """The tree of a channel's pieces; None if they have none: a few large ones are links themselves, and stand
    inline."""
    if type(wire) is not list or not is_special(wire[PIECES]):
        return None
    return read_special(wire[PIECES]).link


def _channels(
    new: NewCheckpoint, before: Snapshot | None, serializer: Serializer
) -> tuple[dict[str, Channel], dict[str, Cut]]:
    """Each channel in pieces. One that was not written since the parent is taken over as it is."""
    channels: dict[str, Channel] = {}
    cuts: dict[str, Cut] = {}
    for name, value in new.values.items():
        old = None if before is None else before.channels.get(name)
        if old is not None and before is not None and name not in new.changed:
            version = new.versions.get(name)
            if version is not None and version == before.versions.get(name):
                channels[name] = old
                continue
        cuts[name] = made = cut(value, serializer.dumps, old, by_items=serializer.by_items)
        channels[name] = made.channel
    return channels, cuts
