"""Threads of LangGraph as rows: which version each checkpoint is, and what tasks wrote since.

The row of a checkpoint is written in the transaction of its version's commit (`put_checkpoint` among the request's
`rows`). It is a root of its own, so what it names is there as long as the row is, whatever becomes of the version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from analemma.canon.nodes import BlockId
from analemma.catalog.engine.db import Engine, Statements, Transaction, send
from analemma.catalog.names import check_key, check_part, check_texts
from analemma.catalog.port import BranchKey, RowChange, TenantId
from analemma.errors import Conflict, Corrupt, HeadMoved
from analemma.failpoints import declare, hit

BEFORE_WRITES = declare("thread.before_writes", "a task's writes are packed and none is stored")
AFTER_WRITES = declare("thread.after_writes", "a task's writes are stored, but the caller does not know")
COPY_BEFORE_COMMIT = declare("thread.copy_before_commit", "a thread is copied inside the transaction")
COPY_AFTER_COMMIT = declare("thread.copy_after_commit", "a thread is copied, but the caller does not know")
BEFORE_DROP = declare("thread.before_drop", "versions of checkpoints have expired and their rows are still there")
AFTER_DROP = declare("thread.after_drop", "the rows of checkpoints are gone, but the caller does not know")

ID_BYTES = 256
"""Longest id of a checkpoint or a task: with owner, thread and branch it has to fit one index entry."""
PAGE = 1000
LAST = "\U0010ffff"
"""Sorts behind every id."""
RESUMED = -4
"""Where LangGraph keeps the answers that a task was given."""
ANSWERED = -104
"""Where those are kept that it had been given when it asked the last time; nobody else sees them."""

_GREGORIAN_100NS = 0x01B21DD213814000
"""From 1582-10-15, where the time of a UUID begins, to 1970-01-01."""


class Written(NamedTuple):
    """One write of a task, serialized and perhaps compressed."""

    checkpoint: str
    task: str
    place: int
    """Its number among the task's writes; below zero, what the task reports of itself."""
    task_path: str
    channel: str
    kind: str
    """What the serializer calls its format."""
    codec: int
    size: int
    digest: bytes
    body: bytes
    writer: str | None = None
    """The run that wrote it, if one did that is told of others."""


class CheckpointRow(NamedTuple):
    """One checkpoint of one thread. A tuple, since histories are long."""

    thread: str
    branch: str
    checkpoint: str
    namespace: str
    parent: str | None
    manifest: BlockId
    run: str | None
    metadata_kind: str
    metadata: bytes
    alias: str | None = None
    """What it calls itself, if it repeats another checkpoint: that one's id, with dashes behind it."""
    deltas: str | None = None
    """The channels that it does not hold whole, as a list in JSON; None: that is not known."""


class Ancestor(NamedTuple):
    """A checkpoint on the way from another to its beginning."""

    checkpoint: str
    parent: str | None
    manifest: BlockId


class Fence(NamedTuple):
    """What a run has read of a namespace, so that it is told when another one has stored something since."""

    thread: str
    branch: str
    read: str
    """The checkpoint that it began with; empty: there was none."""
    run: str
    """The run, which graphs inside of its tasks share."""
    own: set[str]
    """The branches that were copied to a thread of the run's own, as it goes on there once it was passed; one set for
    all that the run reads."""
    seen: frozenset[str] = frozenset()
    """The runs that had written on top of that checkpoint."""
    chosen: bool = False
    """Whether the checkpoint was named: then to build on it is meant, whatever has come since."""

    def holds(self, checkpoint: str | None) -> bool:
        """Whether something that is built on this checkpoint is to be refused once others have passed."""
        return not (self.chosen and checkpoint == self.read)


