"""Deleting a directory with all that is in it, many files at a time: a file system that gives back blocks while the
caller waits takes as long for a thousand files one after the other as for ten thousand side by side."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import threading
from dataclasses import dataclass
from typing import Any

from analemma.clock import Entropy, SystemEntropy

THREADS = 8
NAMES_TOGETHER = 32
"""So many files of one directory are one piece of work."""

DEEPEST = 48
"""So many directories on one way are open at a time. One that is deeper is moved to the top, and goes from there."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def delete_tree(path: str, *, entropy: Entropy | None = None) -> None:
    """Delete a directory; OSError if something stays. Nothing outside of it is touched, whoever puts links in it."""
    # What the threads cannot delete, for want of permissions or of descriptors, is done or reported one by one.
    _Sweep(path, entropy or SystemEntropy()).run()
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path, onerror=_make_writable)


@dataclass(slots=True)
class _Folder:
    """A directory that goes when everything in it has gone."""

    name: str
    above: _Folder | None
    depth: int = 0
    opened: int = -1
    left: int = 1
    """Pieces of work that are not done; looking into it is one."""


@dataclass(frozen=True, slots=True)
class _Work:
    folder: _Folder
    names: tuple[str, ...] | None
    """Files to delete; None: look what there is."""


class _Sweep:
    def __init__(self, path: str, entropy: Entropy) -> None:
        # Last in, first out: so only directories on the way to what is being deleted are open.
        self._root = _Folder(path, None)
        self._stack = [_Work(self._root, None)]
        # A name that a sweep which was killed left here may be that of a directory above the one that is moved.
        self._prefix = f".analemma-deep-{entropy.random_bytes(8).hex()}-"  # guard: volume.deep
        self._numbers = itertools.count()
        self._busy = 0
        self._changed = threading.Condition()

    def run(self) -> None:
        threads = [threading.Thread(target=self._work, name="archive-delete", daemon=True) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._stack and self._busy:
                    self._changed.wait()
                if not self._stack:
                    return
                work = self._stack.pop()
                self._busy += 1
            try:
                more = self._look(work.folder) if work.names is None else _unlink(work.folder, work.names)
            except OSError:
                more = []
            with self._changed:
                work.folder.left += len(more)
                self._stack += more
                self._changed.notify_all()
            self._leave(work.folder)
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def _leave(self, folder: _Folder | None) -> None:
        """One piece of a directory is done; after the last, the directory goes, which is a piece of the one above."""
        while folder is not None:
            with self._changed:
                folder.left -= 1
                if folder.left:
                    return
            above = folder.above
            if folder.opened >= 0:
                os.close(folder.opened)
                with contextlib.suppress(OSError):
                    os.rmdir(folder.name, dir_fd=None if above is None else above.opened)
            folder = above

    def _look(self, folder: _Folder) -> list[_Work]:
        above = folder.above
        if above is not None and folder.depth > DEEPEST:
            self._move_up(folder.name, above)
            return []
        folder.opened = os.open(folder.name, _DIRECTORY, dir_fd=None if above is None else above.opened)
        files: list[str] = []
        folders: list[str] = []
        with os.scandir(folder.opened) as entries:
            for entry in entries:
                (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
        more = [_Work(_Folder(name, folder, folder.depth + 1), None) for name in folders]
        starts = range(0, len(files), NAMES_TOGETHER)
        return more + [_Work(folder, tuple(files[start : start + NAMES_TOGETHER])) for start in starts]

    def _move_up(self, name: str, above: _Folder) -> None:
        """Make a directory one of the topmost, which wait for all that is in them and so for this one too."""
        root = self._root
        moved = _Folder(f"{self._prefix}{next(self._numbers)}", root, 1)
        os.rename(name, moved.name, src_dir_fd=above.opened, dst_dir_fd=root.opened)
        with self._changed:
            root.left += 1
            self._stack.append(_Work(moved, None))


def _unlink(folder: _Folder, names: tuple[str, ...]) -> list[_Work]:
    for name in names:
        os.unlink(name, dir_fd=folder.opened)
    return []


def _make_writable(function: Any, path: str, error: Any) -> None:
    """A directory that nobody may write to keeps what is in it, also from its owner: so it is made writable."""
    if isinstance(error[1], FileNotFoundError):
        return
    if not isinstance(error[1], PermissionError):
        raise error[1]
    for each in (os.path.dirname(path), path):
        if os.path.isdir(each) and not os.path.islink(each):
            os.chmod(each, 0o700)
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
