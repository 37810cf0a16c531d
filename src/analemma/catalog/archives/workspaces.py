"""Workspaces and archive units as rows: every change is made under the workspace's row lock, by whoever holds its
operation.

Sessions are writers that need several transactions. Their blocks are there before anything leads to them, so the
collector deletes nothing that was doomed since the oldest of them began, and gives up dead ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple, NewType

from analemma.canon.nodes import BlockId
from analemma.catalog.engine.db import Engine, Statements, Transaction, send
from analemma.catalog.entities.entities import add_bodies, replace_bodies
from analemma.catalog.leases import SECOND_US, database_clock
from analemma.catalog.port import BlockRow, TenantId, UploadId
from analemma.errors import Conflict, NotFound

SessionId = NewType("SessionId", bytes)
"""16 random bytes."""
Status = Literal["PENDING", "COLD", "WARM", "RUNNING", "ERROR", "DELETED"]
Operation = Literal["NONE", "INITIALIZING", "RESTORING", "STARTING", "STOPPING", "ARCHIVING", "DELETING"]
UnitState = Literal["writing", "kept", "claimed"]


class WorkspaceRow(NamedTuple):
    """Where a workspace stands."""

    id: str
    owner: str
    volume: str
    status: Status
    operation: Operation
    intent: str | None
    """How the operation is to end, where its name does not say."""
    op_id: str | None
    """Of the newest operation that archives."""
    archive_op: str | None
    """The op_id of the archive that it has."""
    archive_key: str | None
    fence: int
    holder: str | None
    lease_until_us: int
    error: str | None
    created_at_us: int
    updated_at_us: int
    deleted_at_us: int | None


class UnitFacts(NamedTuple):
    """What is known of an archive once it is whole."""

    format: int
    sha256: str
    """Of the data object in format 1; of the index object in format 2."""
    size: int
    """Bytes that lie in the object store, as far as they are this archive's own."""
    files: int
    bytes: int
    root: BlockId | None = None
    """Format 2: the block of its index."""


class UnitRow(NamedTuple):
    """One archive of a workspace."""

    workspace: str
    op_id: str
    state: UnitState
    format: int | None
    sha256: str | None
    size: int | None
    files: int | None
    bytes: int | None
    root: BlockId | None

    @property
    def facts(self) -> UnitFacts | None:
        """What is known of it, if it is whole."""
        return None if self.format is None else UnitFacts._make(self[3:])


class VolumeRow(NamedTuple):
    """Whose volume is at a path."""

    tenant: TenantId
    workspace: str
    volume: str
    status: Status
    operation: Operation

    @property
    def has_volume(self) -> bool:
        """Whether something of it may lie there: what is COLD has none, unless it is being restored."""
        return self.status != "COLD" or self.operation != "NONE"


class LostOperation(Conflict):
    """Somebody else has taken the operation over: this worker must not go on."""


class AppearedMeanwhile(Conflict):
    """A workspace that has the archive was made while that was being claimed: nothing was."""


Change = Callable[[Transaction, WorkspaceRow, int], WorkspaceRow]
"""From the row as it is, and the database's time, to the row as it shall be; raises to change nothing."""


