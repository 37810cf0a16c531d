"""Times as people type them."""

from __future__ import annotations

import datetime as dt

from analemma.errors import Invalid


def read_moment(text: str, option: str) -> dt.datetime:
    """An ISO 8601 date or time; one that says no zone is in UTC.

    >>> read_moment("2026-01-02", "--since").isoformat()
    '2026-01-02T00:00:00+00:00'
    """
    try:
        moment = dt.datetime.fromisoformat(text.strip())
    except ValueError as exc:
        raise Invalid(f"{option}: not a time: {text!r}", hint="write it as 2026-01-02T15:04:05+01:00") from exc
    return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment
