"""Removing threads, and some of the checkpoints of a namespace: what somebody else stores meanwhile, tags or pins is
left as it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from analemma.canon.identity import BlockId
from analemma.canon.trees import Edited
from analemma.catalog.langgraph.threads import PAGE, CheckpointRow
from analemma.catalog.port import BranchKey, Head, RowChange, Version
from analemma.clock import attempts
from analemma.errors import Conflict, Expired, HeadMoved, NotFound
from analemma.langgraph.threads import Threads, back_to, delta_channels
from analemma.state.commits import Proposal
from analemma.state.records import ROLLED_BACK
from analemma.state.removal import remove_branch
from analemma.state.retention import BATCH, expire_batch, held_channels, needed_by


@dataclass(frozen=True, slots=True)
class DropPlan:
    """Checkpoints of one namespace that are to go."""

    key: BranchKey
    head: Head | None
    """Where the branch stood before its checkpoints were listed: what is newer than that stays."""
    gone: Sequence[CheckpointRow]
    kept: Sequence[CheckpointRow]
    """All others, newest first."""
    runs: Collection[str] | None
    """Whose they are; None: whoever made them."""

    def dooming(self) -> Callable[[Version], bool]:
        """What tells whether a version goes with them: also one that was replaced since, as storing a checkpoint again
        leaves the one before in the history."""
        staying, gone = {row.manifest for row in self.kept}, {row.manifest for row in self.gone}
        head, runs = self.head, self.runs
        return lambda row: (
            head is not None
            and row.version <= head.version
            and row.id not in staying
            and (runs is None or row.id in gone or row.execution in runs)
        )


def keep_latest(threads: Threads, thread: str) -> None:
    """Remove every checkpoint but the newest of each namespace, and what the newest needs of its ancestors."""
    for branch in threads.rows.branches(thread):
        _drop(threads, threads.key(thread, branch), None)


def delete_for_runs(threads: Threads, runs: Collection[str]) -> None:
    """Remove every checkpoint that these runs made, in all threads."""
    if not runs:
        return
    rows = threads.rows.engine.rows(CheckpointRow, "checkpoints_of_runs", **threads.rows.key(), runs=sorted({*runs}))
    keys = sorted({threads.key(row.thread, row.branch) for row in rows})
    # All of them before anything goes: what cannot be is refused as a whole.
    for plan in [_plan(threads, key, frozenset(runs)) for key in keys]:
        _drop(threads, plan.key, plan.runs, plan)


def _drop(threads: Threads, key: BranchKey, runs: Collection[str] | None, plan: DropPlan | None = None) -> None:
    """Do what was planned, planning anew when somebody was faster. Versions first, then rows: stopped between the two,
    it can be done again. Tagged and pinned versions stay in the history."""
    for _ in _tries(threads):
        chosen = plan or _plan(threads, key, runs)
        if not chosen.gone and not chosen.kept:
            return
        try:
            if chosen.head is None or not _expire_versions(threads, chosen, chosen.head):
                for start in range(0, len(chosen.gone), BATCH):
                    threads.rows.drop(chosen.gone[start : start + BATCH])
            return
        except HeadMoved:
            plan = None


def _tries(threads: Threads) -> Iterator[int]:
    """The attempts of whoever removes something."""
    trouble = "the thread changes too fast to remove anything"
    return attempts(threads.context.clock, trouble, hint="stop its writers, and try again")


def _plan(threads: Threads, key: BranchKey, runs: Collection[str] | None) -> DropPlan:
    # In this order: what comes to be meanwhile is newer than the head.
    head = threads.commits.head_after_pending(key)
    threads.newest(key.workflow, key.branch)
    rows = [_noted(threads, row) for row in threads.rows.every(key.workflow, key.branch)]
    if runs is None:
        # The ancestors without which the newest checkpoint's delta channels could not be put together stay with it.
        needed = needed_by(rows[:1], rows, partial(held_channels, threads.kernel))
        going = {row.checkpoint for row in rows[1:]} - needed
    else:
        going = {row.checkpoint for row in rows if row.run in runs}
    gone = [row for row in rows if row.checkpoint in going]
    kept = [row for row in rows if row.checkpoint not in going]
    if runs is not None:
        _check_lines(threads, key.workflow, going, kept, rows)
    return DropPlan(key, head, gone, kept, runs)


def _check_lines(
    threads: Threads,
    thread: str,
    going: Collection[str],
    kept: Sequence[CheckpointRow],
    rows: Sequence[CheckpointRow],
) -> None:
    # Whose parent stays has what the parent has, and the parent is asked too: only who comes right after something
    # that goes can be the first to lose by it.
    heirs = [row for row in kept if row.parent in going]
    # Not every checkpoint tells of those of its namespace, so all of it are asked.
    channels = sorted({name for row in rows for name in orjson.loads(row.deltas or "[]")})
    if not channels:
        return
    for start in range(0, len(heirs), PAGE):
        page = heirs[start : start + PAGE]
        for row, held in zip(page, threads.read_channels(page, channels), strict=True):
            if held.keys() >= set(channels):
                continue
            raise Conflict(
                f"checkpoint {row.checkpoint} of thread {thread!r} stays, and its delta channels are made of what "
                "would go",
                hint="delete the later runs too, or the whole thread",
                thread=thread,
                checkpoint=row.checkpoint,
            )


def _noted(threads: Threads, row: CheckpointRow) -> CheckpointRow:
    """A row that says which delta channels it does not hold whole: one from before that was noted has it in its
    metadata."""
    if row.deltas is not None:
        return row
    told = delta_channels(threads.loads((row.metadata_kind, row.metadata))) or []
    return row._replace(deltas=orjson.dumps(told).decode())


def _expire_versions(threads: Threads, plan: DropPlan, planned: Head) -> bool:
    """Let versions of a branch expire, moving the head to what is kept if it is one of them; whether the branch was
    removed instead, with its rows, since nothing of it stays."""
    key, dooms = plan.key, plan.dooming()
    catalog, tenant = threads.context.catalog, threads.context.tenant
    for _ in _tries(threads):
        head = catalog.head(tenant, key)
        if head is None:
            return False
        newest = catalog.manifest(tenant, head.manifest)
        doomed = newest is not None and dooms(newest)
        if doomed and plan.kept:
            _move_head(threads, key, head, plan.kept[0])
            continue
        marked = {ref.manifest for ref in catalog.refs(tenant, key.owner, key.workflow)}
        rows = list(catalog.every_version(tenant, key))
        if doomed and all(row.id not in marked and dooms(row) for row in rows):
            _remove_planned(threads, plan, planned)
            return True
        if doomed:
            # The branch has others that stay: what it ends with holds nothing.
            nothing = threads.context.trees.build({})
            _commit_on(threads, key, head, nothing, message="its checkpoints were removed")
            continue
        # Below the head: one that came to be since we looked is above it.
        versions = [row for row in rows if row.version < head.version and row.id not in marked and dooms(row)]
        try:
            for start in range(0, len(versions), BATCH):
                expire_batch(threads.kernel, key, tuple(versions[start : start + BATCH]))
            return False
        except Conflict:
            # Tagged, pinned or expired since we looked.
            continue
        except NotFound:
            # Somebody has removed the branch: nothing is left to expire.
            return False
    raise AssertionError("unreachable")


def _remove_planned(threads: Threads, plan: DropPlan, planned: Head) -> None:
    """Remove a branch with all its rows, if it still has what was planned with."""
    place = threads.rows.key(plan.key.workflow, plan.key.branch)
    # What was written for a checkpoint that is yet to be stored stays.
    writes, checkpoints = "drop_writes_of_branch", "drop_checkpoints"
    rows = [RowChange(writes, place, None), RowChange(checkpoints, place, len(plan.gone))]
    try:
        remove_branch(threads.kernel, planned, rows)
    except HeadMoved:
        raise
    except Conflict as exc:
        raise _outdated(plan.key) from exc


def _move_head(threads: Threads, key: BranchKey, head: Head, row: CheckpointRow) -> None:
    """Make what a checkpoint holds the newest version of its branch again, and that version the checkpoint."""

    def move(tree: Edited, *bases: BlockId) -> None:
        _commit_on(
            threads,
            key,
            head,
            tree,
            bases=bases,
            # So that it goes when the run does.
            execution=row.run,
            message=back_to(row.checkpoint),
            kind=ROLLED_BACK,
            facts={"version": manifest.version},
            rows=lambda made: [RowChange("point_checkpoint", {**checkpoint, "manifest": made})],
        )

    trees = threads.context.trees
    # The same checkpoint, as another version.
    place = threads.rows.key(row.thread, row.branch)
    checkpoint = {**place, "checkpoint": row.checkpoint, "expected": row.manifest}
    try:
        manifest = threads.commits.manifest(row.manifest)
        try:
            move(Edited(manifest.root, ()), row.manifest)
        except Expired:
            # The version has expired, or is another thread's that is gone, so nothing can be taken over unread. Its
            # row has kept all of it.
            state = threads.commits.guarded(row.manifest, lambda: trees.read(manifest.root.id))
            move(trees.build(state))
    except (Conflict, Expired) as exc:
        # The checkpoint is another version by now, or none.
        raise _outdated(key) from exc


def _commit_on(threads: Threads, key: BranchKey, head: Head, tree: Edited, **more: Any) -> None:
    """Make a tree the newest version of a branch. Who called looks again: nothing is done if the head is another by
    now."""
    with suppress(HeadMoved):
        threads.commits.commit_next(key, head.manifest, lambda head: Proposal(key, tree, head, **more))


def _outdated(key: BranchKey) -> HeadMoved:
    return HeadMoved(f"checkpoints of thread {key.workflow!r} changed meanwhile", hint="look again", key=key)
