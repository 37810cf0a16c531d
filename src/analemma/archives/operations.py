"""The operation on a workspace as a lock: taken by compare-and-set, kept by heartbeats, checked by its fence in every
transaction, and taken over from workers that died.

The lease only says when it is worth looking. What keeps a worker that was merely slow from touching the volume after
somebody else finished its work is the volume's own lock, which is held for as long as the worker lives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from analemma.archives.parts import Parts
from analemma.archives.volumes import Volume
from analemma.catalog.archives.workspaces import (
    Change,
    LostOperation,
    Operation,
    Status,
    WorkspaceRow,
    check_fence,
    missing,
)
from analemma.catalog.engine.db import Transaction
from analemma.catalog.leases import SECOND_US, database_clock
from analemma.errors import AnalemmaError, Conflict
from analemma.failpoints import declare, hit
from analemma.machine import is_dead
from analemma.settings import Settings

AFTER_BEGIN = declare("workspace.after_begin", "an operation is begun, and nothing of it is done")
BEFORE_FINISH = declare("workspace.before_finish", "an operation is done, and its row does not say so")

LONGEST_ERROR = 1000
_HEARTBEATS_PER_LEASE = 3


class Held:
    """An operation that is this worker's. `row` is the workspace as it last saw or wrote it."""

    def __init__(self, parts: Parts, row: WorkspaceRow, volume: Volume) -> None:
        self.row = row
        self.volume = volume
        self.fence = row.fence
        self._parts = parts
        self._lost: LostOperation | None = None

    @property
    def settings(self) -> Settings:
        """Those of the store."""
        return self._parts.settings

    def check(self) -> None:
        """Raise LostOperation if a heartbeat found out that it is another's by now."""
        if self._lost is not None:
            raise self._lost

    def change(self, move: Change) -> WorkspaceRow:
        """Change the row, if the operation is still ours."""

        def guarded(tx: Transaction, row: WorkspaceRow, now: int) -> WorkspaceRow:
            return move(tx, check_fence(row, self.fence), now)  # guard: workspace.fence

        self.row = self._parts.rows.change(self.row.id, guarded)
        return self.row

    def confirm(self) -> None:
        """Raise LostOperation if it is another's: asked of the catalog, just before what cannot be taken back."""
        self.check()
        row = self._parts.rows.get(self.row.id)
        if row is None:
            raise missing(self.row.id)
        check_fence(row, self.fence)  # guard: workspace.confirmed

    def finish(
        self, status: Status, *, error: str | None = None, deleted: bool = False, intent: str | None = None
    ) -> WorkspaceRow:
        """The operation is over. `intent` is for who finds it in ERROR."""
        hit(BEFORE_FINISH)
        return self.change(
            lambda _, row, now: row._replace(
                status=status,
                operation="NONE",
                intent=intent,
                # What is not the archive of the workspace is no longer on its way to be.
                op_id=row.archive_op,
                holder=None,
                lease_until_us=0,
                error=None if error is None else error[:LONGEST_ERROR],
                deleted_at_us=now if deleted else row.deleted_at_us,
            )
        )

    def leave(self, error: BaseException) -> None:
        """Let somebody else finish it, at once: it cannot be undone any more, and this worker failed."""
        self.change(lambda _, row, now: row._replace(holder=None, lease_until_us=0, error=str(error)[:LONGEST_ERROR]))

    def renew(self) -> None:
        """Say that the worker is alive."""
        lease_us = int(self._parts.settings.archive_lease_s * SECOND_US)
        try:
            # Not through `change`: the row that the worker knows is not the heartbeat's to replace.
            self._parts.rows.change(
                self.row.id,
                # guard: workspace.renewed
                lambda _, row, now: check_fence(row, self.fence)._replace(lease_until_us=now + lease_us),
            )
        except LostOperation as exc:
            self._lost = exc
        except AnalemmaError:
            pass  # The next heartbeat may get through; until the lease ends nothing is lost.


class Operations:
    """Begins operations and takes them over."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def find(self, workspace: str, owner: str | None) -> WorkspaceRow:
        """A workspace; NotFound if there is none, or it is another owner's."""
        row = self._parts.rows.get(workspace)
        if row is None or (owner is not None and row.owner != owner):
            raise missing(workspace)
        return row

    @contextmanager
    def begin(self, workspace: str, owner: str | None, operation: Operation, move: Change) -> Iterator[Held]:
        """Hold the volume and take the lock. `move` raises if the workspace's status does not allow it."""
        row = self.find(workspace, owner)
        volume = self._parts.volumes.open(row.volume)
        check_idle(row, database_clock(self._parts.engine))
        with volume.lock():

            def take(tx: Transaction, row: WorkspaceRow, now: int) -> WorkspaceRow:
                if owner is not None and row.owner != owner:
                    raise missing(workspace)
                check_idle(row, now)  # guard: workspace.idle
                return self._taken(move(tx, row, now)._replace(operation=operation, error=None), now)

            row = self._parts.rows.change(workspace, take)
            hit(AFTER_BEGIN)
            with self._beating(Held(self._parts, row, volume)) as held:
                yield held

    @contextmanager
    def take_over(self, workspace: str) -> Iterator[Held | None]:
        """Hold the volume and take an operation over whose worker is gone; None if there is none by now, Conflict if
        its worker may be alive."""
        row = self.find(workspace, None)
        if row.operation == "NONE":
            yield None
            return
        volume = self._parts.volumes.open(row.volume)
        with volume.lock():

            def take(_: Transaction, row: WorkspaceRow, now: int) -> WorkspaceRow:
                if row.operation != "NONE" and not is_interrupted(row, now):  # guard: workspace.interrupted
                    raise busy(row, now)
                return row if row.operation == "NONE" else self._taken(row, now)

            row = self._parts.rows.change(workspace, take)
            if row.operation == "NONE":
                yield None
                return
            with self._beating(Held(self._parts, row, volume)) as held:
                yield held

    def _taken(self, row: WorkspaceRow, now: int) -> WorkspaceRow:
        until = now + int(self._parts.settings.archive_lease_s * SECOND_US)
        # guard: workspace.raised
        return row._replace(fence=row.fence + 1, holder=self._parts.holder, lease_until_us=until)

    @contextmanager
    def _beating(self, held: Held) -> Iterator[Held]:
        done = threading.Event()

        def beat() -> None:
            while not done.wait(self._parts.settings.archive_lease_s / _HEARTBEATS_PER_LEASE):
                held.renew()

        heart = threading.Thread(target=beat, name=f"workspace-{held.row.id}", daemon=True)
        heart.start()
        try:
            yield held
        finally:
            done.set()
            heart.join()


def check_idle(row: WorkspaceRow, now: int) -> None:
    """Raise Conflict if somebody works on the workspace, or died doing so."""
    if row.operation != "NONE":
        raise busy(row, now)


def is_interrupted(row: WorkspaceRow, now: int) -> bool:
    """Whether nobody works on what was begun: its worker was not heard of for a lease, or is known to be dead. (One
    that is alive all the same has the lock of the volume.)"""
    return row.lease_until_us <= now or (row.holder is not None and is_dead(row.holder))


def busy(row: WorkspaceRow, now: int) -> Conflict:
    """What whoever comes second is told."""
    interrupted = is_interrupted(row, now)
    return Conflict(
        f"workspace {row.id} is {row.operation}" + (", and that was interrupted" if interrupted else ""),
        hint="recover it first" if interrupted else "wait until that is done",
        workspace=row.id,
        operation=row.operation,
    )
