"""What may stand in a value besides plain data: a part of a stored tree, put back unread, and containers that stand for
plain ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from analemma.canon.wire import Wire


@dataclass(frozen=True, slots=True)
class Stored:
    """Content of a stored tree, to be put somewhere else without being read.

    An edit links to its blocks without emitting them, so whoever commits the result holds on to a version that has
    them. No state gives one out, and nothing but an edit takes one."""

    wire: Wire
    nesting: int
    """Containers inside containers that it holds, at most: where it stands must leave room for them."""


class StandIn:
    """A container that is stored as the plain one it stands for."""

    __slots__ = ()

    def to_plain(self) -> Any:
        """All of it as plain dicts and lists."""
        raise NotImplementedError
