"""Objects as files, really durable: a `put` that returned survives a power cut, and no reader ever sees half an object.

Bytes go to a temporary file, which is flushed, then linked or renamed to its final name, and then every folder on the
way is flushed. Metadata is an extended attribute of the file: it appears and leaves with the object in the same rename,
with no second file to keep in step. A file system without extended attributes keeps none, and nothing depends on it.

The directory is reached only through descriptors, one name at a time: no symbolic link below the root is ever followed,
whoever plants it and whenever.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from analemma.blocks.port import READ_CHUNK_BYTES, ObjectInfo, ObjectStore, Pieces, Ranges, check_key, missing
from analemma.clock import Clock, Entropy, SystemClock, SystemEntropy
from analemma.errors import AnalemmaError, Denied, Invalid, NotFound, Unavailable

LEFTOVER_AGE_S = 24 * 3600
"""A temporary file untouched for this long belongs to a writer that died."""

LONGEST_LOCK_S = 10.0

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TEMPORARY = ".tmp"
_LOCK = ".lock"
_ATTRIBUTE = "user.analemma"
_NO_ATTRIBUTES = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENODATA, errno.ENOSYS, errno.EPERM, errno.EACCES}
_PLACE_TRIES = 10
_MOST_DURABLE_FOLDERS = 4096


class LocalStore(ObjectStore):
    """An object store in one directory; many processes may share it."""

    def __init__(
        self, root: str | Path, *, create: bool = True, clock: Clock | None = None, entropy: Entropy | None = None
    ) -> None:
        """Without `create`, a directory that is not there is made by the first write: whoever only reads, perhaps at a
        place that was mistyped, leaves nothing behind."""
        self.root = Path(root).absolute()
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        self._durable_folders: set[tuple[str, ...]] = set()
        self._root: int | None = None
        self._closed = False
        with self._translating(), contextlib.suppress(*(() if create else (FileNotFoundError,))):
            try:
                self._open_root(create=create)
            except (FileExistsError, NotADirectoryError) as exc:
                raise Invalid(
                    f"object store {self.root}: a file is in the way of the directory", hint="choose another directory"
                ) from exc
        # A directory we may only read is still worth opening; the first write will say what is wrong.
        with contextlib.suppress(OSError, AnalemmaError):
            self._clean_leftovers()

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    def _replace(self, key: str, data: bytes, expected: bytes) -> bytes | None:
        # No file system compares before it renames, so all who replace something do so one after the other.
        with self._locked():
            try:
                found = self.get(key)
            except NotFound:
                return None
            if found == expected:
                self._write(key, [data], {}, if_absent=False)
            return found

    def _read(self, key: str, ranges: Ranges | None) -> Pieces:
        with self._reading(key) as file:
            # The size is asked first: a length may come from a damaged row, and pread would set memory aside for it.
            size = os.fstat(file).st_size
            chosen = [(0, size)] if ranges is None else ranges
            return [_read_up_to(file, offset, min(length, max(size - offset, 0))) for offset, length in chosen]

    def _stream(self, key: str) -> Iterator[bytes]:
        with self._reading(key) as file:
            while chunk := os.read(file, READ_CHUNK_BYTES):
                yield chunk

    def _head(self, key: str) -> ObjectInfo | None:
        try:
            with self._reading(key) as file:
                facts = os.fstat(file)
                return ObjectInfo(key, facts.st_size, facts.st_mtime_ns // 1000, _read_metadata(file))
        except KeyError:
            return None

    def _remove(self, keys: Sequence[str]) -> None:
        by_folder: dict[tuple[str, ...], list[str]] = {}
        for key in keys:
            *parents, name = key.split("/")
            by_folder.setdefault(tuple(parents), []).append(name)
        with self._translating():
            for parents_of, names in by_folder.items():
                # A missing folder means that all of its objects are gone already.
                with (
                    contextlib.suppress(FileNotFoundError, NotADirectoryError),
                    _chain(self._open_root(), parents_of) as opened,
                ):
                    for name in names:
                        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                            os.unlink(name, dir_fd=opened[-1])
                    # A delete that a power cut undoes would leave bytes that nobody will look for again.
                    os.fsync(opened[-1])
                    self._durable_folders.discard(parents_of)
                    _prune(opened, parents_of)

    def _list(self, folder: str) -> Iterator[ObjectInfo]:
        names = folder.split("/") if folder else []
        with (
            self._translating(),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            _chain(self._open_root(), names) as opened,
        ):
            for key, facts in _walk(opened[-1], folder + "/" if folder else ""):
                with contextlib.suppress(Invalid):  # Not a name we could have written: not ours.
                    yield ObjectInfo(check_key(key), facts.st_size, facts.st_mtime_ns // 1000)

    def health(self) -> None:
        with self._temporary() as (_, _, file), self._translating():
            _write_all(file, b"writable")

    def close(self) -> None:
        root, self._root, self._closed = self._root, None, True
        if root is not None:
            os.close(root)

    def _write(self, key: str, chunks: Iterable[bytes], metadata: dict[str, str], *, if_absent: bool) -> bool:
        *parents, name = key.split("/")
        # Only our own calls are translated: an OSError that `chunks` raises is the caller's business.
        with self._temporary() as (scratch, temporary, file):
            for chunk in chunks:
                with self._translating():
                    _write_all(file, chunk)
            with self._translating():
                _write_metadata(file, metadata)
                os.fsync(file)

            def place(folder: int) -> bool:
                if not if_absent:
                    os.rename(temporary, name, src_dir_fd=scratch, dst_dir_fd=folder)
                    return True
                try:
                    os.link(temporary, name, src_dir_fd=scratch, dst_dir_fd=folder, follow_symlinks=False)
                except FileExistsError:
                    return False
                return True

            with self._translating(key):
                return self._place(tuple(parents), place)

    def _place(self, parents: tuple[str, ...], place: Callable[[int], bool]) -> bool:
        for attempt in range(1, _PLACE_TRIES + 1):
            # Flushing a folder does not flush its own name in the folder above. That is done when we first use it, even
            # if it was there: another process may have made it a moment ago. Later only the folder itself needs it.
            known = parents in self._durable_folders
            try:
                with _chain(self._open_root(), parents, create=not known) as opened:
                    placed = place(opened[-1])
                    # Also when the object was there already: whoever wrote it may not have flushed the folder yet.
                    for folder in opened[-1:] if known else reversed(opened):
                        os.fsync(folder)
                    if len(self._durable_folders) >= _MOST_DURABLE_FOLDERS:
                        self._durable_folders.clear()
                    self._durable_folders.add(parents)
                    return placed
            except FileNotFoundError:
                # A delete pruned the folder, empty for a moment: make it anew, and flush its name again.
                self._durable_folders.discard(parents)
                if attempt == _PLACE_TRIES:
                    raise
        raise AssertionError("unreachable")

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[tuple[int, str, int]]:
        """A new file: the folder that it lies in, its name there and its descriptor. It goes if it is still there."""
        with self._translating(_TEMPORARY):
            folder = _open_folder(self._open_root(create=True), _TEMPORARY, create=True)
        with _closing(folder) as scratch:
            name = f"{os.getpid()}-{self._entropy.random_bytes(8).hex()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with self._translating():
                opened = os.open(name, flags, 0o666, dir_fd=scratch)
            try:
                with _closing(opened) as file:
                    yield scratch, name, file
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=scratch)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._translating(_LOCK):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            opened = os.open(_LOCK, flags, 0o666, dir_fd=self._open_root(create=True))
        with _closing(opened) as lock:
            end_s = self._clock.monotonic() + LONGEST_LOCK_S
            while not self._lock_now(lock):
                if self._clock.monotonic() > end_s:
                    raise Unavailable(
                        f"the object store {self.root} is locked",
                        hint="another process is replacing an object; try again, or end it if it hangs",
                        transient=True,
                    )
                self._clock.sleep(0.002)
            try:
                yield
            finally:
                # Not by closing it alone: a child that was forked meanwhile has the same descriptor.
                fcntl.flock(lock, fcntl.LOCK_UN)

    def _lock_now(self, lock: int) -> bool:
        with self._translating():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    @contextlib.contextmanager
    def _reading(self, key: str) -> Iterator[int]:
        *parents, name = key.split("/")
        with self._translating():
            try:
                with _chain(self._open_root(), parents) as opened:
                    file = _open_file(opened[-1], name)
            except (FileNotFoundError, NotADirectoryError) as exc:
                raise missing(key) from exc
            with _closing(file):
                yield file

    def _clean_leftovers(self) -> None:
        oldest_us = self._clock.now_us() - LEFTOVER_AGE_S * 1_000_000
        with _closing(_open_folder(self._open_root(), _TEMPORARY)) as scratch:
            for name in os.listdir(scratch):
                with contextlib.suppress(OSError):
                    facts = os.stat(name, dir_fd=scratch, follow_symlinks=False)
                    if facts.st_mtime_ns // 1000 < oldest_us:
                        os.unlink(name, dir_fd=scratch)

    def _open_root(self, *, create: bool = False) -> int:
        """The directory; FileNotFoundError if nobody has put anything there and it is not to be made."""
        if self._closed:
            raise Unavailable(f"the object store {self.root} is closed")
        if self._root is None:
            # No lock, which a fork could leave held: should two threads be the first, one descriptor is too many.
            self._root = _open_root(self.root, create=create)
        return self._root

    @contextlib.contextmanager
    def _translating(self, name: str = "") -> Iterator[None]:
        """`name`: what is to be put, below the root."""
        try:
            yield
        except AnalemmaError:
            raise
        except OSError as exc:
            raise self._refused(exc, name) from exc

    def _refused(self, exc: OSError, name: str) -> AnalemmaError:
        place = f"object store {self.root}"
        if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return Unavailable(f"{place}: {exc.strerror}", hint="free some space, then try again")
        if exc.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return Unavailable(f"{place}: {exc.strerror}", hint="give this user access to the directory")
        if exc.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
            # Of the directory, not of the request: the same request succeeds once it is moved.
            path = self._in_the_way(name)
            return Unavailable(
                f"{place}: a file is in the way of a folder, or a folder of a file: {path}",
                hint="move it away, then try again",
                path=str(path),
            )
        return Unavailable(f"{place}: {exc.strerror or exc}", hint="check the disk and the directory")

    def _in_the_way(self, name: str) -> Path:
        """What stands where a folder on the way to this name is to be, or the name itself."""
        path = self.root / name
        on_the_way = (folder for folder in reversed(path.parents) if folder.is_relative_to(self.root))
        return next((folder for folder in on_the_way if folder.exists() and not folder.is_dir()), path)


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read_up_to(file: int, offset: int, length: int) -> bytes:
    data = os.pread(file, length, offset)
    while len(data) < length and (more := os.pread(file, length - len(data), offset + len(data))):
        data += more
    return data


def _write_metadata(file: int, metadata: Mapping[str, str]) -> None:
    if metadata and hasattr(os, "setxattr"):
        try:
            os.setxattr(file, _ATTRIBUTE, json.dumps(metadata, sort_keys=True).encode())
        except OSError as exc:
            if exc.errno not in _NO_ATTRIBUTES:
                raise


def _read_metadata(file: int) -> dict[str, str]:
    if not hasattr(os, "getxattr"):
        return {}
    try:
        metadata = json.loads(os.getxattr(file, _ATTRIBUTE))
    except (OSError, ValueError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def _open_root(path: Path, *, create: bool = False) -> int:
    """Open the root as a descriptor; with `create`, made durably if it is missing."""
    absent = [folder for folder in (path, *path.parents) if not folder.exists()] if create else []
    for folder in reversed(absent):
        folder.mkdir(exist_ok=True)
        with _closing(_open_root(folder.parent)) as parent:
            os.fsync(parent)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


@contextlib.contextmanager
def _chain(root: int, names: Sequence[str], *, create: bool = False) -> Iterator[list[int]]:
    """Descriptors of the root and of each folder below it, the last one last."""
    folders = [root]
    try:
        for name in names:
            folders.append(_open_folder(folders[-1], name, create=create))
        yield folders
    finally:
        for folder in folders[1:]:
            os.close(folder)


def _open_folder(parent: int, name: str, *, create: bool = False) -> int:
    """Open one folder inside another, made if asked; Denied for a symbolic link."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError:
        _refuse_link(parent, name)
        raise


