"""The verbs on workspaces: `app.archives`. Each takes the workspace's operation, does its steps, and ends it; what is
interrupted, `reconcile` finishes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from analemma.archives.archiving import Archiver
from analemma.archives.collecting import ArchiveCollector, Progress, Stop
from analemma.archives.collecting_reports import ArchiveGcPlan, ArchiveGcReport
from analemma.archives.jobs import Job, OnProgress
from analemma.archives.names import check_operation, check_workspace, new_operation
from analemma.archives.operations import AFTER_BEGIN, Held, Operations
from analemma.archives.parts import ArchiveUnit, FormatName, Parts, Workspace, public_unit, public_workspace
from analemma.archives.places import check_apart
from analemma.archives.reading import check_unit, kept_unit, read_foreign_meta, read_meta, verify_archive
from analemma.archives.reconciling import Outcome, Reconciler
from analemma.archives.removing import DISCARD, PURGE
from analemma.archives.restoring import Restorer, restore_copy
from analemma.archives.running import Hook, Hooks, run_hook
from analemma.archives.volumes import Volume, VolumeMissing, volume_missing
from analemma.catalog.archives.workspaces import Operation, Status, WorkspaceRow, missing
from analemma.catalog.engine.db import Transaction
from analemma.catalog.names import check_part
from analemma.errors import AnalemmaError, Conflict, Expired, NotFound
from analemma.failpoints import hit

PAGE = 100


class Archives:
    """One tenant's workspaces. Verbs take `owner_id` to make sure whose it is: another's is NotFound."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._collector = ArchiveCollector(parts)
        self._operations = Operations(parts)
        self._hooks = Hooks()
        self._reconciler = Reconciler(parts, self._operations, self._hooks)

    def on_start(self, hook: Hook | None) -> None:
        """Run this, with the workspace, whenever one is started. It may be run again after a crash."""
        self._hooks.start = hook

    def on_stop(self, hook: Hook | None) -> None:
        """The same whenever one is stopped."""
        self._hooks.stop = hook

    def create(self, workspace: str, *, owner_id: str, volume: str | os.PathLike[str]) -> Workspace:
        """Make a workspace of a directory, which is made if it is not there.

        Conflict if there is a workspace of this id, or the directory is another's."""
        row = self._new_row(workspace, owner_id, volume, "PENDING", "INITIALIZING")
        opened = self._parts.volumes.open(row.volume)
        self._parts.catalog.claim_objects()
        # Before there is a lock, which would lie in what is another's.
        check_apart(self._parts, row.volume, workspace, cold=True)
        opened.check_place()
        opened.make_place()
        if opened.is_here():
            self._release_deleted(opened)
        with opened.lock():
            # A volume that is another's is refused before there is a row.
            owner = self._parts.volume_owner(workspace)
            opened.claim(owner, create=False)
            try:
                row = self._parts.rows.add(row, lease_s=self._parts.settings.archive_lease_s)
            except Conflict:
                found = self._parts.rows.get(workspace)
                if found is None or found.volume != row.volume or found.status == "DELETED":
                    opened.release(owner)
                raise
            hit(AFTER_BEGIN)
            try:
                # Once more: of two that are made at once, one inside the other, each has its row by now.
                check_apart(self._parts, row.volume, workspace)
            except Conflict:
                opened.release(owner)
                self._parts.rows.drop(workspace, row.fence)
                raise
            return self._public(self._reconciler.initialize(Held(self._parts, row, opened)))

    def adopt(self, workspace: str, *, owner_id: str, volume: str | os.PathLike[str], op_id: str) -> Workspace:
        """Make a COLD workspace of an archive that lies in this tenant's folder already, by us or as `home.tar.gz` with
        its `.meta` by another program; `restore` brings it back. DataLost if it is not whole."""
        row = self._new_row(workspace, owner_id, volume, "COLD", "NONE")
        row = row._replace(op_id=check_operation(op_id), archive_op=op_id, archive_key=self._parts.key(row, op_id))
        try:
            meta = read_meta(self._parts, row, op_id)
        except AnalemmaError as exc:
            if exc.facts.get("reason") is None:
                raise
            meta = read_foreign_meta(self._parts, row, op_id)
        verify_archive(self._parts, row, meta, self._job())
        if meta.root is not None:
            raise Conflict(
                "an archive of format 2 cannot be adopted", hint="its blocks belong to the store that made it"
            )
        return self._public(self._parts.rows.add(row, lease_s=0, unit=meta.facts()))

    def get(self, workspace: str, *, owner_id: str | None = None) -> Workspace:
        """One workspace; also one that is deleted, until it is purged."""
        return self._public(self._operations.find(check_workspace(workspace), owner_id))

    def list(
        self, *, owner_id: str | None = None, status: Status | None = None, deleted: bool = False
    ) -> Iterator[Workspace]:
        """Workspaces by id; with `deleted`, those too."""
        if owner_id is not None:
            check_part(owner_id, "owner")
        chosen = {
            "tenant": self._parts.tenant,
            "owner": owner_id or "",
            "status": status or "",
            "deleted": int(deleted),
        }
        for page in self._parts.engine.pages("workspaces", {"after": ""}, limit=PAGE, **chosen):
            yield from (self._public(WorkspaceRow(*row)) for row in page)

    def unit(self, workspace: str, *, owner_id: str | None = None) -> ArchiveUnit:
        """The archive that a workspace has; NotFound if it has none, Expired if it was collected."""
        row = self._operations.find(check_workspace(workspace), owner_id)
        return self._public_unit(row)

    def archive(
        self,
        workspace: str,
        *,
        owner_id: str | None = None,
        force: bool = False,
        format: FormatName | None = None,
        timeout_s: float | None = None,
        progress: OnProgress | None = None,
    ) -> ArchiveUnit:
        """Store all files of a WARM workspace, verify that, and remove its volume: it is COLD then.

        If it fails before the archive is verified, the workspace is WARM as before. One that is COLD already is left
        alone. `force` reads every file, also those that look unchanged."""
        self._parts.archive_objects  # noqa: B018  Invalid without one, before anything is begun.
        self._parts.catalog.claim_objects()
        found = self._operations.find(check_workspace(workspace), owner_id)
        if found.status == "COLD" and found.operation == "NONE":
            return self._public_unit(found)
        self._check_here(found)

        def begin(tx: Transaction, row: WorkspaceRow, now: int) -> WorkspaceRow:
            return self._begin_unit(tx, _check(row, "WARM"), now)

        with self._operations.begin(workspace, owner_id, "ARCHIVING", begin) as held:
            job = self._job(held, timeout_s, progress)
            archiver = Archiver(
                self._parts, held, job, format=format or self._parts.settings.archive_format, force=force
            )
            self._reconciler.archive(held, archiver)
            return self._public_unit(held.row)

    def restore(
        self,
        workspace: str,
        into: str | os.PathLike[str] | None = None,
        *,
        owner_id: str | None = None,
        timeout_s: float | None = None,
        progress: OnProgress | None = None,
    ) -> Workspace:
        """Bring the volume of a COLD workspace back: it is WARM then. DataLost if its archive is gone or damaged.

        With `into`, extract a copy into that directory instead, and leave the workspace as it is."""
        row = self._operations.find(check_workspace(workspace), owner_id)
        if into is not None:
            restore_copy(self._parts, row, into, self._job(None, timeout_s, progress))
            return self._public(row)

        def begin(tx: Transaction, row: WorkspaceRow, now: int) -> WorkspaceRow:
            self._check_unit(tx, _check(row, "COLD"))
            return row._replace(intent=None)

        with self._operations.begin(workspace, owner_id, "RESTORING", begin) as held:
            restorer = Restorer(self._parts, held, self._job(held, timeout_s, progress))
            return self._public(self._reconciler.restore(held, restorer))

    def start(self, workspace: str, *, owner_id: str | None = None, progress: OnProgress | None = None) -> Workspace:
        """Make a workspace RUNNING, restored first if it is COLD. The start hook is run before it is."""
        if self._operations.find(check_workspace(workspace), owner_id).status == "COLD":
            self.restore(workspace, owner_id=owner_id, progress=progress)
        return self._switch(workspace, owner_id, "STARTING", "WARM", "RUNNING")

    def stop(self, workspace: str, *, owner_id: str | None = None) -> Workspace:
        """Make a RUNNING workspace WARM. The stop hook is run before it is."""
        return self._switch(check_workspace(workspace), owner_id, "STOPPING", "RUNNING", "WARM")

    def delete(
        self,
        workspace: str,
        *,
        discard: bool = False,
        owner_id: str | None = None,
        timeout_s: float | None = None,
        progress: OnProgress | None = None,
    ) -> Workspace:
        """Archive the workspace, remove its volume, and mark it as deleted; `undelete` undoes the last of these, at
        least until the `undelete_until` of the answer.

        With `discard` nothing is archived: what is in the volume is gone."""
        if not discard:
            self._parts.archive_objects  # noqa: B018
            self._parts.catalog.claim_objects()
            self._check_here(self._operations.find(check_workspace(workspace), owner_id))

        def begin(tx: Transaction, row: WorkspaceRow, now: int) -> WorkspaceRow:
            _check(row, "WARM", "COLD", *(("PENDING", "ERROR") if discard else ()))
            if discard or row.status == "COLD":
                return row._replace(intent=DISCARD if discard else "keep")
            return self._begin_unit(tx, row._replace(intent="keep"), now)

        with self._operations.begin(check_workspace(workspace), owner_id, "DELETING", begin) as held:
            return self._public(self._reconciler.delete(held, self._job(held, timeout_s, progress)))

    def undelete(self, workspace: str, *, owner_id: str | None = None) -> Workspace:
        """Bring a deleted workspace back, COLD, with the archive it had; Expired if the collector has that."""

        def move(tx: Transaction, row: WorkspaceRow, now: int) -> WorkspaceRow:
            if owner_id is not None and row.owner != owner_id:
                raise missing(workspace)
            _check(row, "DELETED")
            if row.operation != "NONE":
                raise Conflict(f"workspace {row.id} is {row.operation}", hint="it is being purged")
            if row.archive_op is None:
                raise Expired(
                    f"workspace {row.id} was deleted with everything in it",
                    hint="what was never archived does not come back; without discard, delete archives first",
                    workspace=row.id,
                )
            self._check_unit(tx, row)
            self._parts.rows.spare_unit(tx, row.id, row.archive_op)
            # Whoever deleted it and does not know that it is done must not do it again.
            # guard: workspace.undeleted
            return row._replace(status="COLD", deleted_at_us=None, error=None, fence=row.fence + 1)

        return self._public(self._parts.rows.change(check_workspace(workspace), move))

    def purge(self, workspace: str, *, owner_id: str | None = None) -> None:
        """Remove a workspace for good: its volume, all its archives, and every trace in the catalog. Denied, before
        anything is removed, if the objects are another catalog's."""

        def begin(tx: Transaction, row: WorkspaceRow, now: int) -> WorkspaceRow:
            return _check(row, "PENDING", "COLD", "WARM", "ERROR", "DELETED")._replace(intent=PURGE)

        if self._parts.ownership is not None:
            self._parts.ownership.check()
        with self._operations.begin(check_workspace(workspace), owner_id, "DELETING", begin) as held:
            self._reconciler.purge(held)

    def recover(
        self,
        workspace: str,
        *,
        owner_id: str | None = None,
        give_up_volume: bool = False,
        progress: OnProgress | None = None,
    ) -> Workspace:
        """Finish an operation that was interrupted, and get a workspace out of ERROR: WARM if its volume is there, COLD
        if restoring its archive failed and that is whole by now, and DataLost if there is neither.

        Unavailable if there was a volume that is not here: it may only not be mounted. With `give_up_volume` the
        workspace goes back to its archive then, which is older than what was in the volume."""
        self._operations.find(check_workspace(workspace), owner_id)
        self._reconciler.finish_one(workspace, self._job(None, None, progress), give_up_volume=give_up_volume)
        row = self._parts.rows.get(workspace)
        if row is None:
            raise NotFound(
                f"workspace {workspace} was being purged, and is gone",
                hint="that was finished; there is nothing left to recover",
                workspace=workspace,
            )
        if row.status == "ERROR" and row.operation == "NONE":
            job = self._job(None, None, progress)
            row = self._reconciler.leave_error(workspace, owner_id, job, give_up_volume=give_up_volume)
        return self._public(row)

    def reconcile(self, *, only_here: bool = False) -> tuple[Outcome, ...]:
        """Finish every operation whose worker is gone: what became of each. With `only_here`, of volumes that this
        machine knows: what was begun elsewhere is better finished there."""
        return self._reconciler.run(only_here=only_here)

    def gc_plan(self, delay_s: float | None = None, *, progress: Progress | None = None) -> ArchiveGcPlan:
        """Which archives `gc_run` would mark and delete now, and why. Changes nothing."""
        return self._collector.plan(delay_s, progress=progress)

    def gc_run(
        self,
        delay_s: float | None = None,
        dry_run: bool = False,
        *,
        force: bool = False,
        progress: Progress | None = None,
        stop: Stop | None = None,
    ) -> ArchiveGcReport:
        """Delete archives that no workspace has needed for the delay (archive_gc_delay_s of the settings, 7 days), and
        that an earlier run marked; mark the others. Conflict while another collects.

        `force` goes on where the numbers look wrong; with `dry_run`, only say what would be done."""
        return self._collector.run(delay_s, dry_run, force=force, progress=progress, stop=stop)

    def gc_is_due(self, interval_s: float) -> bool:
        """Whether nobody has begun to collect this tenant's archives for so long."""
        return self._collector.is_due(interval_s)

    def _switch(
        self, workspace: str, owner: str | None, operation: Operation, before: Status, after: Status
    ) -> Workspace:
        hook = self._hooks.of(operation)

        def begin(tx: Transaction, row: WorkspaceRow, now: int) -> WorkspaceRow:
            # Whoever finishes it after a crash must know that there is something to run.
            return _check(row, before)._replace(intent=None if hook is None else "hook")

        with self._operations.begin(workspace, owner, operation, begin) as held:
            run_hook(hook, held, before)
            return self._public(held.finish(after))

    def _new_row(
        self, workspace: str, owner: str, volume: str | os.PathLike[str], status: Status, operation: Operation
    ) -> WorkspaceRow:
        check_workspace(workspace)
        check_part(owner, "owner")
        return WorkspaceRow(
            id=workspace,
            owner=owner,
            volume=self._parts.volumes.resolve(volume),
            status=status,
            operation=operation,
            intent=None,
            op_id=None,
            archive_op=None,
            archive_key=None,
            fence=1,
            holder=self._parts.holder if operation != "NONE" else None,
            lease_until_us=0,
            error=None,
            created_at_us=0,
            updated_at_us=0,
            deleted_at_us=None,
        )

    def _release_deleted(self, volume: Volume) -> None:
        """Forget that a place is that of a deleted workspace: whoever deleted it may have died before that was done."""
        with volume.lock():
            for each in self.list(status="DELETED", deleted=True):
                if each.volume != volume.path or each.operation != "NONE":
                    continue
                owner = self._parts.volume_owner(each.id)
                try:
                    volume.check_owner(owner)  # guard: volume.forgotten
                except (Conflict, VolumeMissing):
                    continue
                # This gives up the lock, too: from here on the place may be somebody else's.
                volume.release(owner)
                return

    def _begin_unit(self, tx: Transaction, row: WorkspaceRow, now: int) -> WorkspaceRow:
        op_id = new_operation(self._parts.entropy)
        self._parts.rows.begin_unit(tx, row, op_id, now)
        return row._replace(op_id=op_id)

    def _check_unit(self, tx: Transaction, row: WorkspaceRow) -> None:
        unit = None
        if row.archive_op is not None:
            unit = self._parts.rows.unit(row.id, row.archive_op, within=tx)
        check_unit(row, unit)

    def _check_here(self, row: WorkspaceRow) -> None:
        """Unavailable, before anything is begun, if there should be a volume and it is not on this machine, or may not
        be moved away."""
        if row.status == "WARM" and row.operation == "NONE":
            volume = self._parts.volumes.open(row.volume)
            if not volume.exists():
                raise volume_missing(row.volume)
            volume.check_owner(self._parts.volume_owner(row.id))
            volume.check_removable()

    def _public(self, row: WorkspaceRow) -> Workspace:
        return public_workspace(row, self._parts.settings)

    def _public_unit(self, row: WorkspaceRow) -> ArchiveUnit:
        return public_unit(kept_unit(self._parts, row), row.archive_key or "")

    def _job(self, held: Held | None = None, timeout_s: float | None = None, progress: OnProgress | None = None) -> Job:
        check: Callable[[], None] = held.check if held is not None else lambda: None
        seconds = self._parts.settings.archive_timeout_s if timeout_s is None else timeout_s
        return Job(clock=self._parts.clock, timeout_s=seconds, check=check, progress=progress)


_HINTS: dict[Status, str] = {
    "PENDING": "wait until it is made, or recover it",
    "COLD": "restore it first",
    "WARM": "archive it first",
    "RUNNING": "stop it first",
    "ERROR": "recover it first",
    "DELETED": "undelete it first",
}


def _check(row: WorkspaceRow, *allowed: Status) -> WorkspaceRow:
    if row.status not in allowed:
        raise Conflict(
            f"workspace {row.id} is {row.status}", hint=_HINTS[row.status], workspace=row.id, status=row.status
        )
    return row