class SqlWorkspaces:
    """The rows of one tenant's workspaces and archives."""

    def __init__(self, engine: Engine, tenant: TenantId) -> None:
        self.engine = engine
        self._tenant = tenant

    def _hold(self, tx: Transaction, workspace: str) -> WorkspaceRow | None:
        """A workspace that nobody else changes until the transaction ends."""
        return tx.row(WorkspaceRow, "hold_workspace", tenant=self._tenant, id=workspace)

    def get(self, workspace: str) -> WorkspaceRow | None:
        """One workspace, deleted ones too."""
        return self.engine.row(WorkspaceRow, "workspace", tenant=self._tenant, id=workspace)

    def add(self, row: WorkspaceRow, *, lease_s: float, unit: UnitFacts | None = None) -> WorkspaceRow:
        """Make a workspace; Conflict if its id is taken. With `unit`, its archive is one that is there already."""

        def insert(tx: Transaction) -> WorkspaceRow:
            now = database_clock(tx)
            until = now + int(lease_s * SECOND_US) if lease_s else 0
            # Fences count from the time on: those of a workspace of this name that was purged are all below.
            # guard: workspace.made
            made = row._replace(fence=now, created_at_us=now, updated_at_us=now, lease_until_us=until)
            if tx.execute("add_workspace", tenant=self._tenant, **made._asdict()) != 1:
                raise Conflict(f"there is a workspace {row.id} already", hint="use another id, or purge that one first")
            if unit is not None:
                assert row.archive_op is not None
                self.begin_unit(tx, made, row.archive_op, now)
                self.keep_unit(tx, made, row.archive_op, unit, now)
                self.spare_unit(tx, made.id, row.archive_op)
            return made

        return self.engine.write(insert, durable=True)

    def change(self, workspace: str, move: Change) -> WorkspaceRow:
        """Change a workspace under its row lock, durably; NotFound if there is none."""
        sent: list[WorkspaceRow] = []

        def write(tx: Transaction) -> WorkspaceRow:
            row = self._hold(tx, workspace)
            if row is None:
                raise missing(workspace)
            if row in sent:
                return row
            now = database_clock(tx)
            changed = move(tx, row, now)._replace(updated_at_us=now)
            tx.execute("write_workspace", tenant=self._tenant, **changed._asdict())
            sent.append(changed)
            return changed

        # Under the lock it shows whether it happened: then the row is the one that was written.
        return send(lambda: self.engine.write(write, durable=True))

    def drop(self, workspace: str, fence: int) -> None:
        """Forget a workspace; its archives are the collector's. The end of a purge."""

        def remove(tx: Transaction) -> None:
            row = self._hold(tx, workspace)
            if row is None:
                return
            check_fence(row, fence)  # guard: workspace.purged.row
            tx.execute("claim_units", tenant=self._tenant, workspace=workspace, now=database_clock(tx))
            tx.execute("drop_workspace", tenant=self._tenant, id=workspace)

        self.engine.write(remove, durable=True)

    def unit(self, workspace: str, op_id: str, *, within: Statements | None = None) -> UnitRow | None:
        """One archive, as a transaction sees it, or as it is."""
        return (within or self.engine).row(
            UnitRow, "archive_unit", tenant=self._tenant, workspace=workspace, op_id=op_id
        )

    def begin_unit(self, tx: Transaction, row: WorkspaceRow, op_id: str, now: int) -> None:
        """An archive is about to be written: before its first byte."""
        if tx.execute("add_unit", tenant=self._tenant, workspace=row.id, op_id=op_id, now=now) != 1:
            raise Conflict(
                f"the archive {row.id}/{op_id} was begun before", hint="every archive has an op_id of its own"
            )

    def keep_unit(self, tx: Transaction, row: WorkspaceRow, op_id: str, facts: UnitFacts, now: int) -> None:
        """An archive is whole; Conflict if the collector has claimed it."""
        if tx.execute("keep_unit", tenant=self._tenant, workspace=row.id, op_id=op_id, now=now, **facts._asdict()) != 1:
            raise Conflict(f"the archive {row.id}/{op_id} was collected meanwhile", hint="archive again")

    def spare_unit(self, tx: Transaction, workspace: str, op_id: str) -> None:
        """An archive is somebody's again: should it be nobody's later, that counts from then."""
        tx.execute("drop_archive_marks", tenant=self._tenant, units=[f"{workspace}/{op_id}/"])

    def claim_unit(self, tx: Transaction, workspace: str, op_id: str, *, deleted_before_us: int) -> bool:
        """Give an archive to the collector, in a transaction that is to be durable, unless its workspace needs it or
        was deleted after this time; whether it is the collector's."""
        row = self._hold(tx, workspace)
        if row is not None:
            recent = (row.deleted_at_us or 0) > deleted_before_us
            if needs_unit(row, op_id) or recent:  # guard: unit.claimed
                return False
        tx.execute("claim_unit", tenant=self._tenant, workspace=workspace, op_id=op_id, now=database_clock(tx))
        # There was no row to lock. A workspace that was made with this archive since then had its unit's row before us.
        appeared = None if row is not None else self._hold(tx, workspace)
        if appeared is not None and needs_unit(appeared, op_id):  # guard: unit.appeared
            raise AppearedMeanwhile(f"workspace {workspace} was made meanwhile", hint="try again", workspace=workspace)
        return True

    def open_session(self, session: SessionId) -> None:
        """Begin: from now on, what the session writes stays."""
        self.engine.write(
            lambda tx: tx.execute("open_session", tenant=self._tenant, id=session, now=database_clock(tx))
        )

    def close_session(self, tx: Transaction, session: SessionId) -> None:
        """In the transaction that makes roots of what the session wrote: Conflict if it was given up."""
        if tx.execute("close_session", tenant=self._tenant, id=session) != 1:
            raise _given_up(session)

    def forget_session(self, session: SessionId) -> None:
        """Nothing of it is to stay."""
        self.engine.execute("close_session", tenant=self._tenant, id=session)

    def write_blocks(
        self,
        session: SessionId,
        blocks: Sequence[BlockRow],
        uploads: Sequence[UploadId],
        *,
        again: Collection[BlockId] = (),
    ) -> int:
        """Write some of them; how many bytes were new. Conflict if the session was given up, or an upload collected.

        What is stored of the blocks `again` is damaged: their bytes take its place."""

        def write(tx: Transaction) -> int:
            # First: from here on it stays until the transaction ends.
            if tx.execute("touch_session", tenant=self._tenant, id=session, now=database_clock(tx)) != 1:
                raise _given_up(session)
            present = {row[0] for row in tx.all("present_blocks", tenant=self._tenant, ids=[row.id for row in blocks])}
            add_bodies(tx, self._tenant, blocks, uploads)
            replaced = [row for row in blocks if row.id in again and row.id in present and row.body is not None]
            replace_bodies(tx, self._tenant, replaced)
            new = [*(row for row in blocks if row.id not in present), *replaced]
            return sum(len(row.body) if row.body is not None else row.length or 0 for row in new)

        return self.engine.write(write)


def _given_up(session: SessionId) -> Conflict:
    """What a writer hears that was silent for too long."""
    return Conflict(f"session {session.hex()} was given up", hint="it was silent for too long; start again")


def needs_unit(row: WorkspaceRow, op_id: str) -> bool:
    """Whether an archive is protected: it is what the workspace has, or what it is about to have."""
    return row.deleted_at_us is None and op_id in (row.archive_op, row.op_id)


def check_fence(row: WorkspaceRow, fence: int) -> WorkspaceRow:
    """The row, if the operation is still the caller's."""
    if row.fence != fence:
        raise LostOperation(
            f"the operation on workspace {row.id} was taken over",
            hint="somebody else finishes it; this worker was silent for too long",
            workspace=row.id,
        )
    return row


def missing(workspace: str) -> NotFound:
    """What whoever asks for a workspace that is not there is told; also for one that is another owner's."""
    return NotFound(f"there is no workspace {workspace!r}", hint="archives.list() lists them", workspace=workspace)
