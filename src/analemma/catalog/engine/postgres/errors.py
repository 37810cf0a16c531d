"""PostgreSQL's errors in our words: one line each, saying what to do."""

from __future__ import annotations

import re

import psycopg

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

RETRY_STATES = frozenset({"40001", "40P01"})
"""Serialization failure, deadlock: the transaction is rolled back and may simply be run again."""

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


def translate(exc: Exception, server: str) -> AnalemmaError:
    """The error to raise `from exc`, which is one of the failures of a statement."""
    if not isinstance(exc, psycopg.Error):
        return Invalid("a value does not fit the database", hint="integers are 64 bits and text is valid Unicode")
    if exc.sqlstate is None and isinstance(exc, psycopg.DataError):
        return _by_state(exc, "22", server)
    if exc.sqlstate is None and isinstance(exc, (psycopg.OperationalError, psycopg.InterfaceError)):
        return Unavailable(f"the connection to PostgreSQL at {server} was lost", hint="try again")
    return _by_state(exc, exc.sqlstate or "", server)


class ConnectionDropped(Unavailable):
    """The connection went away under a statement."""


def outcome_unknown(server: str) -> OutcomeUnknown:
    """The connection went away between sending COMMIT and its answer."""
    return OutcomeUnknown(
        f"the connection to PostgreSQL at {server} was lost while committing", hint="read back, then decide"
    )


def _by_state(exc: psycopg.Error, state: str, server: str) -> AnalemmaError:
    text = _one_line(exc)
    if state in RETRY_STATES:
        return Unavailable("PostgreSQL kept asking to retry the transaction", hint="try again", retry=True)
    if state == "23505":
        constraint = exc.diag.constraint_name
        return Conflict(
            f"a row with this key exists already: {constraint}", hint="reload, then decide again", constraint=constraint
        )
    match state:
        case functions.REFUSED_STATE:
            detail = exc.diag.message_detail
            return Refused(exc.diag.message_primary or "", None if detail is None else int(detail))
        case "57014":
            return Timeout("PostgreSQL cancelled a statement that ran too long", hint="raise the statement timeout")
        case "55P03":
            return Timeout("a lock in PostgreSQL did not become free in time", hint="try again")
        case "25P03":
            return Unavailable("PostgreSQL ended a transaction that waited too long for its next", hint="try again")
        case "25006":
            return Unavailable(f"PostgreSQL at {server} is read-only", hint="connect to the primary server")
        case "42501":
            return Unavailable(f"PostgreSQL denies access: {text}", hint="grant this user the rights on the schema")
        case "42P01" | "42703" | "42883":
            return Unavailable(f"the database schema is incomplete: {text}", hint="run `analemma migrate`")
        case "54000":
            return Limit(f"a value is too long for a PostgreSQL index: {text}", hint="use shorter names")
        case "XX001" | "XX002":
            return Corrupt(f"PostgreSQL reports damaged data: {text}", hint="restore it from a backup")
    match state[:2]:
        case "53":
            return Unavailable(f"PostgreSQL is out of resources: {text}", hint="free disk space, memory or connections")
        case "57" | "08":
            return Unavailable(f"PostgreSQL at {server} went away", hint="try again when it is back")
        case "22":
            return Invalid(f"a value does not fit the database: {text}", hint="integers are 64 bits, text has no NUL")
        case _:
            return Internal(f"PostgreSQL refused a statement: {text}")


def _one_line(exc: Exception) -> str:
    return " ".join(str(exc).split())
