"""One file, directory or link, as an archive holds it; and the counts by which a truncated archive is told from a
whole one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from analemma.errors import AnalemmaError, Denied, Limit

EntryKind = Literal["file", "directory", "symlink", "hardlink"]

Extents = tuple[tuple[int, int], ...]
"""Where a sparse file has data: (offset, length), in order."""

DEEPEST = 512
"""Directories inside each other: what is deeper is neither archived nor restored."""
MOST_NOTES = 100
"""Notes that are kept; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of one name besides its bytes."""

    path: bytes
    """Relative to the volume, with "/" between names; empty for the volume itself."""
    kind: EntryKind
    mode: int
    """The permission bits, set-id and sticky bits included."""
    uid: int
    gid: int
    mtime_ns: int
    size: int = 0
    """Of a file; its holes included."""
    target: bytes = b""
    """Where a symbolic link points; the path of the file that a hard link is another name of."""
    xattrs: tuple[tuple[str, bytes], ...] = ()
    extents: Extents | None = None
    """Of a sparse file."""


@dataclass(slots=True)
class Totals:
    """What went by so far."""

    files: int = 0
    directories: int = 0
    links: int = 0
    bytes: int = 0
    """Of all files, holes included."""
    skipped: int = 0
    notes: list[str] = field(default_factory=list)

    def count(self, entry: Entry) -> None:
        """One more."""
        if entry.kind == "file":
            self.files += 1
            self.bytes += entry.size
        elif entry.kind == "directory":
            self.directories += 1
        else:
            self.links += 1

    def note(self, text: str) -> None:
        """Something was left out."""
        self.skipped += 1
        if len(self.notes) < MOST_NOTES:
            self.notes.append(text)

    def counts(self) -> dict[str, int]:
        """What must be the same when it is read again."""
        return {"files": self.files, "directories": self.directories, "links": self.links, "bytes": self.bytes}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much an archive may hold: what it was announced to hold, and what is allowed at all."""

    bytes: int
    entries: int

    def check(self, totals: Totals, entry: Entry) -> None:
        """Limit if there is more by now, of which this is the last."""
        entries = totals.files + totals.directories + totals.links
        if entries > self.entries or totals.bytes > self.bytes:
            raise Limit(
                f"the archive holds more than {self.entries} entries or {self.bytes} bytes",
                hint="more than it announced, or than archive_limit_files and archive_limit_bytes allow",
                path=shown(entry.path),
            )


def data_length(entry: Entry) -> int:
    """Bytes of a file that are stored: without its holes."""
    return entry.size if entry.extents is None else sum(length for _, length in entry.extents)


def check_path(path: bytes) -> tuple[bytes, ...]:
    """The names along a path, of which none leads anywhere else; Denied for a path that could leave the volume."""
    if not path:
        return ()
    names = tuple(path.split(b"/"))
    if any(name in (b"", b".", b"..") or b"\0" in name or len(name) > 255 for name in names):
        raise hostile(f"path {shown(path)} could lead out of the volume")
    if len(names) > DEEPEST:
        raise hostile(f"path {shown(path)} is more than {DEEPEST} directories deep")
    return names


def check_extents(extents: Iterable[tuple[int, int]], size: int) -> Extents:
    """The map of a sparse file, or Denied if it does not fit the file."""
    checked = tuple(extents)
    end = 0
    for offset, length in checked:
        if offset < end or length < 0 or offset + length > size:
            raise hostile("the map of a sparse file does not fit it")
        end = offset + length
    return checked


def hostile(what: str) -> AnalemmaError:
    """What whoever restores an archive is told that was not made by archiving a volume."""
    return Denied(f"the archive is refused: {what}", hint="it was not made by archiving a workspace")


def shown(path: bytes) -> str:
    """A path for people."""
    return ascii(path.decode("utf-8", "surrogateescape"))[1:-1][:200]
