"""Reading an archive: its marker, whether all of it is there, and its files into a directory."""

from __future__ import annotations

from analemma.archives.block_reading import check_index, read_blocks, verify_blocks
from analemma.archives.entries import Limits
from analemma.archives.extracting import Extractor
from analemma.archives.jobs import Job
from analemma.archives.metas import (
    BLOCKS,
    FOREIGN_TAR_GZ,
    LARGEST_META,
    Meta,
    damaged,
    decode_foreign_meta,
    decode_meta,
    meta_not_found,
)
from analemma.archives.names import FOREIGN_DATA, META
from analemma.archives.parts import Parts
from analemma.archives.tar_format import check_foreign_tar, read_tar, verify_object
from analemma.catalog.archives.workspaces import UnitFacts, UnitRow, WorkspaceRow
from analemma.errors import Expired, NotFound


def read_meta(parts: Parts, row: WorkspaceRow, op_id: str) -> Meta:
    """The marker of an archive; DataLost if it is gone or damaged."""
    return decode_meta(_small_object(parts, parts.key(row, op_id)), workspace=row.id, op_id=op_id)


def read_foreign_meta(parts: Parts, row: WorkspaceRow, op_id: str) -> Meta:
    """The marker of an archive that another program made: `home.meta`, or else `home.tar.gz.meta`."""
    names = [META, f"{FOREIGN_DATA}.meta"]
    found = next((name for name in names if parts.archive_objects.head(parts.key(row, op_id, name)) is not None), META)
    return decode_foreign_meta(_small_object(parts, parts.key(row, op_id, found)), workspace=row.id, op_id=op_id)


def _small_object(parts: Parts, key: str) -> bytes:
    """A marker's bytes, if there are not so many that it can be none."""
    info = parts.archive_objects.head(key)
    if info is None:
        raise meta_not_found(key)
    if info.size > LARGEST_META:
        raise damaged(f"the marker {key} has {info.size} bytes")
    try:
        return parts.archive_objects.get(key)
    except NotFound:
        raise meta_not_found(key) from None


def current_archive(parts: Parts, row: WorkspaceRow, facts: UnitFacts) -> Meta:
    """The marker of the archive that a workspace has; DataLost unless it says what the catalog says."""
    assert row.archive_op is not None
    foreign = facts.format == FOREIGN_TAR_GZ
    meta = (read_foreign_meta if foreign else read_meta)(parts, row, row.archive_op)
    if meta.facts(facts.root) != facts or (meta.root is not None and bytes.fromhex(meta.root) != facts.root):
        raise damaged(f"the marker of archive {row.id}/{row.archive_op} is not the one that was committed")
    return meta


def verify_archive(parts: Parts, row: WorkspaceRow, meta: Meta, job: Job) -> None:
    """Read all of an archive; DataLost unless it is what was written."""
    key = parts.key(row, meta.op_id, meta.data)
    verify_object(parts.archive_objects, key, size=meta.size, sha256=meta.sha256, job=job)
    if meta.format == FOREIGN_TAR_GZ and meta.sha256 is None:
        check_foreign_tar(parts.archive_objects, key, meta, job)
    if meta.format == BLOCKS:
        check_index(parts.archive_objects.get(key), meta)
        verify_blocks(parts.blocks, meta, job)


def extract_archive(parts: Parts, row: WorkspaceRow, meta: Meta, directory: str, job: Job) -> None:
    """All files of an archive, durably, into an empty directory that nobody looks at yet."""
    limits, counts = parts.limits, meta.counts
    entries = sum(counts.get(name, 0) for name in ("files", "directories", "links"))
    limits = Limits(
        bytes=min(limits.bytes, counts.get("bytes", limits.bytes)),
        entries=min(limits.entries, entries or limits.entries),
    )
    with Extractor(directory, limits=limits, outside_links=parts.settings.archive_outside_links) as extractor:
        if meta.format == BLOCKS:
            key = parts.key(row, meta.op_id, meta.data)
            verify_object(parts.archive_objects, key, size=meta.size, sha256=meta.sha256, job=job)
            check_index(parts.archive_objects.get(key), meta)
            read_blocks(parts.blocks.read_uncached, meta, extractor, job)
        else:
            read_tar(parts.archive_objects, parts.key(row, meta.op_id, meta.data), meta, extractor, job)
        extractor.finish()


def kept_unit(parts: Parts, row: WorkspaceRow) -> UnitRow:
    """The archive that a workspace has; NotFound if it never had one, Expired if it is the collector's."""
    unit = None if row.archive_op is None else parts.rows.unit(row.id, row.archive_op)
    return check_unit(row, unit)


def kept_facts(parts: Parts, row: WorkspaceRow) -> UnitFacts:
    """What the catalog knows of it."""
    facts = kept_unit(parts, row).facts
    assert facts is not None
    return facts


def check_unit(row: WorkspaceRow, unit: UnitRow | None) -> UnitRow:
    """The archive, if it can be gone back to."""
    if row.archive_op is None:
        raise NotFound(f"workspace {row.id} has no archive", hint="archive it first", workspace=row.id)
    if unit is None or unit.state != "kept" or unit.facts is None:
        raise Expired(
            f"the archive of workspace {row.id} was collected",
            hint="a higher archive_gc_delay_s leaves more time to undelete",
            workspace=row.id,
            op_id=row.archive_op,
        )
    return unit
