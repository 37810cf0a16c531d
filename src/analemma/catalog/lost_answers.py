"""What to do about a transaction whose answer was lost, the same for every database."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from analemma.catalog.procedures import Refused
from analemma.errors import AnalemmaError, Conflict, OutcomeUnknown

Answer = TypeVar("Answer")


def send(once: Callable[[], Answer], *, happened: Callable[[], bool], lost: Answer) -> Answer:
    """Do it once; if its answer was lost, find out whether it happened, and if not, make it happen. `lost` stands for
    an answer that cannot be had any more.

    That it has not happened proves nothing, because a server may still be at work on it, and a log may hold a record
    that only recovery applies. Doing it again does, if only one of the two can: of two that compare and set, the second
    is refused. (Then `Refused.doubt` is set, for refusals that say nothing about the first.)
    """
    try:
        return once()
    except OutcomeUnknown as exc:
        unknown = exc
    try:
        if happened():
            return lost
        try:
            return once()
        except Conflict as exc:
            # Perhaps it was our own lost one that was first.
            if happened():
                return lost
            if isinstance(exc, Refused):
                exc.doubt = unknown
            raise
    except (Conflict, OutcomeUnknown):
        raise
    except AnalemmaError as exc:
        raise unknown from exc
