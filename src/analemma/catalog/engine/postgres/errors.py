"""PostgreSQL's errors in our words: one line each, saying what to do."""

from __future__ import annotations

import re

import psycopg

from analemma.catalog.engine.db import does_not_fit
from analemma.catalog.engine.postgres import functions
from analemma.catalog.engine.procedures import Refused
from analemma.errors import (
    AnalemmaError,
    Conflict,
    Corrupt,
    Internal,
    Invalid,
    Limit,
    OutcomeUnknown,
    Timeout,
    Unavailable,
)

# Connection failures carry no SQLSTATE, only libpq's text; the first expression found decides.
_CONNECTING = (
    (
        "password authentication failed",
        "PostgreSQL refused the password",
        "correct the user or the password in the URL",
    ),
    ("no password supplied", "PostgreSQL wants a password", "put it in the URL or in ~/.pgpass"),
    ("no pg_hba.conf entry", "PostgreSQL does not allow this user from this host", "ask for an entry in pg_hba.conf"),
    ("role.*not exist", "there is no such PostgreSQL user", "correct the user in the URL, or create the role"),
    (
        "database.*not exist",
        "there is no such PostgreSQL database",
        "correct its name in the URL, or run createdb",
    ),
    (
        "too many clients|remaining connection slots",
        "PostgreSQL has no connection left",
        "raise max_connections or lower the pool size",
    ),
    ("starting up", "PostgreSQL is still starting", "try again in a moment"),
    ("shutting down", "PostgreSQL is shutting down", "try again when it is back"),
    (
        "resolve host|could not translate host name",
        "the PostgreSQL host name is unknown",
        "correct the host in the URL",
    ),
    ("SSL", "PostgreSQL and this client do not agree on SSL", "check sslmode in the URL"),
)


def not_a_url() -> Invalid:
    """Says nothing of what was given, nor of what libpq says about it: a password may be anywhere in it."""
    return Invalid(
        "not a PostgreSQL URL",
        hint="use postgresql://user:password@host:port/database; in a password, write %40 for @, %2F for / and so on",
    )


def translate_connecting(exc: Exception, server: str) -> AnalemmaError:
    """For a connection that could not be made."""
    if isinstance(exc, (psycopg.ProgrammingError, UnicodeEncodeError)):
        return not_a_url()
    text = _one_line(exc)
    for said, message, hint in _CONNECTING:
        if re.search(said, text):
            return Unavailable(f"{message} ({server})", hint=hint)
    return Unavailable(
        f"cannot reach PostgreSQL at {server}", hint="check that it runs, and the host and port in the URL"
    )


FAILURES = (psycopg.Error, OverflowError, UnicodeEncodeError)
"""What a statement may fail with."""
_KEPT_ASKING = (Unavailable, "PostgreSQL kept asking to retry the transaction", "try again")
"""Serialization failure, deadlock: the transaction is rolled back and may simply be run again."""
_INCOMPLETE = (Unavailable, "the database schema is incomplete: {text}", "run `analemma migrate`")
_DAMAGED = (Corrupt, "PostgreSQL reports damaged data: {text}", "restore it from a backup")
_WENT_AWAY = (Unavailable, "PostgreSQL at {server} went away", "try again when it is back")
_REFUSED = (Internal, "PostgreSQL refused a statement: {text}", None)
_BY_STATE: dict[str, tuple[type[AnalemmaError], str, str | None]] = {
    "23505": (Conflict, "a row with this key exists already: {constraint}", "reload, then decide again"),
    "25006": (Unavailable, "PostgreSQL at {server} is read-only", "connect to the primary server"),
    "25P03": (Unavailable, "PostgreSQL ended a transaction that waited too long for its next", "try again"),
    "40001": _KEPT_ASKING,
    "40P01": _KEPT_ASKING,
    "42501": (Unavailable, "PostgreSQL denies access: {text}", "grant this user the rights on the schema"),
    "42P01": _INCOMPLETE,
    "42703": _INCOMPLETE,
    "42883": _INCOMPLETE,
    "54000": (Limit, "a value is too long for a PostgreSQL index: {text}", "use shorter names"),
    "55P03": (Timeout, "a lock in PostgreSQL did not become free in time", "try again"),
    "57014": (Timeout, "PostgreSQL cancelled a statement that ran too long", "raise the statement timeout"),
    "XX001": _DAMAGED,
    "XX002": _DAMAGED,
    "08": _WENT_AWAY,
    "22": (Invalid, "a value does not fit the database: {text}", "integers are 64 bits, text has no NUL"),
    "53": (Unavailable, "PostgreSQL is out of resources: {text}", "free disk space, memory or connections"),
    "57": _WENT_AWAY,
}
"""What to raise, what it says, and what to do: by the SQLSTATE, or else by its class."""


def translate(exc: Exception, server: str) -> AnalemmaError:
    """The error to raise `from exc`, which is one of the failures of a statement."""
    if not isinstance(exc, psycopg.Error):
        return does_not_fit()
    state = exc.sqlstate
    if state is None and isinstance(exc, (psycopg.OperationalError, psycopg.InterfaceError)):
        return Unavailable(f"the connection to PostgreSQL at {server} was lost", hint="try again")
    if state is None:
        state = "22" if isinstance(exc, psycopg.DataError) else ""
    if state == functions.REFUSED_STATE:
        detail = exc.diag.message_detail
        return Refused(exc.diag.message_primary or "", None if detail is None else int(detail))
    constraint = exc.diag.constraint_name
    kind, message, hint = said = _BY_STATE.get(state) or _BY_STATE.get(state[:2], _REFUSED)
    facts = {"retry": True} if said is _KEPT_ASKING else {"constraint": constraint} if kind is Conflict else {}
    return kind(message.format(server=server, constraint=constraint, text=_one_line(exc)), hint=hint, **facts)


class ConnectionDropped(Unavailable):
    """The connection went away under a statement."""


def outcome_unknown(server: str) -> OutcomeUnknown:
    """The connection went away between sending COMMIT and its answer."""
    return OutcomeUnknown(
        f"the connection to PostgreSQL at {server} was lost while committing", hint="read back, then decide"
    )


def _one_line(exc: Exception) -> str:
    return " ".join(str(exc).split())
