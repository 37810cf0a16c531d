"""Finishing operations: those that this worker began, and those whose worker is gone. Both go through the same steps:
what a crash interrupts is finished the way it was begun."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap

from analemma.archives.archiving import Archiver
from analemma.archives.jobs import Job
from analemma.archives.operations import Held, Operations, is_interrupted
from analemma.archives.parts import Parts
from analemma.archives.places import check_apart
from analemma.archives.reading import current_archive, kept_facts, verify_archive
from analemma.archives.removing import PURGE, Remover
from analemma.archives.restoring import Restorer
from analemma.archives.running import Hooks, run_hook, undo
from analemma.archives.volumes import VolumeMissing, volume_missing
from analemma.catalog.archives.workspaces import LostOperation, Operation, Status, WorkspaceRow
from analemma.catalog.engine.db import Transaction
from analemma.catalog.leases import database_clock
from analemma.errors import AnalemmaError, Conflict, DataLost, NotFound

RESTORE_FAILED = "restore failed"
"""The intent of a workspace in ERROR that has no volume to come back to."""

_PAGE = 100


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one interrupted operation."""

    workspace: str
    operation: Operation
    status: Status | None
    """Of the workspace now; None if it was purged."""
    error: str | None = None


class Reconciler:
    """Drives operations to their end."""

    def __init__(self, parts: Parts, operations: Operations, hooks: Hooks) -> None:
        self._parts = parts
        self._operations = operations
        self._hooks = hooks

    def run(self, *, only_here: bool = False) -> tuple[Outcome, ...]:
        """Every operation of the tenant whose worker is gone; with `only_here`, none whose volume is elsewhere."""
        outcomes: list[Outcome] = []
        engine = self._parts.engine
        for page in engine.pages("workspaces_at_work", {"after": ""}, limit=_PAGE, tenant=self._parts.tenant):
            now = database_clock(engine)
            for row in starmap(WorkspaceRow, page):
                outcome = self._outcome(row.id, only_here) if is_interrupted(row, now) else None
                if outcome is not None:
                    outcomes.append(outcome)
        return tuple(outcomes)

    def finish_one(self, workspace: str, job: Job, *, give_up_volume: bool = False) -> Operation | None:
        """Finish what a workspace is in the middle of, if its worker is gone; which operation it was. With
        `give_up_volume`, one that waits for a volume that is not here ends in ERROR."""
        with self._operations.take_over(workspace) as held:
            if held is None:
                return None
            operation = held.row.operation
            job.bind(held.check)
            try:
                self._finish(held, job)
            except VolumeMissing as exc:
                if not give_up_volume or held.row.operation not in ("ARCHIVING", "DELETING"):
                    raise
                held.finish("ERROR", error=f"{type(exc).__name__}: {exc}")
            return operation

    def initialize(self, held: Held) -> WorkspaceRow:
        """Make the volume the workspace's."""
        check_apart(self._parts, held.row.volume, held.row.id)
        held.volume.claim(self._parts.volume_owner(held.row.id), create=True)
        return held.finish("WARM")

    def archive(self, held: Held, archiver: Archiver) -> WorkspaceRow:
        """Archive, and be COLD; WARM if it fails while the volume is all there is."""
        self._archive(held, archiver)
        return held.finish("COLD")

    def restore(self, held: Held, restorer: Restorer) -> WorkspaceRow:
        """Restore, and be WARM; COLD if it fails, or ERROR if the archive is not what it was."""
        try:
            restorer.run()
        except LostOperation:
            raise
        except BaseException as exc:
            if restorer.extracted:
                _leave(held, exc)
            else:
                try:
                    # Only what is ours: where the place is another's, so is what lies in staging.
                    if restorer.claimed:
                        held.volume.drop_staging()
                except AnalemmaError:
                    pass  # The next restore begins by removing it.
                if isinstance(exc, DataLost):
                    undo(held, "ERROR", exc, intent=RESTORE_FAILED)
                else:
                    undo(held, "COLD", exc)
            raise
        return held.finish("WARM")

    def delete(self, held: Held, job: Job) -> WorkspaceRow:
        """Archive if that is wanted, remove the volume, and be DELETED."""
        row = held.row
        if row.intent == "keep" and row.status == "WARM":
            self._archive(held, Archiver(self._parts, held, job, format=self._parts.settings.archive_format))
        else:
            try:
                if row.intent != "keep":
                    Remover(self._parts, held).volume()
            except BaseException as exc:
                if held.row.operation != "NONE":
                    _leave(held, exc)
                raise
        finished = held.finish("DELETED", deleted=True)
        held.volume.release(self._parts.volume_owner(row.id))
        return finished

    def purge(self, held: Held) -> None:
        """Remove everything."""
        try:
            Remover(self._parts, held).purge()
        except LostOperation:
            raise
        except BaseException as exc:
            if held.row.operation != "NONE":
                _leave(held, exc)
            raise

    def leave_error(self, workspace: str, owner: str | None, job: Job, *, give_up_volume: bool) -> WorkspaceRow:
        """Find out what is left of a workspace in ERROR."""

        def begin(tx: Transaction, row: WorkspaceRow, now: int) -> WorkspaceRow:
            if row.status != "ERROR":
                raise Conflict(f"workspace {row.id} is {row.status}", hint="there is nothing to recover")
            return row

        # RESTORING without a mark: what a crash here leaves is undone, and can be recovered again.
        with self._operations.begin(workspace, owner, "RESTORING", begin) as held:
            job.bind(held.check)
            try:
                status = self._what_is_left(held, job, give_up_volume)
            except BaseException as exc:
                undo(held, "ERROR", exc, intent=held.row.intent)
                raise
            return held.finish(status)

    def _what_is_left(self, held: Held, job: Job, give_up_volume: bool) -> Status:
        row, volume = held.row, held.volume
        # A restore begins without a volume, or with an empty directory; what else went wrong was with one.
        had_volume = row.intent != RESTORE_FAILED
        if volume.exists() and (had_volume or not volume.is_empty()):
            volume.check_owner(self._parts.volume_owner(row.id))
            return "WARM"
        if row.archive_op is None:
            raise DataLost(
                f"workspace {row.id} has neither a volume nor an archive",
                hint="bring its volume back, or delete it",
                reason="ARCHIVE_NOT_FOUND",
            )
        if had_volume and not give_up_volume:
            # The archive is older than what was in the volume, which may only not be mounted.
            raise volume_missing(volume.path)
        meta = current_archive(self._parts, row, kept_facts(self._parts, row))
        verify_archive(self._parts, row, meta, job)
        return "COLD"

    def _outcome(self, workspace: str, only_here: bool) -> Outcome | None:
        row = self._parts.rows.get(workspace)
        if row is None or row.operation == "NONE":
            return None
        if only_here and not self._parts.volumes.open(row.volume).is_here():
            return None
        operation, error = row.operation, None
        job = Job(clock=self._parts.clock, timeout_s=self._parts.settings.archive_timeout_s, check=lambda: None)
        try:
            if self.finish_one(workspace, job) is None:
                return None
        except NotFound:
            pass
        except Exception as exc:
            # Also what a hook raised: the others are not to wait for it.
            error = str(exc) if isinstance(exc, AnalemmaError) else f"{type(exc).__name__}: {exc}"
        row = self._parts.rows.get(workspace)
        return Outcome(workspace, operation, None if row is None else row.status, error)

    def _finish(self, held: Held, job: Job) -> None:
        row = held.row
        if row.operation == "INITIALIZING":
            try:
                self.initialize(held)
            except AnalemmaError as exc:
                undo(held, "ERROR", exc)
                raise
        elif row.operation == "ARCHIVING":
            self.archive(held, Archiver(self._parts, held, job, format=self._parts.settings.archive_format))
        elif row.operation == "RESTORING":
            if row.status == "ERROR":
                held.finish("ERROR", error=row.error or "recovering it was interrupted", intent=row.intent)
            else:
                self.restore(held, Restorer(self._parts, held, job))
        elif row.operation == "DELETING":
            if (row.intent or "").startswith(PURGE):
                self.purge(held)
            else:
                self.delete(held, job)
        else:
            self._switch(held)

    def _switch(self, held: Held) -> None:
        """A start or a stop: its hook may have been run or not, so it is run again."""
        row = held.row
        before: Status = row.status
        after: Status = "RUNNING" if row.operation == "STARTING" else "WARM"
        hook = self._hooks.of(row.operation)
        if row.intent == "hook":
            if hook is None:
                error = Conflict(
                    f"{row.operation} of workspace {row.id} was interrupted, and its hook is not known here",
                    hint="set on_start and on_stop, start or stop by hand what has to be, then recover it",
                )
                undo(held, "ERROR", error)
                raise error
            run_hook(hook, held, before)
        held.finish(after)

    def _is_here(self, held: Held) -> bool:
        try:
            held.volume.check_owner(self._parts.volume_owner(held.row.id))
            return held.volume.exists()
        except AnalemmaError:
            return False

    def _archive(self, held: Held, archiver: Archiver) -> None:
        try:
            archiver.run()
        except LostOperation:
            raise
        except BaseException as exc:
            try:
                archiver.abandon()
            except AnalemmaError:
                pass  # The collector gives it up after a while.
            if archiver.committed and not _kept_volume(exc):
                _leave(held, exc)
            elif self._is_here(held):
                undo(held, "WARM", exc)
            else:
                # Elsewhere, or not mounted: whoever comes when it is back goes on.
                _leave(held, exc)
            raise


def _kept_volume(error: BaseException) -> bool:
    """Whether it was decided, after the commit, that the volume has to stay."""
    return isinstance(error, AnalemmaError) and error.facts.get("kept") is True


def _leave(held: Held, error: BaseException) -> None:
    try:
        held.leave(error)
    except AnalemmaError:
        pass  # Whoever comes after the lease finishes it.
