"""Removing some of the checkpoints of a thread: what somebody else stores meanwhile, tags or pins is left as it is. A
whole thread goes as any workflow does, by `state.removal`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from analemma.canon.trees import Edited
from analemma.catalog.langgraph.threads import PAGE, CheckpointRow
from analemma.catalog.port import BranchKey, Head, RowChange, Version
from analemma.clock import attempts
from analemma.errors import Conflict, Expired, HeadMoved, NotFound
from analemma.langgraph.threads import Threads, back_to, delta_channels
from analemma.state.commits import Proposal
from analemma.state.records import ROLLED_BACK
from analemma.state.removal import BATCH, expire_batch, needed_by, remove_branch


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
        _drop(threads, _plan(threads, threads.key(thread, branch), None))


def delete_for_runs(threads: Threads, runs: Collection[str]) -> None:
    """Remove every checkpoint that these runs made, in all threads."""
    if not runs:
        return
    rows = threads.rows.engine.rows(CheckpointRow, "checkpoints_of_runs", **threads.rows.key(), runs=sorted({*runs}))
    keys = sorted({threads.key(row.thread, row.branch) for row in rows})
    # All of them before anything goes: what cannot be is refused as a whole.
    for plan in [_plan(threads, key, frozenset(runs)) for key in keys]:
        _drop(threads, plan)


def _drop(threads: Threads, plan: DropPlan) -> None:
    """Do what was planned; again if the head has moved, and planning anew if checkpoints are others by now. Versions
    first, then rows: stopped between the two, it can be done again. Tagged and pinned versions stay in the history."""
    trouble = "the thread changes too fast to remove anything"
    for _ in attempts(threads.context.clock, trouble, hint="stop its writers, and try again"):
        if not plan.gone and not plan.kept:
            return
        try:
            if plan.head is None or not _expire_versions(threads, plan):
                for start in range(0, len(plan.gone), BATCH):
                    threads.rows.drop(plan.gone[start : start + BATCH])
            return
        except HeadMoved:
            continue
        except (Conflict, Expired):
            plan = _plan(threads, plan.key, plan.runs)


def _plan(threads: Threads, key: BranchKey, runs: Collection[str] | None) -> DropPlan:
    # In this order: what comes to be meanwhile is newer than the head.
    head = threads.commits.head_after_pending(key)
    threads.newest(key.workflow, key.branch)
    rows = [_noted(threads, row) for row in threads.rows.every(key.workflow, key.branch)]
    if runs is None:
        # The ancestors without which the newest checkpoint's delta channels could not be put together stay with it.
        needed = needed_by(threads.kernel, rows[:1], rows)
        going = {row.checkpoint for row in rows[1:]} - needed
    else:
        going = {row.checkpoint for row in rows if row.run in runs}
    gone = [row for row in rows if row.checkpoint in going]
    kept = [row for row in rows if row.checkpoint not in going]
    plan = DropPlan(key, head, gone, kept, runs)
    if runs is not None:
        _check_lines(threads, plan)
    return plan


def _check_lines(threads: Threads, plan: DropPlan) -> None:
    # Whose parent stays has what the parent has, and the parent is asked too: only who comes right after something
    # that goes can be the first to lose by it.
    going = {row.checkpoint for row in plan.gone}
    heirs = [row for row in plan.kept if row.parent in going]
    # Not every checkpoint tells of those of its namespace, so all of it are asked.
    channels = sorted({name for row in (*plan.gone, *plan.kept) for name in orjson.loads(row.deltas or "[]")})
    if not channels:
        return
    for start in range(0, len(heirs), PAGE):
        page = heirs[start : start + PAGE]
        for row, held in zip(page, threads.read_channels(page, channels), strict=True):
            if held.keys() >= set(channels):
                continue
            raise Conflict(
                f"checkpoint {row.checkpoint} of thread {row.thread!r} stays, and its delta channels are made of what "
                "would go",
                hint="delete the later runs too, or the whole thread",
                thread=row.thread,
                checkpoint=row.checkpoint,
            )


def _noted(threads: Threads, row: CheckpointRow) -> CheckpointRow:
    """A row that says which delta channels it does not hold whole: one from before that was noted has it in its
    metadata."""
    if row.deltas is not None:
        return row
    return row._replace(deltas=delta_channels(threads.loads((row.metadata_kind, row.metadata))) or "[]")


def _expire_versions(threads: Threads, plan: DropPlan) -> bool:
    """Let versions of a branch expire, moving the head to what is kept if it is one of them; whether the branch was
    removed instead, with its rows, since nothing of it stays. Conflict or Expired if something is not as planned."""
    key, dooms = plan.key, plan.dooming()
    catalog, tenant = threads.context.catalog, threads.context.tenant
    head = threads.commits.head_after_pending(key)
    if head is None:
        return False
    marked = {ref.manifest for ref in catalog.refs(tenant, key.owner, key.workflow)}
    rows = list(catalog.every_version(tenant, key))
    going = [row for row in rows if row.id not in marked and dooms(row)]
    # If the head stays, all that goes is below it: what came to be since we looked is above it.
    if any(row.id == head.manifest and dooms(row) for row in rows):
        if plan.kept:
            _move_head(threads, key, head, plan.kept[0])
        elif len(going) < len(rows):
            # The branch has others that stay: what it ends with holds nothing.
            _commit_on(threads, key, head, threads.context.trees.build({}), message="its checkpoints were removed")
        else:
            place = threads.rows.key(key.workflow, key.branch)
            # What was written for a checkpoint that is yet to be stored stays.
            writes = RowChange("drop_writes_of_branch", place, None)
            remove_branch(threads.kernel, head, [writes, RowChange("drop_checkpoints", place, len(plan.gone))])
            return True
    # Somebody may have removed the branch: then nothing is left to expire.
    with suppress(NotFound):
        for start in range(0, len(going), BATCH):
            expire_batch(threads.kernel, key, tuple(going[start : start + BATCH]))
    return False


def _move_head(threads: Threads, key: BranchKey, head: Head, row: CheckpointRow) -> None:
    """Make what a checkpoint holds the newest version of its branch again, and that version the checkpoint."""
    # The same checkpoint, as another version.
    place = threads.rows.key(row.thread, row.branch)
    checkpoint = {**place, "checkpoint": row.checkpoint, "expected": row.manifest}
    manifest, trees = threads.commits.manifest(row.manifest), threads.context.trees
    move = partial(
        _commit_on,
        *(threads, key, head),
        # So that it goes when the run does.
        execution=row.run,
        message=back_to(row.checkpoint),
        kind=ROLLED_BACK,
        facts={"version": manifest.version},
        rows=lambda made: [RowChange("point_checkpoint", {**checkpoint, "manifest": made})],
    )
    try:
        move(Edited(manifest.root, ()), bases=(row.manifest,))
    except Expired:
        # The version has expired, or is another thread's that is gone, so nothing can be taken over unread. Its row has
        # kept all of it.
        move(trees.build(threads.commits.guarded(row.manifest, lambda: trees.read(manifest.root.id))))


def _commit_on(threads: Threads, key: BranchKey, head: Head, tree: Edited, **more: Any) -> None:
    """Make a tree the newest version of a branch, if that still stands where it did."""
    threads.commits.commit_next(key, head.manifest, lambda head: Proposal(key, tree, head, **more))
