"""Removing branches of a workflow with all their versions. What they were is recorded; their blocks go by
collection."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256

from analemma.catalog.engine import Engine
from analemma.catalog.port import BranchKey, Head, RowChange
from analemma.catalog.removing import RemovalRequest, remove_branches
from analemma.clock import attempts
from analemma.errors import HeadMoved
from analemma.state.kernel_base import KernelBase, place
from analemma.state.records import encode_record, marked


class Removing(KernelBase):
    """Removes branches."""

    _engine: Engine

    def _remove_workflow(self, owner: str, workflow: str, rows: Sequence[RowChange] = ()) -> int:
        """Remove a workflow with all its branches, and change other rows with them, in one transaction; how many
        branches there were."""
        trouble = f"{place(BranchKey(owner, workflow))} changes too fast to be removed"
        for _ in attempts(self._clock, trouble, hint="stop its writers"):
            names = [row.branch for row in self._catalog.branches(self._tenant, owner, workflow)]
            found = [self._head_after_pending(BranchKey(owner, workflow, name)) for name in names]
            heads = tuple(head for head in found if head is not None)
            with suppress(HeadMoved):
                self._remove_at(owner, workflow, heads, rows, whole=True)
                return len(heads)
        raise AssertionError("unreachable")

    def _remove_at(
        self, owner: str, workflow: str, heads: tuple[Head, ...], rows: Sequence[RowChange], *, whole: bool = False
    ) -> None:
        """Remove the branches that stand here, and change other rows with them, in one transaction. A workflow that has
        none left is gone. HeadMoved, with nothing changed, if one stands elsewhere by now, or if they are to be the
        `whole` workflow and it has others."""
        now_us = self._clock.now_us()
        body = _record(owner, workflow, heads, now_us)
        events = self._committer.removal_events(head.key for head in heads)
        remove_branches(
            self._engine,
            RemovalRequest(
                self._tenant, owner, workflow, heads, now_us, body, sha256(body).digest(), tuple(rows), whole, events
            ),
        )
        self._committer.announced(events)
        for head in heads:
            self._own_heads.pop(head.key, None)


def _record(owner: str, workflow: str, heads: Sequence[Head], at_us: int) -> bytes:
    fields = {
        "owner": owner,
        "workflow": workflow,
        "at": at_us,
        "branches": [
            [head.key.branch, head.version, marked(head.manifest), head.journal_seq, marked(head.journal_tip)]
            for head in heads
        ],
    }
    return encode_record("removal", fields)
