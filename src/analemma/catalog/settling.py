"""What to do about a commit whose answer was lost, the same for every database."""

from __future__ import annotations

from collections.abc import Callable

from analemma.catalog.port import CommitRequest, Committed
from analemma.errors import AnalemmaError, Conflict, Expired, HeadMoved, OutcomeUnknown


def settle(
    request: CommitRequest,
    *,
    is_stored: Callable[[], bool],
    send: Callable[[], Committed],
    unknown: Callable[[], OutcomeUnknown],
) -> Committed:
    """Find out whether the commit happened, and if not, make it happen.

    Not finding the manifest proves nothing, because a server may still be at work on the lost statement, and a log may
    hold a record that only recovery applies. Sending it again does: the compare-and-set lets only one of the two
    through (or the new record replaces the old), and manifest ids are unique to a commit.
    """
    found = Committed(
        request.manifest.id,
        frozenset(),
        receipt=None if request.idempotency is None else request.idempotency.receipt,
    )
    try:
        if is_stored():
            return found
        try:
            return send()
        except (Conflict, Expired) as exc:
            # Perhaps it was our own lost commit that was first.
            if is_stored():
                return found
            if _may_still_happen(request, exc):
                raise unknown() from exc
            raise
    except (Conflict, Expired, OutcomeUnknown):
        raise
    except AnalemmaError as exc:
        raise unknown() from exc


def _may_still_happen(request: CommitRequest, refusal: Conflict | Expired) -> bool:
    """Whether the refusal says nothing about the lost commit: what waits in the ledger was entered since, perhaps, and
    the head is still where that one expects it."""
    return request.unless_pending and isinstance(refusal, HeadMoved) and refusal.facts.get("found") == request.expected