class ThreadRows:
    """The threads of one owner. Whoever asks one thing names the statement, with a `key` of its place."""

    def __init__(self, engine: Engine, tenant: TenantId, owner: str) -> None:
        check_part(owner, "owner")
        self.engine = engine
        self._scope = (tenant, owner)

    def key(self, *place: str) -> dict[str, Any]:
        """What statements call the owner, one of its threads, or a namespace of that by its branch."""
        return dict(zip(("tenant", "owner", "thread", "branch"), (*self._scope, *place), strict=False))

    def check(self, thread: str, branch: str, checkpoint: str, *texts: str | None) -> None:
        """Raise Invalid for ids that no catalog could store, and for what else cannot be text."""
        check_key(BranchKey(self._scope[1], thread, branch))
        check_part(checkpoint, "checkpoint id", ID_BYTES)
        check_texts(texts)

    def check_row(self, row: CheckpointRow) -> None:
        """The same for a checkpoint that is to be stored."""
        self.check(row.thread, row.branch, row.checkpoint, row.namespace, row.parent, row.run, row.metadata_kind)

    def put(self, row: CheckpointRow, *, base: BlockId | None, fence: Fence | None = None) -> RowChange:
        """For a commit: the row of a checkpoint, which was checked, if its parent is still the version `base` that the
        commit builds on, and if no other run has passed the one that stores it."""
        writer = None if fence is None else fence.run
        held, read = (writer, fence.read) if fence is not None and fence.holds(row.parent) else (None, None)
        told = {"writer": writer, "base": base, "fence": held, "read": read}
        return RowChange("put_checkpoint", {**self.key(), **row._asdict(), **told}, commit="commit_checkpoint")

    def put_writes(self, tx: Transaction, thread: str, branch: str, writes: Iterable[Written]) -> None:
        """Write what tasks wrote in a namespace."""
        tx.execute_many("put_write", [(*self._scope, thread, branch, *written) for written in writes])

    def find(self, thread: str, branch: str, checkpoint: str) -> CheckpointRow | None:
        """One checkpoint."""
        return self.engine.row(CheckpointRow, "checkpoint", **self.key(thread, branch), checkpoint=checkpoint)

    def newest(self, thread: str, branch: str) -> tuple[CheckpointRow | None, BlockId | None]:
        """The checkpoint with the greatest id, if there is one; and the branch's head, if that is no checkpoint:
        somebody has rolled back or saved without the saver."""
        ((*found, stranger),) = self.engine.all("newest_checkpoint", **self.key(thread, branch))
        return None if found[0] is None else CheckpointRow._make(found), stranger

    def branches(self, thread: str) -> list[str]:
        """The branches of a thread that have checkpoints or writes."""
        return sorted(self.engine.rows(str, "namespaces", **self.key(thread)))

    def every(
        self,
        thread: str | None = None,
        branch: str | None = None,
        *,
        before: str | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointRow]:
        """Checkpoints of a namespace, of a thread or of all, newest first, read by the page; those with ids below
        `before`. Who wants no more than `limit` says so, and does not read more."""
        # Places are (id, thread, branch); behind every thread and branch there is the next smaller id.
        name, behind = "checkpoints_of_all", {"after_thread": LAST, "after_branch": LAST}
        if thread is not None:
            name, behind = "checkpoints_of_thread", {"thread": thread, "after_branch": LAST}
            if branch is not None:
                name, behind = "checkpoints_of_branch", {"thread": thread, "branch": branch}
        size = PAGE if limit is None else max(1, min(PAGE, limit))
        for page in self.engine.pages(name, {**behind, "before": before or LAST}, limit=size, **self.key()):
            yield from map(CheckpointRow._make, page)

    def line(self, row: CheckpointRow) -> list[str]:
        """The checkpoints from which one comes, nearest first."""
        return [each.checkpoint for page in self.ancestry(row.thread, row.branch, row.parent) for each in page]

    def ancestry(self, thread: str, branch: str, checkpoint: str | None) -> Iterator[list[Ancestor]]:
        """A checkpoint and those from which it comes, nearest first, by the page."""
        met: set[str] = set()
        while checkpoint is not None:
            asked = {**self.key(thread, branch), "checkpoint": checkpoint}
            page = self.engine.rows(Ancestor, "ancestors", **asked, limit=PAGE)
            names = {each.checkpoint for each in page}
            if len(names) < len(page) or met & names:
                raise Corrupt(
                    f"a checkpoint of thread {thread} is its own ancestor", thread=thread, checkpoint=checkpoint
                )
            met |= names
            if page:
                yield page
            checkpoint = page[-1].parent if len(page) == PAGE else None

    def check_fence(self, fence: Fence, checkpoint: str | None = None, *, source: Statements | None = None) -> None:
        """HeadMoved if another run has stored a checkpoint since this one has read, or has written on top of the same
        one."""
        source = source or self.engine
        place = self.key(fence.thread, fence.branch)
        # What a chosen checkpoint is built on by may come after what was written on top of that.
        if not fence.chosen or source.one("last_of_run", **place, fence=fence.run, read="") is not None:
            newest = source.row(str, "overtaken", **place, fence=fence.run, read=fence.read)
            if newest is not None:
                raise _passed(fence, f"another run has stored checkpoint {newest}")
        if checkpoint == fence.read:
            writers = set(source.rows(str, "writers", **place, checkpoint=checkpoint))
            if writers - fence.seen - {fence.run}:
                raise _passed(fence, f"another run goes on from checkpoint {fence.read}, too")

    def branch_off(self, fence: Fence, target: str) -> None:
        """Give a run a thread of its own: what it has read and stored in a namespace, and none of what others have
        stored since."""
        place = self.key(fence.thread, fence.branch)
        last = self.engine.row(CheckpointRow, "last_of_run", **place, read=fence.read, fence=fence.run)
        if last is None:
            return
        chosen = {**place, "target": target, "checkpoints": [*self.line(last), last.checkpoint]}

        def branch_off(tx: Transaction) -> None:
            tx.execute("copy_line", **chosen)
            tx.execute("copy_line_writes", **chosen, end=last.checkpoint, writers=["", fence.run, *fence.seen])

        self.engine.write(branch_off)

    def add_writes(self, thread: str, branch: str, writes: Sequence[Written], fence: Fence | None = None) -> None:
        """Store what a task wrote, durably: each write once, but a report of the task takes the place of the one
        before. HeadMoved, and nothing is stored, if another run has passed the one that stores it."""
        for written in writes:
            self.check(thread, branch, written.checkpoint, written.task_path, written.channel, written.kind)
            check_part(written.task, "task id", ID_BYTES)
        if fence is not None:
            writes = [written._replace(writer=fence.run) for written in writes]

        def store(tx: Transaction) -> None:
            if fence is not None and fence.holds(writes[0].checkpoint):
                self.check_fence(fence, writes[0].checkpoint, source=tx)
            self.put_writes(tx, thread, branch, writes)

        hit(BEFORE_WRITES)
        # Stored twice, they are stored once.
        send(lambda: self.engine.write(store))
        hit(AFTER_WRITES)

    def writes(self, thread: str, branch: str, checkpoint: str) -> list[Written]:
        """What tasks wrote on top of a checkpoint, in the order in which that is applied."""
        return sorted(self.engine.rows(Written, "writes", **self.key(thread, branch), checkpoint=checkpoint), key=order)

    def copy(self, thread: str, target: str) -> None:
        """Give another thread the same checkpoints and writes; Conflict if it has anything already."""
        check_part(target, "thread id")

        def copy(tx: Transaction) -> None:
            # Of two copies into one thread, the second sees the first.
            tx.all("hold_thread", **self.key(target))
            if tx.all("thread_places", **self.key(target)):
                raise Conflict(f"thread {target!r} exists already", hint="delete it first, or copy to a new one")
            tx.execute("copy_checkpoints", **self.key(thread), target=target)
            tx.execute("copy_writes", **self.key(thread), target=target)
            hit(COPY_BEFORE_COMMIT)

        self.engine.write(copy)
        hit(COPY_AFTER_COMMIT)

    def drop(self, rows: Iterable[CheckpointRow]) -> None:
        """Remove checkpoints, unless they are other versions by now, with what was written on top of them."""
        # In the order of their keys, as everyone who holds several of them.
        chosen = [(*self._scope, *key) for key in sorted((*row[:3], row.manifest) for row in rows)]

        def drop(tx: Transaction) -> None:
            tx.execute_many("drop_checkpoint", chosen)
            tx.execute_many("drop_writes", [row[:-1] for row in chosen])

        hit(BEFORE_DROP)
        self.engine.write(drop)
        hit(AFTER_DROP)


