"""What to do about a transaction whose answer was lost, the same for every database."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from analemma.catalog.engine.procedures import Refused
from analemma.errors import AnalemmaError, Conflict, Expired, OutcomeUnknown

Answer = TypeVar("Answer")


def send(once: Callable[[], Answer], *, found: Callable[[], Answer | None] = lambda: None) -> Answer:
    """Do it once; if its answer was lost, find out whether it happened, and if not, make it happen. `found` gives what
    stands for the answer of what happened, or None if it did not; what may be done twice needs none.

    That it has not happened proves nothing, because a server may still be at work on it, and a log may hold a record
    that only recovery applies. Doing it again does, if only one of the two can: of two that compare and set, the second
    is refused. (Then `Refused.doubt` is set, for refusals that say nothing about the first.)
    """
    try:
        return once()
    except OutcomeUnknown as exc:
        unknown = exc
    try:
        answer = found()
        if answer is not None:
            return answer
        try:
            return once()
        except (Conflict, Expired) as exc:
            # Perhaps it was our own lost one that was first.
            answer = found()
            if answer is not None:
                return answer
            if isinstance(exc, Refused):
                exc.doubt = unknown
            raise
    except (Conflict, Expired, OutcomeUnknown):
        raise
    except AnalemmaError as exc:
        raise unknown from exc
