"""The commit marker of an archive, `home.meta`: it names the data that it stands for, and says how to tell whether that
is whole. An archive without one does not exist."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from analemma.archives.names import FOREIGN_DATA, INDEX
from analemma.archives.tar_reading import CHECKSUM_MISMATCH
from analemma.catalog.archives.workspaces import UnitFacts
from analemma.errors import DataLost

TAR_ZST = 1
BLOCKS = 2
FOREIGN_TAR_GZ = 0
"""An archive that another program made, with the same layout."""

LARGEST_META = 1 << 20
ARCHIVE_NOT_FOUND = "ARCHIVE_NOT_FOUND"
META_NOT_FOUND = "META_NOT_FOUND"

_DATA = re.compile(r"home-[0-9a-f]{16}\.tar\.zst|home\.index")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Meta:
    """What a marker says."""

    format: int
    workspace: str
    op_id: str
    data: str
    """The name, in the same folder, of the object that it stands for."""
    size: int | None
    """Of that object."""
    sha256: str | None
    counts: dict[str, int]
    """Files, directories, links, and bytes in files; empty where another program did not say."""
    fingerprint: str = ""
    """Of the volume as it was archived."""
    tar_sha256: str | None = None
    tar_size: int | None = None
    root: str | None = None
    """Format 2: the id of the index's block."""
    stored: int | None = None
    """Format 2: bytes of blocks that were new."""
    created_at: str = ""
    skipped: int = 0
    notes: tuple[str, ...] = ()

    def facts(self, root: bytes | None = None) -> UnitFacts:
        """The columns that repeat it."""
        counts = self.counts
        return UnitFacts(
            self.format,
            self.sha256 or "",
            self.size or 0 if self.stored is None else self.stored,
            counts.get("files", 0),
            counts.get("bytes", 0),
            root,  # type: ignore[arg-type]
        )


def encode_meta(meta: Meta) -> bytes:
    """The marker's bytes."""
    return orjson.dumps({**asdict(meta), "notes": list(meta.notes)}, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)


def decode_meta(data: bytes, *, workspace: str, op_id: str) -> Meta:
    """Read a marker of ours; DataLost if it is damaged, or is that of another archive."""
    try:
        fields = orjson.loads(data)
        # A later release may say more.
        known = {name: fields[name] for name in Meta.__dataclass_fields__ if name in fields}
        meta = Meta(**{**known, "notes": tuple(fields["notes"]), "counts": _counts(fields["counts"])})
        valid = (
            meta.format in (TAR_ZST, BLOCKS)
            and (meta.workspace, meta.op_id) == (workspace, op_id)
            and _DATA.fullmatch(meta.data) is not None
            and (meta.data == INDEX) == (meta.format == BLOCKS)
            and type(meta.size) is int
            and meta.size >= 0
            and _SHA256.fullmatch(meta.sha256 or "") is not None
            and (meta.root is None) == (meta.format != BLOCKS)
            and (meta.root is None or _SHA256.fullmatch(meta.root) is not None)
            and len(meta.counts) == 4
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        valid = False
    if not valid:
        raise damaged(f"the marker of archive {workspace}/{op_id} cannot be read")
    return meta


def decode_foreign_meta(data: bytes, *, workspace: str, op_id: str) -> Meta:
    """Read another program's marker: JSON that may give a size and a SHA-256, or the bare SHA-256."""
    text = data.strip()
    try:
        fields: Any = orjson.loads(text)
    except ValueError:
        fields = {"sha256": text.decode("ascii", "replace").split()[0] if text else None}
    fields = fields if isinstance(fields, dict) else {}
    sha256 = fields.get("sha256", fields.get("checksum"))
    sha256 = sha256.removeprefix("sha256:").lower() if isinstance(sha256, str) else None
    size = fields.get("size")
    if sha256 is not None and _SHA256.fullmatch(sha256) is None:
        raise damaged(f"the marker of archive {workspace}/{op_id} gives no SHA-256")
    return Meta(FOREIGN_TAR_GZ, workspace, op_id, FOREIGN_DATA, size if type(size) is int else None, sha256, counts={})


def not_found(key: str) -> DataLost:
    """The archive's data is gone."""
    return DataLost(f"there is no archive {key}", hint="restore it from a second copy", reason=ARCHIVE_NOT_FOUND)


def meta_not_found(key: str) -> DataLost:
    """The archive's marker is gone."""
    return DataLost(f"there is no marker {key}", hint="restore it from a second copy", reason=META_NOT_FOUND)


def damaged(what: str) -> DataLost:
    """The archive is not what it was."""
    return DataLost(what, hint="restore it from a second copy", reason=CHECKSUM_MISMATCH)


def _counts(counts: Any) -> dict[str, int]:
    names = ("files", "directories", "links", "bytes")
    if not all(type(counts[name]) is int and counts[name] >= 0 for name in names):
        raise ValueError("not counts")
    return {name: counts[name] for name in names}
