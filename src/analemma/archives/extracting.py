"""Entries onto a file system: below one directory and nowhere else, through descriptors that follow no link. Small
files are written by threads of their own, while the next ones are read."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from analemma.archives.entries import Entry, Limits, Totals, check_path, data_length, hostile, shown
from analemma.archives.links import OutsideLinks, check_restored_link
from analemma.errors import AnalemmaError, Limit, Unavailable

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ATTRIBUTES = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL}
_NOT_REAL = (errno.ELOOP, errno.ENOTDIR)
_REFUSALS = (OSError, OverflowError, ValueError)
"""What the system says of an entry: it cannot do that, or what is asked for is no number or name at all."""
_MOST_THREADS = 4
_LARGEST_APART = 1 << 20
"""A file of at most so many bytes is written by another thread."""
_FILES_TOGETHER = 16
_BYTES_TOGETHER = 4 << 20
_MOST_WAITING = 4
"""Batches of files that wait for a thread."""


@dataclass(frozen=True, slots=True)
class _Small:
    """A file that waits to be written."""

    folder: int
    """A descriptor of its own."""
    name: bytes
    entry: Entry
    data: list[bytes | memoryview]


class Extractor:
    """Fills one empty directory. `finish` gives directories their permissions and times, and makes all durable."""

    def __init__(self, root: str, *, limits: Limits, outside_links: OutsideLinks) -> None:
        self.totals = Totals()
        self._limits = limits
        self._outside_links = outside_links
        self._as_root = os.geteuid() == 0
        self._directories: list[Entry] = []
        self._entries = 0
        self._root = os.open(root, _DIRECTORY)
        self._open: list[tuple[bytes, int]] = []
        """The directories on the way to the last entry: the next one is near."""
        self._workers = ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS), "archive-extract")
        self._batch: list[_Small] = []
        self._batch_bytes = 0
        self._under_way: list[Future[None]] = []
        self._notes = threading.Lock()

    def close(self) -> None:
        """Give back descriptors; safe to call twice."""
        # What waits is little, and holds descriptors: it is written, also where nobody wants it any more.
        self._workers.shutdown()
        for small in self._batch:
            os.close(small.folder)
        self._batch = []
        while self._open:
            os.close(self._open.pop()[1])
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def __enter__(self) -> Extractor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, entry: Entry, data: Iterable[bytes | memoryview] = ()) -> None:
        """One more entry, with the data of a file: extent by extent, if it is sparse."""
        names = check_path(entry.path)
        self._check_limits(entry)
        try:
            if entry.kind == "directory":
                self._folder(names)
                self._directories.append(entry)
            elif not names:
                raise hostile("the volume itself is not a directory")
            elif entry.kind == "file" and data_length(entry) <= _LARGEST_APART:
                self._place_apart(self._folder(names[:-1]), names[-1], entry, data)
            else:
                if entry.kind == "hardlink":
                    # The file that it is another name of may be among those that wait.
                    self._settle_batches()
                self._place(self._folder(names[:-1]), names[-1], entry, data)
        except AnalemmaError:
            raise  # Of where the data comes from; one that took too long is an OSError too.
        except _REFUSALS as exc:
            raise _refused(entry, exc) from exc
        self.totals.count(entry)

    def finish(self) -> None:
        """Give directories what could not be given while they were filled, deepest first, and flush everything."""
        self._settle_batches()
        try:
            for entry in reversed(self._directories):
                names = check_path(entry.path)
                folder = self._folder(names)
                try:
                    self._settle(folder, entry)
                except OverflowError as exc:
                    raise _refused(entry, exc) from exc
            flush(self._root)
        except OSError as exc:
            raise Unavailable(
                f"what was restored cannot be made durable: {exc.strerror}", hint="check the disk, then restore again"
            ) from exc

    def _check_limits(self, entry: Entry) -> None:
        self._entries += 1
        size = entry.size if entry.kind == "file" else 0
        if self._entries > self._limits.entries or self.totals.bytes + size > self._limits.bytes:
            raise Limit(
                f"the archive holds more than {self._limits.entries} entries or {self._limits.bytes} bytes",
                hint="more than it announced, or than archive_limit_files and archive_limit_bytes allow",
                path=shown(entry.path),
            )

    def _folder(self, names: tuple[bytes, ...]) -> int:
        """The descriptor of a directory, made if it is not there; hostile if something on the way is none."""
        depth = 0
        while depth < len(names) and depth < len(self._open) and self._open[depth][0] == names[depth]:
            depth += 1
        while len(self._open) > depth:
            os.close(self._open.pop()[1])
        for name in names[depth:]:
            above = self._open[-1][1] if self._open else self._root
            try:
                os.mkdir(name, 0o700, dir_fd=above)
            except FileExistsError:
                pass
            try:
                self._open.append((name, os.open(name, _DIRECTORY, dir_fd=above)))
            except OSError as exc:
                if exc.errno in _NOT_REAL:
                    raise hostile(f"{shown(b'/'.join(names))} leads through something that is no directory") from exc
                raise
        return self._open[-1][1] if self._open else self._root

    def _place_apart(self, folder: int, name: bytes, entry: Entry, data: Iterable[bytes | memoryview]) -> None:
        held = [*data]
        self._batch.append(_Small(os.dup(folder), name, entry, held))
        self._batch_bytes += entry.size
        if len(self._batch) >= _FILES_TOGETHER or self._batch_bytes >= _BYTES_TOGETHER:
            self._send()
            while len(self._under_way) > _MOST_WAITING:
                self._under_way.pop(0).result()

    def _send(self) -> None:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if batch:
            self._under_way.append(self._workers.submit(self._write_batch, batch))

    def _settle_batches(self) -> None:
        """Wait until all files that were added are there."""
        self._send()
        while self._under_way:
            self._under_way.pop(0).result()

    def _write_batch(self, batch: list[_Small]) -> None:
        try:
            for small in batch:
                try:
                    self._place(small.folder, small.name, small.entry, small.data)
                except _REFUSALS as exc:
                    raise _refused(small.entry, exc) from exc
        finally:
            for small in batch:
                os.close(small.folder)

    def _place(self, folder: int, name: bytes, entry: Entry, data: Iterable[bytes | memoryview]) -> None:
        if entry.kind == "file":
            file = os.open(name, _NEW_FILE, 0o600, dir_fd=folder)
            try:
                _write(file, entry, data)
                self._settle(file, entry)
            finally:
                os.close(file)
        elif entry.kind == "symlink":
            check_restored_link(entry, self._outside_links)
            os.symlink(entry.target, name, dir_fd=folder)
            if self._as_root:
                os.chown(name, entry.uid, entry.gid, dir_fd=folder, follow_symlinks=False)
            os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=folder, follow_symlinks=False)
        else:
            self._link(folder, name, entry)

    def _link(self, folder: int, name: bytes, entry: Entry) -> None:
        *above, source = check_path(entry.target) or (b"",)
        opened = [os.dup(self._root)]
        try:
            for each in above:
                opened.append(os.open(each, _DIRECTORY, dir_fd=opened[-1]))
            facts = os.stat(source, dir_fd=opened[-1], follow_symlinks=False) if source else None
            if facts is None or not stat.S_ISREG(facts.st_mode):
                raise hostile(f"{shown(entry.path)} is a link to {shown(entry.target)}, which is no file of it")
            os.link(source, name, src_dir_fd=opened[-1], dst_dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            raise hostile(
                f"{shown(entry.path)} is a link to {shown(entry.target)}, which does not come before it"
            ) from None
        except OSError as exc:
            if exc.errno in _NOT_REAL:
                raise hostile(f"{shown(entry.path)} is a link through something that is no directory") from exc
            raise
        finally:
            for each_opened in opened:
                os.close(each_opened)

    def _settle(self, file: int, entry: Entry) -> None:
        if self._as_root:
            os.fchown(file, entry.uid, entry.gid)
        for name, value in entry.xattrs:
            try:
                os.setxattr(file, name, value)
            except OSError as exc:
                if exc.errno not in _NO_ATTRIBUTES:
                    raise
                with self._notes:
                    self.totals.note(f"{shown(entry.path)}: the attribute {name} cannot be set here")
        os.fchmod(file, entry.mode)
        os.utime(file, ns=(entry.mtime_ns, entry.mtime_ns))


def _refused(entry: Entry, error: Exception) -> AnalemmaError:
    if not isinstance(error, OSError):
        return hostile(f"{shown(entry.path)} has a time, an owner or a target that no file can have")
    if isinstance(error, FileExistsError):
        return hostile(f"{shown(entry.path)} is in it twice")
    return Unavailable(
        f"{shown(entry.path)} cannot be written: {error.strerror}",
        hint="check the disk's room and the permissions, then restore again",
    )


def _write(file: int, entry: Entry, data: Iterable[bytes | memoryview]) -> None:
    extents = list(entry.extents) if entry.extents is not None else [(0, entry.size)]
    if entry.extents is not None:
        os.ftruncate(file, entry.size)
    offset, left = extents.pop(0) if extents else (0, 0)
    for chunk in data:
        view = memoryview(chunk)
        while view:
            while not left and extents:
                offset, left = extents.pop(0)
            if not left:
                raise hostile(f"{shown(entry.path)} has more data than was announced")
            count = os.pwrite(file, view[:left], offset)
            view, offset, left = view[count:], offset + count, left - count
    if left or any(length for _, length in extents):
        raise hostile(f"{shown(entry.path)} has less data than was announced")


def flush(root: int) -> None:
    """Make everything below durable. One call for the whole file system is many times faster than one for each file."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "syncfs"):
        if libc.syncfs(root) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    else:
        os.sync()
