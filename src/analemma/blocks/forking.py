"""Locks across os.fork(): a child must not find one held by a thread that did not come along."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """What has a lock that a fork may catch while it is held."""

    def after_fork_in_child(self) -> None:
        """Take a new lock, and give up whatever may be half changed."""


_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(holder: Forkable) -> None:
    """Tell it of forks for as long as it lives."""
    _watched.add(holder)


def _after_in_child() -> None:
    for holder in list(_watched):
        holder.after_fork_in_child()


os.register_at_fork(after_in_child=_after_in_child)
