"""Removing threads, and some of the checkpoints of a namespace: what somebody else stores meanwhile, tags or pins is
left as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from analemma.canon.identity import BlockId
from analemma.canon.nodes import Block
from analemma.canon.trees import Edited
from analemma.canon.values import Wire
from analemma.catalog.port import BranchKey, Head, ManifestRow
from analemma.catalog.threads import CheckpointRow, ThreadRows
from analemma.clock import attempts
from analemma.errors import Conflict, Expired, HeadMoved, NotFound
from analemma.langgraph.snapshots import from_value, slot, to_value
from analemma.state.committer import Proposal
from analemma.state.records import ROLLED_BACK
from analemma.state.removing import Removing
from analemma.state.retention import BATCH, Retention
from analemma.state.versions import version_of


@dataclass(frozen=True, slots=True)
class DropPlan:
    """Checkpoints of one namespace that are to go."""

    key: BranchKey
    head: Head | None
    """Where the branch stood before its checkpoints were listed: what is newer than that stays."""
    gone: Sequence[CheckpointRow]
    kept: Sequence[CheckpointRow]
    """All others, newest first."""
    goes: Callable[[ManifestRow], bool]
    """Whether a version goes with them."""

    @property
    def staying(self) -> set[BlockId]:
        """Versions that are checkpoints which stay."""
        return {row.manifest for row in self.kept}

    def dooms(self, row: ManifestRow, staying: set[BlockId]) -> bool:
        """Whether this version has to go."""
        return self.head is not None and row.version <= self.head.version and row.id not in staying and self.goes(row)


class Dropping(Retention, Removing):
    """Removes checkpoints and their versions."""

    owner: str
    rows: ThreadRows

    def remove(self, thread: str) -> None:
        """Remove a thread with everything that it has, tagged and pinned or not, in one transaction."""
        self._remove_workflow(self.owner, thread, self.rows.drop_thread(thread))

    def tries(self) -> Iterator[int]:
        """The attempts of whoever removes something."""
        trouble = "the thread changes too fast to remove anything"
        return attempts(self._clock, trouble, hint="stop its writers, and try again")

    def settled_head(self, key: BranchKey) -> Head | None:
        """Where a branch stands, once everything that was accepted for it is applied."""
        return self._head_after_pending(key)

    def drop(self, plan: DropPlan) -> None:
        """Remove checkpoints. Versions first, then rows: stopped between the two, it can be done again. Tagged and
        pinned versions stay in the history. HeadMoved if it has to be planned anew; then no row is gone."""
        if plan.head is not None and self._expire_versions(plan, plan.head):
            return
        for start in range(0, len(plan.gone), BATCH):
            self.rows.drop(plan.gone[start : start + BATCH])

    def _expire_versions(self, plan: DropPlan, planned: Head) -> bool:
        """Let versions of a branch expire, moving the head to what is kept if it is one of them; whether the branch was
        removed instead, with its rows, since nothing of it stays."""
        key, staying = plan.key, plan.staying
        for _ in self.tries():
            head = self._catalog.head(self._tenant, key)
            if head is None:
                return False
            newest = self._catalog.manifest(self._tenant, head.manifest)
            doomed = newest is not None and plan.dooms(newest, staying)
            if doomed and plan.kept:
                self._move_head(key, head, plan.kept[0])
                continue
            tagged = {row.manifest for row in self._catalog.tags(self._tenant, key.owner, key.workflow)}
            pinned = {row.manifest for row in self._catalog.pins(self._tenant, key.owner, key.workflow)}
            marked = tagged | pinned
            rows = list(self._all_versions(key))
            if doomed and all(row.id not in marked and plan.dooms(row, staying) for row in rows):
                self._remove_planned(plan, planned)
                return True
            if doomed:
                self._leave_empty(key, head)
                continue
            # Below the head: one that came to be since we looked is above it.
            versions = [
                version_of(row)
                for row in rows
                if row.version < head.version and row.id not in marked and plan.dooms(row, staying)
            ]
            try:
                for start in range(0, len(versions), BATCH):
                    self._expire_batch(key, tuple(versions[start : start + BATCH]))
                return False
            except Conflict:
                # Tagged, pinned or expired since we looked.
                continue
            except NotFound:
                # Somebody has removed the branch: nothing is left to expire.
                return False
        raise AssertionError("unreachable")

    def _remove_planned(self, plan: DropPlan, planned: Head) -> None:
        """Remove a branch with all its rows, if it still has what was planned with."""
        rows = self.rows.drop_branch(plan.key.workflow, plan.key.branch, checkpoints=len(plan.gone))
        try:
            self._remove_at(plan.key.owner, plan.key.workflow, (planned,), rows)
        except HeadMoved:
            raise
        except Conflict as exc:
            raise _outdated(plan.key) from exc

    def _move_head(self, key: BranchKey, head: Head, row: CheckpointRow) -> None:
        """Make what a checkpoint holds the newest version of its branch again, and that version the checkpoint. Who
        called looks again: nothing is done if the head is another by now."""
        try:
            manifest = self._read_manifest(row.manifest)
            try:
                self._commit_again(key, head, row, manifest.version, Edited(manifest.root, ()), (row.manifest,))
            except Expired:
                # The version has expired, or is another thread's that is gone, so nothing can be taken over unread. Its
                # row has kept all of it.
                tree = self._rebuilt(row.manifest, manifest.root.id)
                self._commit_again(key, head, row, manifest.version, tree, ())
        except HeadMoved:
            return
        except (Conflict, Expired) as exc:
            # The checkpoint is another version by now, or none.
            raise _outdated(key) from exc

    def _commit_again(
        self, key: BranchKey, head: Head, row: CheckpointRow, version: int, tree: Edited, bases: tuple[BlockId, ...]
    ) -> None:
        def propose(head: Head | None) -> Proposal:
            return Proposal(
                key,
                tree,
                head,
                bases=bases,
                # So that it goes when the run does.
                execution=row.run,
                message=back_to(row.checkpoint),
                kind=ROLLED_BACK,
                facts={"version": version},
                rows=lambda made: [self.rows.point(row, made)],
            )

        self._commit(key, head.manifest, propose)

    def _rebuilt(self, manifest: BlockId, root: BlockId) -> Edited:
        """The state of a checkpoint with all its blocks."""
        snapshot = from_value(self._guarded(manifest, lambda: self._trees.read(root)))
        wires: dict[str, Wire] = {}
        blocks: list[Block] = []
        for name, channel in snapshot.channels.items():
            wires[name], made = self._trees.pack(slot(channel))
            blocks += made
        whole = self._trees.assemble(to_value(snapshot, wires))
        return Edited(whole.root, (*blocks, *whole.blocks))

    def _leave_empty(self, key: BranchKey, head: Head) -> None:
        """Make a version that holds nothing the newest of a branch: its checkpoints go, and it has others that stay."""
        nothing = self._trees.assemble({})

        def propose(head: Head | None) -> Proposal:
            return Proposal(key, nothing, head, message="its checkpoints were removed")

        try:
            self._commit(key, head.manifest, propose)
        except HeadMoved:
            # Who called looks again.
            pass


def back_to(checkpoint: str) -> str:
    """What a version says of itself that was made so that it is this checkpoint again."""
    return f"back to checkpoint {checkpoint}"


def _outdated(key: BranchKey) -> HeadMoved:
    return HeadMoved(f"checkpoints of thread {key.workflow!r} changed meanwhile", hint="look again", key=key)
