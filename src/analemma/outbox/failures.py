"""What a failure means for its event: another try, and when; or none."""

from __future__ import annotations

import random
from dataclasses import dataclass

from analemma.catalog.outbox.claims import EventFailure, EventRow
from analemma.errors import AnalemmaError, Conflict, Corrupt, DataLost, Denied, Expired, Internal, Invalid, Limit

PERMANENT: tuple[type[Exception], ...] = (
    Invalid,  # the event, its contract or its data are wrong
    Denied,
    Limit,
    Expired,
    Corrupt,
    DataLost,
    Internal,  # an invariant does not hold
    AssertionError,
)
"""What trying again does not mend. Everything else may pass: another writer, a server that is down, what is not there
yet, and whatever a handler of somebody else's raises."""

LONGEST_REASON = 2000


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often an event is tried, and how long it rests in between: any time up to a limit that doubles (full jitter),
    so that events that failed together do not come back together."""

    max_attempts: int = 5
    base_s: float = 1.0
    longest_s: float = 300.0

    def judge(self, error: BaseException, attempts: int, chance: random.Random) -> EventFailure:
        """What becomes of an event that failed, having failed `attempts` times before."""
        return self.judge_reason(describe(error), attempts, chance, is_permanent=isinstance(error, PERMANENT))

    def judge_reason(
        self,
        reason: str,
        attempts: int,
        chance: random.Random,
        *,
        is_permanent: bool = False,
        after_s: float | None = None,
    ) -> EventFailure:
        """The same of a failure that is told in words; not before `after_s`, if whoever failed asked for that."""
        attempts += 1
        if is_permanent or attempts >= self.max_attempts:
            return EventFailure("DEAD", attempts, None, clean(reason))
        limit_s = min(self.longest_s, self.base_s * 2 ** min(attempts - 1, 60))
        wait_s = (after_s or 0.0) + chance.uniform(0, limit_s)
        return EventFailure("FAILED", attempts, int(wait_s * 1_000_000), clean(reason))


def describe(error: BaseException) -> str:
    """One line for the row: the kind or class of the error, and what it says."""
    name = error.kind if isinstance(error, AnalemmaError) else type(error).__name__
    try:
        said = str(error)
    except Exception:
        said = "(it cannot say what is wrong)"
    return clean(f"{name}: {said}")


def clean(text: str) -> str:
    """The text in one line. What PostgreSQL cannot store must not keep a failure from being written down."""
    line = " ".join(text.split())
    return line.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")[:LONGEST_REASON]


def settled_nothing(row: EventRow) -> Conflict:
    """Why an event failed although its handler returned."""
    return Conflict(
        f"event {row.id} was settled in a transaction that was not committed",
        hint="let what undoes the transaction leave the handler as an error",
        event=row.id,
    )