def _passed(fence: Fence, what: str) -> HeadMoved:
    return HeadMoved(
        f"thread {fence.thread!r} has moved on: {what} since this one has read it",
        hint="run it again, on what is there now; on_conflict='branch' or 'last' of the saver goes on all the same",
        thread=fence.thread,
        read=fence.read or None,
    )


def id_of_version(manifest: BlockId, at_us: int) -> str:
    """The id of a checkpoint that was made of a version, the same whoever makes it: as LangGraph makes ids (UUID 6), so
    that later is greater."""
    moment = at_us * 10 + _GREGORIAN_100NS
    rest = int.from_bytes(manifest[:8], "big") & 0x3FFF_FFFF_FFFF_FFFF
    number = (moment >> 12) << 80 | 0x6 << 76 | (moment & 0xFFF) << 64 | 0b10 << 62 | rest
    text = f"{number:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def following(newest: CheckpointRow | None, made: BlockId, at_us: int | None) -> str:
    """The id of a checkpoint that is made of a version and becomes the newest of its namespace."""
    name = "" if at_us is None else id_of_version(made, at_us)
    # Ids of another kind, or from a clock that is ahead.
    return f"{newest.checkpoint}~{made.hex()[:8]}" if newest is not None and name <= newest.checkpoint else name


def order(written: Written) -> tuple[str, str, str, int]:
    """LangGraph applies the writes of a step in this order. Sorted here: databases differ in how they compare text."""
    return (written.checkpoint, written.task_path, written.task, written.place)
