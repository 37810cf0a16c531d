"""Walking a volume: every name once, in the order of names' bytes, through descriptors so that no link is followed; and
the fingerprint by which an unchanged volume is recognised."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

from analemma.archives.entries import DEEPEST, Entry, Extents, Limits, Totals, shown
from analemma.archives.mounts import check_mounts
from analemma.errors import Conflict, Limit, Unavailable

BOOKKEEPING = ".analemma-"
"""What the folder beside a volume is called that holds its lock and what is on its way in or out."""
READ_BYTES = 1 << 20

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not blocking: what is a file now may be a pipe when it is opened.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NO_ATTRIBUTES = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENODATA, errno.ENOSYS, errno.EPERM, errno.EACCES}
_KEPT_ATTRIBUTES = ("user.", "system.posix_acl_", "security.capability")
_BLOCK_BYTES = 512
_ENCODING, _ENCODING_ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
"""What `os.fsencode` does."""
_VERSION = struct.Struct("<QIIIqqq")
_FAR_NS = -(1 << 63)
"""Stands in a version for a time that does not fit, before 1677 or after 2262: then both follow, in 16 bytes each."""
_NAMES = {stat.S_IFSOCK: "socket", stat.S_IFIFO: "pipe", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


class Changed(Conflict):
    """A file or directory changed while it was read."""


class FileVersion(NamedTuple):
    """What changes whenever a file does."""

    inode: int
    ctime_ns: int
    mtime_ns: int
    size: int


def file_version(facts: os.stat_result) -> FileVersion:
    """The version of a file, from what `stat` says."""
    return FileVersion(facts.st_ino, facts.st_ctime_ns, facts.st_mtime_ns, facts.st_size)


@dataclass(frozen=True, slots=True)
class Found:
    """One name of a volume, to be read before the walk goes on."""

    entry: Entry
    facts: os.stat_result
    file: int = -1
    """The open file, if it is one."""

    def read(self) -> Iterator[bytes]:
        """The file's bytes, holes left out; Changed if they are not those that the entry announced.

        What is written through memory shows in a file's times only when a page is first written to after it was
        flushed: whoever relies on this has flushed the file system after looking at those times."""
        for offset, length in self._extents():
            while length:
                try:
                    data = os.pread(self.file, min(length, READ_BYTES), offset)
                except OSError as exc:
                    raise self._unreadable(exc) from exc
                if not data:
                    raise changed(self.entry.path)
                yield data
                offset += len(data)
                length -= len(data)
        self._check_unchanged()

    def read_into(self, room: Callable[[], memoryview]) -> Iterator[int]:
        """The same bytes into whatever room there is, with no copy in between: how many, each time."""
        for offset, length in self._extents():
            while length:
                try:
                    count = os.preadv(self.file, [room()[:length]], offset)
                except OSError as exc:
                    raise self._unreadable(exc) from exc
                if not count:
                    raise changed(self.entry.path)
                yield count
                offset += count
                length -= count
        self._check_unchanged()

    def _extents(self) -> Extents:
        return ((0, self.entry.size),) if self.entry.extents is None else self.entry.extents

    def _unreadable(self, error: OSError) -> Unavailable:
        return Unavailable(
            f"{shown(self.entry.path)} cannot be read: {error.strerror}", hint="check its disk, then archive again"
        )

    def _check_unchanged(self) -> None:
        if version_of(os.fstat(self.file)) != version_of(self.facts):
            raise changed(self.entry.path)


class Walk:
    """One walk over a volume; `totals` and `fingerprint` are those of what has gone by."""

    def __init__(
        self,
        root: str,
        *,
        only_look: bool = False,
        unchanged: Callable[[bytes, FileVersion], bool] | None = None,
        limits: Limits | None = None,
        times_ns: range | None = None,
    ) -> None:
        """With `only_look` no file is opened: what is found tells names and times, and cannot be read. Nor is a file of
        which `unchanged` says so. Limit as soon as there is more than `limits` allow, or a time that is not in
        `times_ns`."""
        self.totals = Totals()
        self._only_look = only_look
        self._unchanged = unchanged
        self._limits = limits
        self._times_ns = times_ns
        self._root = root
        self._hash = hashlib.sha256()
        self._seen: dict[tuple[int, int], bytes] = {}
        self._skims = False

    def skim(self) -> None:
        """Go over all of it for its totals and its fingerprint; only with `only_look`."""
        assert self._only_look and self._limits is None
        self._skims = True
        for _ in self:
            pass

    def fingerprint(self) -> str:
        """Changes when anything in the volume does, short of writing behind the file system's back."""
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[Found]:
        try:
            # What is mounted in it is not the volume's, and need not be another device.
            check_mounts(self._root)
            with ExitStack() as opened:
                root = os.open(self._root, _DIRECTORY)
                opened.callback(os.close, root)
                facts = os.fstat(root)
                yield self._directory(b"", root, facts)
                yield from self._below(root, facts.st_dev)
        except OSError as exc:
            raise Unavailable(
                f"the volume {self._root} cannot be read: {exc.strerror}", hint="check its permissions"
            ) from exc

    def _below(self, root: int, device: int) -> Iterator[Found]:
        # A stack of our own: a volume may be deeper than Python's.
        stack: list[tuple[int, bytes, list[str]]] = [(root, b"", _names(root))]
        try:
            while stack:
                folder, prefix, names = stack[-1]
                if self._skims:
                    self._skim(folder, prefix, names)
                if not names:
                    stack.pop()
                    if folder != root:
                        os.close(folder)
                    continue
                name = names.pop()
                found = self._look(folder, prefix + os.fsencode(name), name, device)
                if found is None:
                    continue
                try:
                    yield found
                finally:
                    if found.file >= 0 and found.entry.kind != "directory":
                        os.close(found.file)
                if found.entry.kind == "directory":
                    if len(stack) >= DEEPEST:
                        os.close(found.file)
                        raise Limit(
                            f"{shown(found.entry.path)} is more than {DEEPEST} directories deep",
                            hint="move it up, or make it a workspace of its own",
                        )
                    stack.append((found.file, found.entry.path + b"/", _names(found.file)))
        finally:
            for folder, _, _ in stack:
                if folder != root:
                    os.close(folder)

    def _skim(self, folder: int, prefix: bytes, names: list[str]) -> None:
        """Take the plain files from the end of a list of names: nobody wants to see them, and most names are such. An
        archive looks at all of them four times."""
        look, update, pack = os.stat, self._hash.update, _VERSION.pack
        files = size = 0
        while names:
            name = names[-1]
            try:
                facts = look(name, dir_fd=folder, follow_symlinks=False)
            except OSError:
                break  # Whoever takes a closer look says what it is.
            if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:
                break
            names.pop()
            files += 1
            size += facts.st_size
            path = prefix + name.encode(_ENCODING, _ENCODING_ERRORS)
            version = version_of(facts)
            try:
                packed = pack(*version)
            except struct.error:
                self._check_time(path, facts.st_mtime_ns)
                packed = _packed(version)
            update(b"%b\0\0%b" % (path, packed))
        self.totals.files += files
        self.totals.bytes += size

    def _look(self, folder: int, path: bytes, name: str, device: int) -> Found | None:
        try:
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
            kind = stat.S_IFMT(facts.st_mode)
            if kind == stat.S_IFDIR:
                return self._enter(folder, path, name, device)
            if kind == stat.S_IFLNK:
                return self._link(path, facts, os.fsencode(os.readlink(name, dir_fd=folder)))
            if kind != stat.S_IFREG:
                self._fingerprint(path, facts, b"")
                self.totals.note(f"{shown(path)}: a {_NAMES.get(kind, 'special file')} is not archived")
                return None
            first = self._seen.get((facts.st_dev, facts.st_ino)) if facts.st_nlink > 1 else None
            if first is not None:
                return self._add(Entry(path, "hardlink", *_ownership(facts), target=first), facts)
            if self._only_look or (self._unchanged is not None and self._unchanged(path, file_version(facts))):
                if facts.st_nlink > 1:
                    self._seen[facts.st_dev, facts.st_ino] = path
                return self._add(Entry(path, "file", *_ownership(facts), size=facts.st_size), facts)
            file = os.open(name, _FILE, dir_fd=folder)
        except FileNotFoundError:
            raise changed(path) from None
        except OSError as exc:
            if exc.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
                raise changed(path) from exc
            raise Unavailable(f"{shown(path)} cannot be read: {exc.strerror}", hint="check its permissions") from exc
        try:
            return self._file(path, file, facts)
        except BaseException:
            os.close(file)
            raise

    def _enter(self, folder: int, path: bytes, name: str, device: int) -> Found:
        if name.startswith(BOOKKEEPING):
            raise Conflict(f"{shown(path)} belongs to another workspace", hint="volumes must not lie inside each other")
        opened = os.open(name, _DIRECTORY, dir_fd=folder)
        try:
            facts = os.fstat(opened)
            if facts.st_dev != device:
                raise Conflict(
                    f"another file system is mounted at {shown(path)}", hint="unmount it, or move it elsewhere"
                )
            return self._directory(path, opened, facts)
        except BaseException:
            os.close(opened)
            raise

    def _directory(self, path: bytes, opened: int, facts: os.stat_result) -> Found:
        entry = Entry(path, "directory", *_ownership(facts), xattrs=self._attributes(path, opened))
        return self._add(entry, facts, opened)

    def _link(self, path: bytes, facts: os.stat_result, target: bytes) -> Found:
        return self._add(Entry(path, "symlink", *_ownership(facts), target=target), facts)

    def _file(self, path: bytes, file: int, seen: os.stat_result) -> Found:
        facts = os.fstat(file)
        if (facts.st_dev, facts.st_ino) != (seen.st_dev, seen.st_ino) or not stat.S_ISREG(facts.st_mode):
            raise changed(path)
        if facts.st_nlink > 1:
            self._seen[facts.st_dev, facts.st_ino] = path
        entry = Entry(
            path,
            "file",
            *_ownership(facts),
            size=facts.st_size,
            xattrs=self._attributes(path, file),
            extents=_extents(file, facts),
        )
        return self._add(entry, facts, file)

    def _add(self, entry: Entry, facts: os.stat_result, file: int = -1) -> Found:
        self.totals.count(entry)
        if self._limits is not None:
            self._limits.check(self.totals, entry)
        self._check_time(entry.path, entry.mtime_ns)
        self._fingerprint(entry.path, facts, entry.target)
        return Found(entry, facts, file)

    def _attributes(self, path: bytes, file: int) -> tuple[tuple[str, bytes], ...]:
        try:
            names = os.listxattr(file)
        except OSError as exc:
            if exc.errno in _NO_ATTRIBUTES:
                return ()
            raise
        found: list[tuple[str, bytes]] = []
        for name in sorted(names):
            if name.startswith(_KEPT_ATTRIBUTES):
                try:
                    found.append((name, os.getxattr(file, name)))
                except OSError as exc:
                    if exc.errno not in _NO_ATTRIBUTES:
                        raise
                    shown_name = ascii(name)[1:-1]
                    self.totals.note(f"{shown(path)}: the attribute {shown_name} cannot be read: {exc.strerror}")
        return tuple(found)

    def _fingerprint(self, path: bytes, facts: os.stat_result, target: bytes) -> None:
        # The volume's own times change when it is moved aside; what is in it does not.
        version = version_of(facts) if path else (facts.st_ino, facts.st_mode, 0, 0, 0, 0, 0)
        # Neither a path nor a target holds a NUL.
        self._hash.update(b"%b\0%b\0%b" % (path, target, _packed(version)))

    def _check_time(self, path: bytes, mtime_ns: int) -> None:
        if self._times_ns is not None and mtime_ns not in self._times_ns:  # guard: volume.times
            raise Limit(
                f"{shown(path) or 'the volume'} has a time that blocks cannot hold, before 1677 or after 2554",
                hint="give it another time, or archive with format tar",
                path=shown(path),
            )


