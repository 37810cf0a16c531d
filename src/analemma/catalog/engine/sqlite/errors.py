"""SQLite's errors in our words: one line each, saying what to do. A row that holds something of another type than its
column should is told as damage by `engine.ColumnTypes`."""

from __future__ import annotations

import os
import sqlite3

from analemma.catalog.engine.db import does_not_fit
from analemma.errors import AnalemmaError, Conflict, Corrupt, Internal, Invalid, OutcomeUnknown, Unavailable

_PRIMARY = 0xFF
_KEY_EXISTS = (Conflict, "a row with this key exists already: {text}", "reload, then decide again")
_LOCKED = (
    Unavailable,
    "{database} is locked by another program{lockers}",
    "close the tool that holds it open in a transaction, then try again; sqlite_lock_timeout_s says how long to wait"
    " for it",
)
_DENIED = (
    Unavailable,
    "{database} cannot be written",
    "give this user write permission on the file and its directory",
)
_REFUSED = (Internal, "SQLite refused a statement: {text}", None)
_BY_CODE: dict[int, tuple[type[AnalemmaError], str, str | None]] = {
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: _KEY_EXISTS,
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: _KEY_EXISTS,
    sqlite3.SQLITE_CONSTRAINT_ROWID: _KEY_EXISTS,
    sqlite3.SQLITE_CONSTRAINT: (Internal, "a row breaks a rule of the schema: {text}", None),
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_READONLY: _DENIED,
    sqlite3.SQLITE_PERM: _DENIED,
    sqlite3.SQLITE_AUTH: _DENIED,
    sqlite3.SQLITE_FULL: (
        Unavailable,
        "no space left for {database}",
        "free disk space, then try again; nothing was changed",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        Unavailable,
        "cannot open {database}",
        "check that the directory exists and that this user may write in it",
    ),
    sqlite3.SQLITE_NOTADB: (
        Corrupt,
        "{database} is not a SQLite database",
        "name another path, or restore it from a backup",
    ),
    sqlite3.SQLITE_CORRUPT: (Corrupt, "{database} is damaged", "restore it from a backup"),
    sqlite3.SQLITE_IOERR: (
        Unavailable,
        "reading or writing {database} failed: {text}",
        "check the disk and its free space, then try again",
    ),
    sqlite3.SQLITE_TOOBIG: (Invalid, "a value is larger than SQLite can store", "split it; the limit is 1 GB"),
}
"""What to raise, what it says, and what to do: by the extended code, or else by the primary one."""
FAILURES = (sqlite3.Error, OverflowError, UnicodeEncodeError)
"""What a statement may fail with."""


def translate(exc: Exception, database: str) -> AnalemmaError:
    """The error to raise `from exc`, which is one of the failures."""
    if not isinstance(exc, sqlite3.Error):
        return does_not_fit()
    text = " ".join(str(exc).split())
    code = getattr(exc, "sqlite_errorcode", None)
    if code is None:
        if isinstance(exc, sqlite3.ProgrammingError) and "closed" in text:
            return Unavailable(f"the catalog {database} is closed", hint="open it again")
        if isinstance(exc, sqlite3.OperationalError) and "decode to UTF-8" in text:
            # The text itself is not repeated: it may be of any length, and is no text.
            return Corrupt(
                f"a row of {database} holds text that is no Unicode", hint="restore the catalog from a backup"
            )
        return Internal(f"the database driver refused a call: {text}")
    kind, message, hint = _BY_CODE.get(code) or _BY_CODE.get(code & _PRIMARY, _REFUSED)
    lockers = _lockers(database) if "{lockers}" in message else ""
    return kind(message.format(database=database, text=text, lockers=lockers), hint=hint)


def translate_commit(exc: sqlite3.Error, database: str) -> AnalemmaError:
    """The error to raise `from exc`, for a COMMIT that failed."""
    code = getattr(exc, "sqlite_errorcode", None) or 0
    # The commit record is the last thing written, so a failed write means that it is not there. After a failed fsync it
    # is: this process takes it back, but if the machine or every process died now, recovery would find and apply it.
    if code & _PRIMARY == sqlite3.SQLITE_IOERR and code != sqlite3.SQLITE_IOERR_WRITE:
        return OutcomeUnknown(f"the disk failed while committing to {database}", hint="read back before trying again")
    return translate(exc, database)


def _lockers(database: str) -> str:
    """The processes that hold locks for writing, as far as the system tells: Linux lists them."""
    try:
        files = {str(os.stat(path).st_ino) for path in (database, f"{database}-shm") if os.path.exists(path)}
        with open("/proc/locks") as lines:
            # "1: POSIX  ADVISORY  WRITE 4711 00:2a:815 120 120"
            found = [line.split() for line in lines if " WRITE " in line]
    except OSError:
        return ""
    pids = {int(line[4]) for line in found if len(line) > 5 and line[5].rpartition(":")[2] in files}
    others = sorted(pid for pid in pids if pid > 0 and pid != os.getpid())
    return f" (process {', '.join(map(str, others))})" if others else ""
