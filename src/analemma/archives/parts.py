"""What the verbs on workspaces share, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from analemma.archives.entries import Limits
from analemma.archives.names import META, unit_prefix
from analemma.archives.volumes import Volumes
from analemma.blocks.ownership import ObjectOwnership
from analemma.blocks.port import ObjectStore
from analemma.catalog.archives.workspaces import Operation, SqlWorkspaces, Status, UnitRow, WorkspaceRow
from analemma.clock import moment
from analemma.context import Context
from analemma.errors import Invalid
from analemma.settings import Settings

FormatName = Literal["tar", "blocks"]


@dataclass(frozen=True, slots=True)
class Workspace:
    """A workspace, and where it stands."""

    id: str
    owner_id: str
    volume: str
    status: Status
    operation: Operation
    op_id: str | None
    archive_key: str | None
    error: str | None
    """What went wrong the last time, if something did."""
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None
    undelete_until: datetime | None = None
    """Until then, at least, a deleted workspace comes back; None: it is not deleted, or nothing of it was archived."""


@dataclass(frozen=True, slots=True)
class ArchiveUnit:
    """One archive of a workspace: everything that lies below its key's folder."""

    workspace: str
    op_id: str
    key: str
    """Of the commit marker."""
    sha256: str
    bytes: int
    """In files, before compression."""
    files: int
    format: int
    size: int
    """Bytes that the archive added to the store: its data object, or what was new of its blocks."""


@dataclass(frozen=True)
class Parts(Context):
    """One tenant's rows and objects, and what else the verbs need."""

    rows: SqlWorkspaces
    store_id: str
    holder: str
    ownership: ObjectOwnership | None
    """Whose the objects are; None if nobody else can have them."""
    volumes: Volumes
    store_paths: tuple[str, ...]
    """Where on this machine the store itself lies: no place for volumes."""

    @property
    def archive_objects(self) -> ObjectStore:
        """Where archives lie."""
        if self.objects is None:
            raise Invalid(
                "archives need an object store", hint="open the store with objects=..., or set ANALEMMA_OBJECTS"
            )
        return self.objects

    @property
    def limits(self) -> Limits:
        """How much an archive may hold."""
        return Limits(bytes=self.settings.archive_limit_bytes, entries=self.settings.archive_limit_files)

    def key(self, row: WorkspaceRow, op_id: str, name: str = META) -> str:
        """The key of an object of one archive."""
        return f"{unit_prefix(self.tenant_name, row.id, op_id)}/{name}"

    def volume_owner(self, workspace: str) -> str:
        """What a volume says of whose it is."""
        return f"workspace {workspace} of tenant {self.tenant_name} in store {self.store_id}"


def public_workspace(row: WorkspaceRow, settings: Settings) -> Workspace:
    """A row as callers see it."""
    deleted_at = None if row.deleted_at_us is None else moment(row.deleted_at_us)
    until = None
    if deleted_at is not None and row.archive_op is not None:
        until = deleted_at + timedelta(seconds=settings.archive_gc_delay_s)
    return Workspace(
        id=row.id,
        owner_id=row.owner,
        volume=row.volume,
        status=row.status,
        operation=row.operation,
        op_id=row.op_id,
        archive_key=row.archive_key,
        error=row.error,
        created_at=moment(row.created_at_us),
        updated_at=moment(row.updated_at_us),
        deleted_at=deleted_at,
        undelete_until=until,
    )


def public_unit(unit: UnitRow, key: str) -> ArchiveUnit:
    """An archive as callers see it."""
    assert unit.facts is not None
    facts = unit.facts
    return ArchiveUnit(
        unit.workspace, unit.op_id, key, facts.sha256, facts.bytes, facts.files, facts.format, facts.size
    )
