"""Threads of LangGraph as rows: which version each checkpoint is, and what tasks wrote since.

The row of a checkpoint is written in the transaction of its version's commit (`put_checkpoint` among the request's
`rows`). It is a root of its own, so what it names is there as long as the row is, whatever becomes of the version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from analemma.canon.identity import BlockId
from analemma.catalog.engine.db import Engine, Statements, Transaction
from analemma.catalog.engine.lost_answers import send
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


@dataclass(frozen=True, slots=True)
class Newest:
    """The checkpoint with the greatest id, if there is one."""

    row: CheckpointRow | None
    stranger: BlockId | None
    """The branch's head, if it is no checkpoint: somebody has rolled back or saved without the saver."""


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
    seen: frozenset[str] = frozenset()
    """The runs that had written on top of that checkpoint."""
    chosen: bool = False
    """Whether the checkpoint was named: then to build on it is meant, whatever has come since."""

    def holds(self, checkpoint: str | None) -> bool:
        """Whether something that is built on this checkpoint is to be refused once others have passed."""
        return not (self.chosen and checkpoint == self.read)


class ThreadRows:
    """The threads of one owner."""

    def __init__(self, engine: Engine, tenant: TenantId, owner: str) -> None:
        check_part(owner, "owner")
        self._engine = engine
        self._tenant = tenant
        self._owner = owner

    def put(self, row: CheckpointRow, *, base: BlockId | None, fence: Fence | None = None) -> RowChange:
        """For a commit: the checkpoint's row, if its parent is still the version `base` that the commit builds on, and
        if no other run has passed the one that stores it."""
        self.check(row.thread, row.branch, row.checkpoint)
        check_texts((row.namespace, row.parent, row.run, row.metadata_kind))
        columns = {**self._columns(row), "run": row.run, "base": base, "writer": None, "fence": None, "read": None}
        if fence is not None:
            columns["writer"] = fence.run
            if fence.holds(row.parent):
                columns |= {"fence": fence.run, "read": fence.read}
        return RowChange("put_checkpoint", columns, commit="commit_checkpoint")

    def adopt(self, row: CheckpointRow, pending: Sequence[Written]) -> None:
        """Make a checkpoint of the head that somebody else left, with what is pending on it; the id follows from the
        version, so doing it twice does nothing."""
        self.check(row.thread, row.branch, row.checkpoint)

        def adopt(tx: Transaction) -> None:
            if tx.execute("adopt_version", **self._columns(row)) == 1:
                for written in pending:
                    tx.execute("add_write", **self.write_columns(row.thread, row.branch, written))

        self._engine.write(adopt)

    def point(self, row: CheckpointRow, manifest: BlockId) -> RowChange:
        """For a commit: the same checkpoint, as another version."""
        key = self.key(row.thread, row.branch)
        chosen = {"checkpoint": row.checkpoint, "expected": row.manifest, "manifest": manifest}
        return RowChange("point_checkpoint", {**key, **chosen})

    def passed(self, fence: Fence, *, source: Statements | None = None) -> str | None:
        """What another run has stored since this one has read, if it did."""
        asked = {**self.key(fence.thread, fence.branch), "fence": fence.run}
        source = source or self._engine
        if fence.chosen and source.one("last_of_run", **asked, read="") is None:
            # What it begins with may come after what was written on top of that.
            return None
        return source.row(str, "overtaken", **asked, read=fence.read)

    def writers(self, thread: str, branch: str, checkpoint: str, *, source: Statements | None = None) -> frozenset[str]:
        """The runs that wrote on top of a checkpoint."""
        rows = (source or self._engine).all("writers", **self.key(thread, branch), checkpoint=checkpoint)
        return frozenset([row[0] for row in rows])

    def branch_off(self, fence: Fence, target: str) -> None:
        """Give a run a thread of its own: what it has read and stored in a namespace, and none of what others have
        stored since."""
        place = self.key(fence.thread, fence.branch)
        row = self._engine.one("last_of_run", **place, read=fence.read, fence=fence.run)
        last = None if row is None else _checkpoint(row)
        line = [] if last is None else self.line(last)
        known = {None, fence.run, *fence.seen}

        def branch_off(tx: Transaction) -> None:
            if last is None:
                return
            chosen = {**place, "target": target}
            tx.execute("copy_line", **chosen, checkpoints=[*line, last.checkpoint])
            tx.execute("copy_line_writes", **chosen, checkpoints=line)
            for *written, writer in tx.all("writes_of_writers", **place, checkpoint=last.checkpoint):
                if writer in known:
                    tx.execute("add_write", **self.write_columns(target, fence.branch, Written._make(written)))

        self._engine.write(branch_off)

    def line(self, row: CheckpointRow) -> list[str]:
        """The checkpoints from which one comes, nearest first."""
        return [each.checkpoint for page in self.ancestry(row.thread, row.branch, row.parent) for each in page]

    def ancestry(self, thread: str, branch: str, checkpoint: str | None) -> Iterator[list[Ancestor]]:
        """A checkpoint and those from which it comes, nearest first, by the page."""
        met: set[str] = set()
        while checkpoint is not None:
            rows = self._engine.all("ancestors", **self.key(thread, branch), checkpoint=checkpoint, limit=PAGE)
            page = [Ancestor(row[0], row[1], BlockId(row[2])) for row in rows]
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
        newest = self.passed(fence, source=source)
        if newest is not None:
            raise _passed(fence, f"another run has stored checkpoint {newest}")
        if checkpoint == fence.read:
            others = self.writers(fence.thread, fence.branch, fence.read, source=source) - fence.seen - {fence.run}
            if others:
                raise _passed(fence, f"another run goes on from checkpoint {fence.read}, too")

    def strangers(self, thread: str | None) -> list[tuple[str, str]]:
        """The branches of a thread, or of all threads, whose head is no checkpoint."""
        if thread is None:
            rows = self._engine.all("strangers_of_all", tenant=self._tenant, owner=self._owner)
        else:
            rows = self._engine.all("strangers_of_thread", **self._thread(thread))
        return [(row[0], row[1]) for row in rows]

    def find(self, thread: str, branch: str, checkpoint: str) -> CheckpointRow | None:
        """One checkpoint."""
        row = self._engine.one("checkpoint", **self.key(thread, branch), checkpoint=checkpoint)
        return None if row is None else _checkpoint(row)

    def manifest(self, thread: str, branch: str, checkpoint: str) -> BlockId | None:
        """Which version a checkpoint is."""
        return self._engine.row(BlockId, "checkpoint_manifest", **self.key(thread, branch), checkpoint=checkpoint)

    def of_version(self, thread: str, branch: str, manifest: BlockId) -> CheckpointRow | None:
        """The checkpoint that is this version."""
        row = self._engine.one("checkpoint_of_version", **self.key(thread, branch), manifest=manifest)
        return None if row is None else _checkpoint(row)

    def resolve(self, thread: str, branch: str, checkpoint: str) -> str:
        """The id of the checkpoint that calls itself so."""
        if not checkpoint.endswith("-"):
            return checkpoint
        row = self._engine.one("checkpoint_of_alias", **self.key(thread, branch), alias=checkpoint)
        return checkpoint if row is None else str(row[0])

    def aliases(self, thread: str, branch: str) -> list[str]:
        """What checkpoints call themselves that repeat others."""
        return [row[0] for row in self._engine.all("aliases", **self.key(thread, branch))]

    def is_continued(self, thread: str, branch: str, checkpoint: str) -> bool:
        """Whether a checkpoint has been built upon."""
        return self._engine.one("continued", **self.key(thread, branch), checkpoint=checkpoint) is not None

    def waiting(self, thread: str, branch: str) -> str | None:
        """The newest checkpoint on which a task waits, or failed."""
        row = self._engine.one("waiting_checkpoint", **self.key(thread, branch))
        return None if row is None else row[0]

    def newest_id(self, thread: str, branch: str) -> str | None:
        """The greatest id."""
        row = self.newest(thread, branch).row
        return None if row is None else row.checkpoint

    def newest(self, thread: str, branch: str) -> Newest:
        """The checkpoint with the greatest id."""
        ((*found, stranger),) = self._engine.all("newest_checkpoint", **self.key(thread, branch))
        return Newest(
            None if found[0] is None else _checkpoint(tuple(found)), None if stranger is None else BlockId(stranger)
        )

    def every(
        self,
        thread: str | None = None,
        branch: str | None = None,
        *,
        before: str | None = None,
        including: bool = False,
        limit: int | None = None,
    ) -> Iterator[CheckpointRow]:
        """Checkpoints of a namespace, of a thread or of all, newest first, read by the page; those with ids below
        `before`, or also that one. Who wants no more than `limit` says so, and does not read more."""
        asked: dict[str, Any] = {"tenant": self._tenant, "owner": self._owner, "before": before or LAST}
        asked["limit"] = PAGE if limit is None else max(1, min(PAGE, limit))
        # Places are (id, thread, branch); behind every thread and branch there is the next smaller id.
        after = {"after_thread": "" if including else LAST, "after_branch": "" if including else LAST}
        name = "checkpoints_of_all"
        if thread is not None and branch is not None and not including:
            name, after = "checkpoints_of_branch", {}
            asked |= {"thread": thread, "branch": branch}
        elif thread is not None:
            name = "checkpoints_of_thread"
            asked["thread"] = thread
            del after["after_thread"]
        while True:
            page = [_checkpoint(row) for row in self._engine.all(name, **asked, **after)]
            yield from (row for row in page if branch is None or row.branch == branch)
            if len(page) < asked["limit"]:
                return
            asked["before"] = page[-1].checkpoint
            after = {each: getattr(page[-1], each.removeprefix("after_")) for each in after}

    def of_runs(self, runs: Sequence[str]) -> list[CheckpointRow]:
        """Every checkpoint that one of these runs made."""
        wanted = list(runs)
        rows = self._engine.all("checkpoints_of_runs", tenant=self._tenant, owner=self._owner, runs=wanted)
        return [_checkpoint(row) for row in rows]

    def branches(self, thread: str) -> list[str]:
        """The branches of a thread that have checkpoints or writes."""
        rows = self._engine.all("namespaces", tenant=self._tenant, owner=self._owner, thread=thread)
        return sorted(row[0] for row in rows)

    def exists(self, thread: str) -> bool:
        """Whether there is anything of a thread."""
        return self._engine.one("thread_exists", **self._thread(thread)) is not None

    def add_writes(self, thread: str, branch: str, writes: Sequence[Written], fence: Fence | None = None) -> None:
        """Store what a task wrote, durably: each write once, but a report of the task takes the place of the one
        before. HeadMoved, and nothing is stored, if another run has passed the one that stores it."""
        for written in writes:
            self.check(thread, branch, written.checkpoint)
            check_part(written.task, "task id", ID_BYTES)
            check_texts((written.task_path, written.channel, written.kind))
        key = (self._tenant, self._owner, thread, branch)
        writer = None if fence is None else fence.run
        results = [(*key, *written, writer) for written in writes if written.place >= 0]
        reports = [(*key, *written, writer) for written in writes if written.place < 0]

        def store(tx: Transaction) -> None:
            if fence is not None and fence.holds(writes[0].checkpoint):
                self.check_fence(fence, writes[0].checkpoint, source=tx)
            if results:
                tx.execute_many("add_write", results)
            if reports:
                tx.execute_many("put_write", reports)

        hit(BEFORE_WRITES)
        # Stored twice, they are stored once.
        send(lambda: self._engine.write(store))
        hit(AFTER_WRITES)

    def writes(self, thread: str, branch: str, checkpoint: str, *, all_of_them: bool = False) -> list[Written]:
        """What tasks wrote on top of a checkpoint, in the order in which that is applied; all of it, or what others
        than this package are to see."""
        rows = self._engine.all("writes", **self.key(thread, branch), checkpoint=checkpoint)
        found = sorted(map(Written._make, rows), key=_order)
        return found if all_of_them else [written for written in found if written.place != ANSWERED]

    def writes_to(self, thread: str, branch: str, checkpoints: Sequence[str], channels: Sequence[str]) -> list[Written]:
        """The same for some channels, on top of several checkpoints, each in its own order."""
        rows = self._engine.all(
            "writes_to_channels",
            **self.key(thread, branch),
            checkpoints=list(checkpoints),
            channels=list(channels),
        )
        return sorted(map(Written._make, rows), key=_order)

    def copy(self, thread: str, target: str) -> None:
        """Give another thread the same checkpoints and writes; Conflict if it has anything already."""
        check_part(target, "thread id")

        def copy(tx: Transaction) -> None:
            # Of two copies into one thread, the second sees the first.
            tx.all("hold_thread", **self._thread(target))
            if tx.one("thread_exists", **self._thread(target)) is not None:
                raise Conflict(f"thread {target!r} exists already", hint="delete it first, or copy to a new one")
            tx.execute("copy_checkpoints", **self._thread(thread), target=target)
            tx.execute("copy_writes", **self._thread(thread), target=target)
            hit(COPY_BEFORE_COMMIT)

        self._engine.write(copy)
        hit(COPY_AFTER_COMMIT)

    def drop(self, rows: Iterable[CheckpointRow]) -> None:
        """Remove checkpoints, unless they are other versions by now, with what was written on top of them."""
        # In the order of their keys, as everyone who holds several of them.
        ordered = sorted(rows, key=lambda row: (row.thread, row.branch, row.checkpoint))
        chosen = [(self.key(row.thread, row.branch), row) for row in ordered]

        def drop(tx: Transaction) -> None:
            for key, row in chosen:
                tx.execute("drop_checkpoint", **key, checkpoint=row.checkpoint, manifest=row.manifest)
                tx.execute("drop_writes", **key, checkpoint=row.checkpoint)

        hit(BEFORE_DROP)
        self._engine.write(drop)
        hit(AFTER_DROP)

    def drop_branch(self, thread: str, branch: str, *, checkpoints: int) -> list[RowChange]:
        """For a removal: all checkpoints of one namespace, if there are just so many, with what was written on top of
        them. What was written for a checkpoint that is yet to be stored stays."""
        key = self.key(thread, branch)
        return [
            RowChange("drop_writes_of_branch", key, None),
            RowChange("drop_checkpoints_of_branch", key, checkpoints),
        ]

    def drop_thread(self, thread: str) -> list[RowChange]:
        """For a removal: everything of a thread, in whichever namespaces it is by then."""
        key = self._thread(thread)
        return [RowChange(name, key, None) for name in ("drop_checkpoints_of_thread", "drop_writes_of_thread")]

    def check(self, thread: str, branch: str, checkpoint: str) -> None:
        """Raise Invalid for ids that no catalog could store."""
        check_key(BranchKey(self._owner, thread, branch))
        check_part(checkpoint, "checkpoint id", ID_BYTES)

    def _thread(self, thread: str) -> dict[str, Any]:
        return {"tenant": self._tenant, "owner": self._owner, "thread": thread}

    def write_columns(self, thread: str, branch: str, written: Written) -> dict[str, Any]:
        """The row of one write."""
        return {**self.key(thread, branch), **written._asdict(), "writer": None}

    def key(self, thread: str, branch: str) -> dict[str, Any]:
        """Where a namespace stands."""
        return {"tenant": self._tenant, "owner": self._owner, "thread": thread, "branch": branch}

    def _columns(self, row: CheckpointRow) -> dict[str, Any]:
        columns = {"tenant": self._tenant, "owner": self._owner, **row._asdict()}
        del columns["run"]
        return columns


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


_checkpoint = CheckpointRow._make


def _order(written: Written) -> tuple[str, str, str, int]:
    """LangGraph applies the writes of a step in this order. Sorted here: databases differ in how they compare text."""
    return (written.checkpoint, written.task_path, written.task, written.place)
