"""SQLite engines across os.fork().

SQLite's locks belong to a process, but what SQLite remembers of them is copied by a fork. As long as a connection of
the parent lives on in the child, every new connection to that file takes for held what is not; the parent then closes,
believes to be the last, and removes the log under the child's commits. So the parent falls quiet for the moment of the
fork, and the child really closes what it inherited before it opens anything. That is safe because nothing is in the
middle of anything, and because closing asks the real locks before it touches the log.

If quiet cannot be had, the child must neither use nor close those connections, and cannot use the file at all.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterable
from typing import Protocol

from analemma.catalog.sqlite_errors import lost_in_a_fork

PATIENCE_S = 2.0
"""How long a fork waits for transactions of other threads."""


class Forkable(Protocol):
    """What has connections that a fork must not catch in use."""

    def before_fork(self, deadline: float) -> None:
        """Fall quiet, or give up at `deadline` on the monotonic clock."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """Close what was inherited, or give it to `lose`."""


class _Forking(threading.local):
    prepared: tuple[Forkable, ...] | None = None


_engines: weakref.WeakSet[Forkable] = weakref.WeakSet()
_one_at_a_time = threading.Lock()
_forking = _Forking()
_lost_files: set[tuple[int, int]] = set()
_lost: list[object] = []


def watch(engine: Forkable) -> None:
    """Prepare it for forks for as long as it lives."""
    _engines.add(engine)


def lose(file: tuple[int, int] | None, connections: Iterable[object]) -> None:
    """Keep these connections as they are for ever, and never open that file again in this process."""
    _lost.extend(connections)
    if file is not None:
        _lost_files.add(file)


def identify(path: str) -> tuple[int, int] | None:
    """What SQLite tells files by; None if there is none."""
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def refuse_lost(path: str) -> None:
    """Raise Unavailable for a file that was in use when this process was forked."""
    if _lost_files and identify(path) in _lost_files:
        raise lost_in_a_fork(path)


def _before() -> None:
    deadline = time.monotonic() + PATIENCE_S
    _forking.prepared = None
    if not _one_at_a_time.acquire(timeout=2 * PATIENCE_S):
        return
    _forking.prepared = tuple(_engines)
    for engine in _forking.prepared:
        engine.before_fork(deadline)


def _after_in_parent() -> None:
    prepared, _forking.prepared = _forking.prepared, None
    if prepared is None:
        return
    for engine in prepared:
        engine.after_fork_in_parent()
    _one_at_a_time.release()


def _after_in_child() -> None:
    global _one_at_a_time
    _one_at_a_time = threading.Lock()
    _forking.prepared = None
    # All of them before any is used again: two may have the same file.
    for engine in tuple(_engines):
        engine.after_fork_in_child()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
