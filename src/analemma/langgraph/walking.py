"""Going through the checkpoints of a thread: by the page, along their parents, and to remove some of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import orjson
from langgraph.checkpoint.serde.base import SerializerProtocol

from analemma.canon.identity import BlockId
from analemma.catalog.port import Head, ManifestRow
from analemma.catalog.threads import LAST, Ancestor, CheckpointRow, Written
from analemma.errors import Conflict, Corrupt, HeadMoved
from analemma.langgraph.adopting import Adopter
from analemma.langgraph.dropping import DropPlan
from analemma.langgraph.snapshots import Serialized, loads_of
from analemma.langgraph.threads import Threads
from analemma.state.checkpoint_lines import needed_by

PAGE = 1000
COUNTERS = "counters_since_delta_snapshot"
"""In a checkpoint's metadata: the delta channels that it does not hold whole."""


@dataclass(slots=True)
class Line:
    """What one delta channel is made of: a stored value, if any ancestor has one, and what was written since, oldest
    first."""

    writes: list[Written] = field(default_factory=list)
    seed: Serialized | None = None


class Walker:
    """Walks through threads. Cheap to make."""

    def __init__(self, threads: Threads, serde: SerializerProtocol) -> None:
        self._threads = threads
        self._loads = loads_of(serde)
        self._adopter = Adopter(threads, serde)

    def rows(
        self, thread: str | None, branch: str | None, before: str | None, limit: int | None, *, including: bool = False
    ) -> Iterator[CheckpointRow]:
        """Checkpoints of a namespace, of a thread or of all, newest first, by the page; those with ids below `before`,
        or also that one."""
        rows = self._threads.rows
        page_size = PAGE if limit is None else max(1, min(PAGE, limit))
        first = LAST if before is None else before
        # Places are (id, thread, branch); behind every thread and branch there is the next smaller id.
        after_thread, after_branch = ("", "") if including else (LAST, LAST)
        while True:
            if thread is None:
                page = rows.of_all(before=first, after_thread=after_thread, after_branch=after_branch, limit=page_size)
            elif branch is None or including:
                page = rows.of_thread(thread, before=first, after_branch=after_branch, limit=page_size)
            else:
                page = rows.of_branch(thread, branch, before=first, limit=page_size)
            for row in page:
                if branch is None or row.branch == branch:
                    yield row
            if len(page) < page_size:
                return
            last = page[-1]
            first, after_thread, after_branch = last.checkpoint, last.thread, last.branch

    def lines(self, thread: str, branch: str, checkpoint: str | None, channels: Sequence[str]) -> dict[str, Line]:
        """What these channels are made of at a checkpoint. What was written on top of the checkpoint itself is no part
        of that."""
        found = {name: Line() for name in channels}
        open_channels = set(found)
        for page in self._ancestors(thread, branch, checkpoint):
            if not open_channels:
                break
            seeds = self._seeds(page, sorted(open_channels))
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

    def keep_latest(self, thread: str) -> None:
        """Remove every checkpoint but the newest of each namespace, and what the newest needs of its ancestors."""
        for branch in self._threads.rows.branches(thread):
            self._drop(partial(self._plan_latest, thread, branch))

    def delete_for_runs(self, runs: Collection[str]) -> None:
        """Remove every checkpoint that these runs made, in all threads."""
        if not runs:
            return
        chosen = frozenset(runs)
        places = sorted({(row.thread, row.branch) for row in self._threads.rows.of_runs(sorted(chosen))})
        planning = [partial(self._plan_runs, thread, branch, chosen) for thread, branch in places]
        # All of them before anything goes: what cannot be is refused as a whole.
        plans = [plan() for plan in planning]
        for again, plan in zip(planning, plans, strict=True):
            self._drop(again, plan)

    def _drop(self, planning: Callable[[], DropPlan], plan: DropPlan | None = None) -> None:
        """Do what was planned, planning anew when somebody was faster."""
        for _ in self._threads.tries():
            chosen = planning() if plan is None else plan
            if not chosen.gone and not chosen.kept:
                return
            try:
                self._threads.drop(chosen)
                return
            except HeadMoved:
                plan = None

    def _look(self, thread: str, branch: str) -> tuple[Head | None, list[CheckpointRow]]:
        """Where a namespace stands, and all its checkpoints. In this order: what comes to be meanwhile is newer than
        the head."""
        head = self._threads.settled_head(self._threads.key(thread, branch))
        self._adopter.newest(thread, branch)
        return head, list(self.rows(thread, branch, None, None))

    def _plan_latest(self, thread: str, branch: str) -> DropPlan:
        head, rows = self._look(thread, branch)
        needed = {rows[0].checkpoint, *self._needed(rows)} if rows else set()
        kept = [row for row in rows if row.checkpoint in needed]
        gone = [row for row in rows if row.checkpoint not in needed]
        return DropPlan(self._threads.key(thread, branch), head, gone, kept, lambda row: True)

    def _plan_runs(self, thread: str, branch: str, runs: Collection[str]) -> DropPlan:
        head, rows = self._look(thread, branch)
        gone = [row for row in rows if row.run in runs]
        kept = [row for row in rows if row.run not in runs]
        self._check_lines(thread, gone, kept, rows)
        goes = partial(_is_of_run, {row.manifest for row in gone}, runs)
        return DropPlan(self._threads.key(thread, branch), head, gone, kept, goes)

    def _check_lines(
        self,
        thread: str,
        gone: Sequence[CheckpointRow],
        kept: Sequence[CheckpointRow],
        rows: Sequence[CheckpointRow],
    ) -> None:
        names = {row.checkpoint for row in gone}
        # Whose parent stays has what the parent has, and the parent is asked too: only who comes right after something
        # that goes can be the first to lose by it.
        heirs = [row for row in kept if row.parent in names]
        channels = self._delta_channels(rows) if heirs else []
        if not channels:
            return
        for start in range(0, len(heirs), PAGE):
            page = heirs[start : start + PAGE]
            for row, held in zip(page, self._seeds(page, channels), strict=True):
                if held.keys() >= set(channels):
                    continue
                raise Conflict(
                    f"checkpoint {row.checkpoint} of thread {thread!r} stays, and its delta channels are made of what "
                    "would go",
                    hint="delete the later runs too, or the whole thread",
                    thread=thread,
                    checkpoint=row.checkpoint,
                )

    def _needed(self, rows: Sequence[CheckpointRow]) -> set[str]:
        """The ancestors without which the newest checkpoint's delta channels could not be put together."""
        # Rows from before that was noted have it in their metadata.
        told = [row if row.deltas is not None else row._replace(deltas=self._deltas(row)) for row in rows]
        return needed_by(told[:1], told, self._threads._held_channels)

    def _deltas(self, row: CheckpointRow) -> str:
        counters = self._loads((row.metadata_kind, row.metadata)).get(COUNTERS) or {}
        return orjson.dumps(sorted(counters)).decode()

    def _delta_channels(self, rows: Sequence[CheckpointRow]) -> list[str]:
        """The delta channels of a namespace. Which channels are such, metadata tells: not always that of the checkpoint
        itself, so all of the namespace are asked."""
        known: set[str] = set()
        for each in rows:
            known.update((self._loads((each.metadata_kind, each.metadata)).get(COUNTERS) or {}).keys())
        return sorted(known)

    def _ancestors(self, thread: str, branch: str, checkpoint: str | None) -> Iterator[list[Ancestor]]:
        """The ancestors of a checkpoint, without itself, nearest first, by the page."""
        own = True
        seen: set[str] = set()
        while checkpoint is not None:
            page = self._threads.rows.ancestors(thread, branch, checkpoint, limit=PAGE)
            met = len(seen)
            seen.update([each.checkpoint for each in page])
            if len(seen) != met + len(page):
                raise Corrupt(
                    f"a checkpoint of thread {thread} is its own ancestor", thread=thread, checkpoint=checkpoint
                )
            if page[own:]:
                yield page[own:]
            own = False
            checkpoint = page[-1].parent if len(page) == PAGE else None

    def _seeds(self, rows: Sequence[CheckpointRow | Ancestor], channels: Sequence[str]) -> list[dict[str, Serialized]]:
        """Those of the channels that each of these checkpoints holds."""
        return self._threads.read_channels(rows, channels, self._loads)

    def _collect(self, thread: str, branch: str, wanted: dict[str, list[str]], found: dict[str, Line]) -> None:
        """Add what was written on top of these checkpoints, nearest first, to the lines it belongs to: newest first."""
        if not wanted:
            return
        written: dict[str, list[Written]] = {}
        for each in self._threads.rows.writes_to(thread, branch, list(wanted), sorted(found)):
            written.setdefault(each.checkpoint, []).append(each)
        for checkpoint, names in wanted.items():
            for each in reversed(written.get(checkpoint, [])):
                if each.channel in names:
                    found[each.channel].writes.append(each)


def _is_of_run(manifests: Collection[BlockId], runs: Collection[str], row: ManifestRow) -> bool:
    """Also versions that were replaced since: storing a checkpoint again leaves the one before in the history."""
    return row.id in manifests or row.execution in runs
