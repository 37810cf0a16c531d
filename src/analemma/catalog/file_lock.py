"""The queue of writing processes in front of one SQLite file.

SQLite's own busy timeout polls, so under load some processes starve. Here they sleep until it is their turn.
"""

from __future__ import annotations

import fcntl
import os

from analemma.errors import Unavailable


class FileLock:
    """An exclusive lock between processes; gone when its holder is, however it died."""

    def __init__(self, path: str) -> None:
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as exc:
            raise Unavailable(
                f"cannot open the lock file {path}: {exc.strerror}",
                hint="check that the directory exists and that this user may write in it",
            ) from exc

    def acquire(self) -> None:
        """Wait for our turn."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def release(self) -> None:
        """Let the next process in."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give up the descriptor. In a forked child this leaves the parent's lock as it is."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