def _open_file(parent: int, name: str) -> int:
    """Open a regular file for reading; anything else is FileNotFoundError, a symbolic link Denied."""
    try:
        # Without O_NONBLOCK, a named pipe planted in the tree would hang the reader.
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        _refuse_link(parent, name)
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise FileNotFoundError(name)
    return file


def _refuse_link(parent: int, name: str) -> None:
    """Raise Denied if this entry is a symbolic link."""
    with contextlib.suppress(OSError):
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise Denied(f"{name} is a symbolic link", hint="remove it; an object store does not follow links")


def _prune(folders: Sequence[int], names: Sequence[str]) -> None:
    """Remove folders that have become empty, the innermost first."""
    for parent, name in zip(reversed(folders[:-1]), reversed(names), strict=True):
        try:
            os.rmdir(name, dir_fd=parent)
        except OSError:
            return


def _write_all(file: int, data: bytes) -> None:
    """Write every byte, however many calls that takes."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _walk(folder: int, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every regular file below, in the order of whole keys, holding the names of one folder per level."""
    with os.scandir(folder) as entries:
        found = [entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name for entry in entries]
    # "a/b" sorts after "a-b" although "a" sorts before it: a folder's place is that of its name with the slash.
    for name in sorted(found):
        if name.startswith("."):
            continue
        try:
            if name.endswith("/"):
                with _closing(_open_folder(folder, name[:-1])) as inner:
                    yield from _walk(inner, prefix + name)
            else:
                facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(facts.st_mode):
                    yield prefix + name, facts
        except (FileNotFoundError, NotADirectoryError, Denied):
            continue  # It vanished or was replaced while we listed.