def version_of(facts: os.stat_result) -> tuple[int, ...]:
    """What is different when a file was written to, replaced, or had its permissions changed."""
    return (
        facts.st_ino,
        facts.st_mode,
        facts.st_uid,
        facts.st_gid,
        facts.st_size,
        facts.st_mtime_ns,
        facts.st_ctime_ns,
    )


def _packed(version: tuple[int, ...]) -> bytes:
    try:
        return _VERSION.pack(*version)
    except struct.error:
        *others, mtime_ns, ctime_ns = version
        far = [each.to_bytes(16, "little", signed=True) for each in (mtime_ns, ctime_ns)]
        return _VERSION.pack(*others, _FAR_NS, _FAR_NS) + b"".join(far)


def fingerprint_of(root: str) -> str:
    """The fingerprint of a volume as it is now."""
    walk = Walk(root, only_look=True)
    walk.skim()
    return walk.fingerprint()


def changed(path: bytes) -> Changed:
    """What whoever archives a volume is told that somebody writes to."""
    return Changed(f"{shown(path)} changed while it was read", hint="stop what writes to the volume, then try again")


def _names(folder: int) -> list[str]:
    """In descending order: they are taken from the end."""
    names = os.listdir(folder)
    # Of ASCII, texts are ordered as their bytes are.
    names.sort(key=None if all(map(str.isascii, names)) else os.fsencode, reverse=True)
    return names


def _ownership(facts: os.stat_result) -> tuple[int, int, int, int]:
    return stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid, facts.st_mtime_ns


def _extents(file: int, facts: os.stat_result) -> Extents | None:
    """Where there is data, if the file has holes worth remembering."""
    size = facts.st_size
    if facts.st_blocks * _BLOCK_BYTES >= size:
        return None
    found: list[tuple[int, int]] = []
    offset = 0
    try:
        while offset < size:
            offset = os.lseek(file, offset, os.SEEK_DATA)
            end = min(os.lseek(file, offset, os.SEEK_HOLE), size)
            found.append((offset, end - offset))
            offset = end
    except OSError as exc:
        if exc.errno == errno.EINVAL:  # A file system that cannot tell.
            return None
        if exc.errno != errno.ENXIO:  # No data from here to the end.
            raise
    return None if found == [(0, size)] else tuple(found)
