"""Removing branches of a workflow with all their versions. What they were is recorded; their blocks go by
collection."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING

from analemma.catalog.engine.db import Engine
from analemma.catalog.kernel.removal import RemovalRequest, remove_branches
from analemma.catalog.port import BranchKey, Head, RowChange
from analemma.clock import attempts
from analemma.errors import HeadMoved
from analemma.state.arguments import place
from analemma.state.records import encode_record, marked

if TYPE_CHECKING:
    from analemma.state.kernel import Kernel


def remove_workflow(kernel: Kernel, engine: Engine, owner: str, workflow: str, rows: Sequence[RowChange] = ()) -> int:
    """Remove a workflow with all its branches, and change other rows with them, in one transaction; how many
    branches there were."""
    trouble = f"{place(BranchKey(owner, workflow))} changes too fast to be removed"
    for _ in attempts(kernel._clock, trouble, hint="stop its writers"):
        names = [row.name for row in kernel._catalog.branches(kernel._tenant, owner, workflow)]
        found = [kernel._commits.head_after_pending(BranchKey(owner, workflow, name)) for name in names]
        heads = tuple(head for head in found if head is not None)
        with suppress(HeadMoved):
            remove_at(kernel, engine, owner, workflow, heads, rows, whole=True)
            return len(heads)
    raise AssertionError("unreachable")


def remove_at(
    kernel: Kernel,
    engine: Engine,
    owner: str,
    workflow: str,
    heads: tuple[Head, ...],
    rows: Sequence[RowChange],
    *,
    whole: bool = False,
) -> None:
    """Remove the branches that stand here, and change other rows with them, in one transaction. A workflow that has
    none left is gone. HeadMoved, with nothing changed, if one stands elsewhere by now, or if they are to be the
    `whole` workflow and it has others."""
    now_us = kernel._clock.now_us()
    body = _record(owner, workflow, heads, now_us)
    events = kernel._commits.removal_events(head.key for head in heads)
    remove_branches(
        engine,
        RemovalRequest(
            kernel._tenant, owner, workflow, heads, now_us, body, sha256(body).digest(), tuple(rows), whole, events
        ),
    )
    kernel._commits.announced(events)
    for head in heads:
        kernel._commits.forget(head.key)


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
