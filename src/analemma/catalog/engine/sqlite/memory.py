"""Stores in memory: directories that go with their catalog, or with the process that made them."""

from __future__ import annotations

import atexit
import fcntl
import os
import time

SHARED_MEMORY = "/dev/shm"
ENOUGH_BYTES = 1 << 30
PREFIX = "analemma-memory-"
LEFT_BEHIND_S = 60.0

_directories: dict[str, int] = {}
"""Those of this process, each with the descriptor that holds its lock."""


def make_directory_in_memory() -> str:
    """An empty directory: in shared memory if there is enough of that, else where temporary files are."""
    # Loaded by those who have one.
    import tempfile

    parent = SHARED_MEMORY if _has_room() else tempfile.gettempdir()
    _remove_left_behind(parent)
    path = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
    _directories[path] = fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    # Given up by the system, however this process dies.
    fcntl.flock(fd, fcntl.LOCK_EX)
    return path


def is_in_memory(file: str) -> bool:
    """Whether a file is in such a directory of this process."""
    return os.path.dirname(file) in _directories


def remove_from_memory(file: str) -> None:
    """Remove the directory in which the file is, if it is one of these."""
    path = os.path.dirname(file)
    fd = _directories.pop(path, None)
    if fd is not None:
        _remove(path)
        os.close(fd)


def _remove(path: str) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def _has_room() -> bool:
    try:
        facts = os.statvfs(SHARED_MEMORY)
    except OSError:
        return False
    return facts.f_bavail * facts.f_frsize >= ENOUGH_BYTES and os.access(SHARED_MEMORY, os.W_OK)


def _remove_left_behind(parent: str) -> None:
    """Remove what processes that were killed have left: nobody holds its lock any more."""
    with os.scandir(parent) as entries:
        found = [entry.path for entry in entries if entry.name.startswith(PREFIX)]
    for path in found:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            # Younger, it may be about to be locked.
            if time.time() - os.fstat(fd).st_mtime > LEFT_BEHIND_S:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path)
        except OSError:
            pass
        finally:
            os.close(fd)


def _remove_all() -> None:
    for path in list(_directories):
        remove_from_memory(os.path.join(path, ""))


atexit.register(_remove_all)
# What a forked child finds here is its parent's.
os.register_at_fork(after_in_child=_directories.clear)
