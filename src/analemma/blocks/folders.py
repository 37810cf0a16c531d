"""A directory tree reached only through descriptors, one name at a time: no symbolic link below the root is ever
followed, whoever plants it and whenever."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from analemma.errors import Denied

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_root(path: Path) -> int:
    """Open the root as a descriptor, made durably if it is missing."""
    absent = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(absent):
        folder.mkdir(exist_ok=True)
        parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
    return open_root(path)


def open_root(path: Path) -> int:
    """Open the root as a descriptor."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


@contextlib.contextmanager
def chain(root: int, names: Sequence[str], *, create: bool = False) -> Iterator[list[int]]:
    """Descriptors of the root and of each folder below it, the last one last."""
    folders = [root]
    try:
        for name in names:
            folders.append(open_folder(folders[-1], name, create=create))
        yield folders
    finally:
        for folder in folders[1:]:
            os.close(folder)


def open_folder(parent: int, name: str, *, create: bool = False) -> int:
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
        refuse_link(parent, name)
        raise


def open_file(parent: int, name: str) -> int:
    """Open a regular file for reading; anything else is FileNotFoundError, a symbolic link Denied."""
    try:
        # Without O_NONBLOCK, a named pipe planted in the tree would hang the reader.
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        refuse_link(parent, name)
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise FileNotFoundError(name)
    return file


def refuse_link(parent: int, name: str) -> None:
    """Raise Denied if this entry is a symbolic link."""
    with contextlib.suppress(OSError):
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise Denied(f"{name} is a symbolic link", hint="remove it; an object store does not follow links")


def make_durable(folders: Sequence[int]) -> None:
    """Flush the entries of each folder, the innermost first."""
    for folder in reversed(folders):
        os.fsync(folder)


def prune(folders: Sequence[int], names: Sequence[str]) -> None:
    """Remove folders that have become empty, the innermost first."""
    for parent, name in zip(reversed(folders[:-1]), reversed(names), strict=True):
        try:
            os.rmdir(name, dir_fd=parent)
        except OSError:
            return


def write_all(file: int, data: bytes) -> None:
    """Write every byte, however many calls that takes."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def walk(folder: int, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every regular file below, in the order of whole keys, holding the names of one folder per level."""
    with os.scandir(folder) as entries:
        found = [entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name for entry in entries]
    # "a/b" sorts after "a-b" although "a" sorts before it: a folder's place is that of its name with the slash.
    for name in sorted(found):
        if name.startswith("."):
            continue
        try:
            if name.endswith("/"):
                inner = open_folder(folder, name[:-1])
                try:
                    yield from walk(inner, prefix + name)
                finally:
                    os.close(inner)
            else:
                facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(facts.st_mode):
                    yield prefix + name, facts
        except (FileNotFoundError, NotADirectoryError, Denied):
            continue  # It vanished or was replaced while we listed.
