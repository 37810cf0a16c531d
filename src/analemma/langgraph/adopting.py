"""Heads that somebody else has left, by merging for example: they become checkpoints before anything is read, copied or
removed."""

from __future__ import annotations

from langgraph.checkpoint.serde.base import SerializerProtocol

from analemma.catalog.pending_writes import repeat
from analemma.catalog.threads import CheckpointRow, id_of_version
from analemma.langgraph.places import branch_of
from analemma.langgraph.snapshots import loads_of
from analemma.langgraph.threads import Threads


class Adopter:
    """Makes checkpoints of such heads. Cheap to make."""

    def __init__(self, threads: Threads, serde: SerializerProtocol) -> None:
        self._threads = threads
        self._loads = loads_of(serde)

    def newest(self, thread: str, branch: str) -> CheckpointRow | None:
        """The checkpoint with the greatest id of a namespace. A head that somebody else has left becomes one first."""
        found = self._threads.rows.newest(thread, branch)
        if found.stranger is None:
            return found.row
        left = self._threads.read_stranger(found.stranger, self._loads)
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
        self._threads.rows.adopt(*repeat(self._threads.rows, row, snapshot.id))
        return self._threads.rows.newest(thread, branch).row

    def adopt(self, thread: str | None) -> None:
        """The same for every namespace of a thread, or of all threads."""
        for name, branch in self._threads.rows.strangers(thread):
            self.newest(name, branch)
